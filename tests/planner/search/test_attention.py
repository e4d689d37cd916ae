"""The attention that a run would take is the one that is timed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.planner.search.candidate import Planned
from pallas_kernels.attention.registry import REGISTRY
from tests.planner.spaces import model_of, search_of

ONE_ROW = {"sequence_length": 8192, "batch_size": 4}
HELD = {"tensor": 1, "pipe": 1, "microbatch": 1, "remat": "none", "zero": 3}


def best(
    cluster: str = "h100:1x4", packed: bool = False, backend: str = "auto", model: dict[str, Any] | None = None,
    **fixed: Any,
) -> Planned:  # fmt: skip
    config = model_of(data=ONE_ROW | {"packed": packed}, attention={"backend": backend}, model=model or {})
    return search_of(config, cluster, **(HELD | {"context": 1} | fixed)).best(1)[0]


def attention(planned: Planned) -> float:
    return planned.candidate.time.breakdown["attention"]


@pytest.mark.parametrize(
    ("cluster", "asked"),
    [
        ("h100:1x4", {}),
        ("h100:1x4", {"packed": True}),
        ("a100-80:1x4", {}),
        ("a100-80:1x4", {"packed": True}),
        ("h100:1x4", {"backend": "xla"}),
        ("h100:1x4", {"context": 2, "context_strategy": "allgather"}),
        ("h100:1x4", {"context": 2, "context_strategy": "ulysses"}),
    ],
)
def test_the_kernels_that_are_timed_are_those_of_the_plan(cluster: str, asked: dict[str, Any]):
    one = best(cluster, **asked)
    assert one.candidate.layout.attention == (("", one.plan.attention.name),)


def test_plain_jax_takes_many_times_as_long_as_cudnn():
    """Attention of a compiled step takes 9.6 s in place of 0.8 s."""
    cudnn, plain = best(), best(backend="xla")
    assert (cudnn.plan.attention.name, plain.plan.attention.name) == ("cudnn", "xla")
    assert 5 < attention(plain) / attention(cudnn) < 20
    assert plain.candidate.seconds - cudnn.candidate.seconds == pytest.approx(
        attention(plain) - attention(cudnn), rel=0.2
    )


def test_values_narrower_than_keys_cost_cudnn_what_wide_ones_do():
    """Latent attention: its values get zeros, so that of 192 and 128 cuDNN multiplies 192 and 192, and mosaic 320."""
    latent = LatentAttentionConfig(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128)
    of = lambda backend: best(backend=backend, model={"latent_attention": latent, "heads": 16, "kv_heads": None})
    cudnn, mosaic = of("auto"), of("mosaic")
    assert (cudnn.plan.attention.name, mosaic.plan.attention.name) == ("cudnn", "mosaic")
    assert 1.1 < attention(cudnn) / attention(mosaic) < 384 / 320


def test_packed_rows_that_fall_to_plain_jax_are_timed_as_that():
    """cuDNN takes documents from Hopper on."""
    new, old = best(packed=True), best("a100-80:1x4", packed=True)
    assert (new.plan.attention.name, old.plan.attention.name) == ("cudnn", "xla")
    assert attention(old) > 3 * attention(best("a100-80:1x4")) and attention(new) == attention(best())


def test_context_ranks_attend_over_whole_rows_where_only_then_a_kernel_runs():
    parts, rows = (best(context=2, context_strategy=name) for name in ("allgather", "ulysses"))
    assert (parts.plan.attention.name, rows.plan.attention.name) == ("xla", "cudnn")
    assert attention(parts) > 5 * attention(rows)
    assert best(context=2).candidate.layout.context_strategy == "ulysses"


def test_a_backend_that_some_layouts_cannot_run_leaves_the_others():
    assert best(backend="cudnn", context=2).candidate.layout.context_strategy == "ulysses"


@pytest.mark.parametrize("kernels", [one.name for one in REGISTRY.entries])
def test_time_rises_with_queries_keys_and_width(kernels: str):
    gpu = gpu_named("h100")
    device = device_of(gpu, hardware_of(gpu))
    asked = 1, 8, 4096, 2048, 128
    timed = device.blocks if kernels == "xla" else partial(device.flash, kernels=kernels)
    for place in range(len(asked)):
        larger: list[Any] = [2 * number if place == i else number for i, number in enumerate(asked)]
        assert all(b > a for a, b in zip(timed(*asked), timed(*larger), strict=True))


def test_a_backward_of_two_launches_takes_longer():
    gpu = gpu_named("h100")
    device = device_of(gpu, hardware_of(gpu))
    whole, split = (device.flash(1, 8, 8192, 4096.5, 128, name) for name in ("mosaic", "mosaic_deterministic"))
    assert split[0] == whole[0] and split[1] > 1.3 * whole[1]
