"""What `auto` makes of our kernels once records say that they were right on a device."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from jaxpar.attention import AttentionRequest, choose_backend, choose_context_strategy
from pallas_kernels import choice, flash_attention
from pallas_kernels.attention import registry
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.attention.request import Request
from pallas_kernels.choice import UNVERIFIED
from pallas_kernels.masks import Mask
from tests.sentences import refused

OURS = ("mosaic", "mosaic_deterministic", "triton")
HOPPER = AttentionRequest(
    platform="gpu", dtype="bfloat16", heads=8, kv_heads=2, head_dim=128, packed=False, window=None, softcap=None,
    prefix=False, sequence=4096, context=1, compute_capability=9.0, gpu="NVIDIA H200", processors=132,
)  # fmt: skip


def record(monkeypatch: pytest.MonkeyPatch, *recorded: str, gpu: str = "NVIDIA H200") -> None:
    """Let there be records of these kernels on this GPU alone."""
    known = {(f"attention/{name}", gpu) for name in recorded}
    found = lambda kernel, gpu, processors: SimpleNamespace(speeds=()) if (kernel, gpu) in known else None
    for module in (choice, registry):
        monkeypatch.setattr(module, "record_of", found)


@pytest.mark.parametrize("change", [{"packed": True}, {"window": 512}, {"softcap": 30.0}, {"full_rows": False}])
def test_a_kernel_with_a_record_is_chosen_where_cudnn_is_not_ahead(
    change: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(HOPPER, **change)
    for name in OURS:
        record(monkeypatch, name)
        choice = choose_backend("auto", request)
        assert choice.name == name and UNVERIFIED not in choice.reason
        assert all(choice.rejected[other] == UNVERIFIED for other in OURS if other != name)
    record(monkeypatch, *OURS)
    assert choose_backend("auto", request).name.startswith("mosaic"), "of Hopper's own before Triton's"


def test_cudnn_stays_ahead_where_the_mask_is_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, *OURS)
    choice = choose_backend("auto", HOPPER)
    assert choice.name == "cudnn" and {choice.rejected[name] for name in OURS} == {"cudnn is preferred"}


@pytest.mark.parametrize(("change", "name"), [({"packed": True}, "cudnn"), ({"window": 512}, "cudnn"), ({}, "cudnn")])
def test_a_record_of_another_gpu_is_none(change: dict, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, *OURS, gpu="NVIDIA H100 PCIe")
    choice = choose_backend("auto", replace(HOPPER, **change))
    assert choice.name == name and {choice.rejected[kernel] for kernel in OURS} == {UNVERIFIED}


@pytest.mark.parametrize(
    ("change", "strategy", "backend"),
    [
        ({}, "ulysses", "cudnn"),
        ({"packed": True}, "ring", "mosaic"),
        ({"heads": 12}, "ring", "mosaic"),
        ({"window": 4096}, "ring", "mosaic"),
    ],
    ids=["dense", "packed", "few heads", "window"],
)
def test_strategy_and_kernel_suit_each_other(
    change: dict, strategy: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows where cuDNN is the better kernel and can be had; else parts, which ours can merge."""
    record(monkeypatch, *OURS)
    request = replace(HOPPER, sequence=2**20, context=8, **change)
    assert choose_context_strategy("auto", request).name == strategy
    choice = choose_backend("auto", replace(request, full_rows=strategy == "ulysses"))
    assert choice.name.startswith(backend)


def test_a_scale_that_turns_the_order_of_scores_around_goes_to_a_kernel_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record(monkeypatch, *OURS)
    packed = Request(
        8, 2, 128, 128, Mask(segmented=True), platform="gpu", dtype="bfloat16", compute_capability=9.0,
        gpu="NVIDIA H200", processors=132,
    )  # fmt: skip
    assert REGISTRY.choose("auto", replace(packed, scale=0.5)).name.startswith("mosaic")
    for scale in (0.0, -0.5):
        chosen = REGISTRY.choose("auto", replace(packed, scale=scale))
        assert chosen.name == "triton"
        assert chosen.rejected["mosaic"] == f"it needs a scale of the scores above 0, not {scale:g}"


def test_a_named_kernel_refuses_such_a_scale_in_a_sentence() -> None:
    x = jnp.ones((1, 4, 1, 64), jnp.bfloat16)
    with refused("'mosaic'", "query", "scale -1: mosaic: it needs a scale", error=ValueError):
        flash_attention(x, x, x, causal=True, scale=-1.0, implementation="mosaic", interpret=True)
    with refused("scale", "finite", "got nan", "query (1, 4, 1, 64)", error=ValueError):
        flash_attention(x, x, x, causal=True, scale=float("nan"))
