"""What a plan takes for norms of queries and keys with rotary embeddings, and that layers run it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxpar.config import Config
from jaxpar.config.plan import Choice
from jaxpar.config.schema.model import Pattern
from jaxpar.config.schema.rope import RopeConfig
from jaxpar.hardware.catalogue import GPUS
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers import attention
from jaxpar.layout.choices.norm_rotary import (
    check_norm_rotary,
    choose_norm_rotary,
    norm_rotary_on,
    norm_rotary_requests,
)
from jaxpar.layout.choices.reasons import choice_rows
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.training.step.train_step import TrainStep
from pallas_kernels import norm_rotary
from pallas_kernels.toolchain import versions
from pallas_kernels.verified import Record, digest
from tests.sentences import refused
from tests.small_run import SmallRun, small, worst_difference

CPU: Any = SimpleNamespace(platform="cpu")
H100: Any = DescribedGPU("NVIDIA H100 80GB HBM3", "9.0", 132)
NORMED = {"qk_norm": True, "embed": 512, "heads": 8, "kv_heads": 4}


def run(asked: str = "auto", compute: str = "bfloat16", parallel: dict[str, Any] | None = None, **model: Any) -> Config:
    return small(
        attention={"norm_rotary": asked}, precision={"compute": compute}, model=NORMED | model, parallel=parallel or {}
    )


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "norm_rotary/triton"
    record = Record(kernel, H100.device_kind, 132, "2026-11-27", tuple(versions().items()), digest(kernel))
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: (record,))


def test_auto_leaves_the_kernel_where_nobody_has_verified_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: ())
    found = choose_norm_rotary(run(), H100)
    assert found.name == "xla" and found.rejected == {"triton": "it has not been verified on such a device"}
    named = choose_norm_rotary(run("triton"), H100)
    assert named.name == "triton" and "it has not been verified on such a device" in named.reason


@pytest.mark.usefixtures("recorded")
def test_auto_takes_the_kernel_where_it_was_right():
    assert choose_norm_rotary(run(), H100).name == "triton"
    assert choose_norm_rotary(run("xla"), H100).name == "xla"
    assert choose_norm_rotary(run(), CPU).rejected == {"triton": "it needs an NVIDIA GPU, and the platform is cpu"}
    assert choose_norm_rotary(run(head_dim=20), H100).name == "xla"


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    "model", [{"qk_norm": False}, {"qk_norm": "projection"}, {"position": "none"}], ids=lambda model: str(*model)
)
def test_layers_without_both_have_no_use_for_it(model: dict[str, Any]):
    assert choose_norm_rotary(run(**model), H100) == Choice("xla")
    with refused("attention.norm_rotary: triton would not be used", "model.qk_norm: true", "expected auto"):
        choose_norm_rotary(run("triton", **model), H100)


@pytest.mark.usefixtures("recorded")
def test_a_part_of_each_head_is_rotated_by_xla():
    config = run(rope=RopeConfig(partial=0.5))
    chosen = choose_norm_rotary(config, H100)
    assert chosen.name == "xla" and "32 of 64 dims" in chosen.reason
    (gpu,) = (one for one in GPUS if H100.device_kind in one.device_kinds)
    assert (norm_rotary_on(run(), gpu), norm_rotary_on(config, gpu)) == ("triton", "xla")
    with refused("attention.norm_rotary: triton", "model.rope.partial", "expected auto"):
        choose_norm_rotary(run("triton", rope=RopeConfig(partial=0.5)), H100)
    plan: Any = SimpleNamespace(norm_rotary=Choice("triton", ""))
    with refused("plan.norm_rotary: triton", "model.rope.partial", "expected xla"):
        check_norm_rotary(plan, config, H100)


def test_a_kernel_gets_the_heads_and_tokens_of_a_device():
    """Of the kinds of layers that have both; heads over tensor, rows over fsdp, the sequence over context."""
    kinds = {"rotary": {}, "plain": {"position": "none"}}
    config = run(
        parallel={"fsdp": 2, "tensor": 2, "context": 2}, layers=4, kinds=kinds,
        pattern=Pattern(unit=("rotary", "plain")),
    )  # fmt: skip
    requests = norm_rotary_requests(config, H100)
    assert [(one.tokens, one.heads, one.head_dim) for one in requests] == [(64, 4, 64), (64, 2, 64)]


@pytest.mark.parametrize(
    ("config", "device", "parts"),
    [
        (run("triton"), CPU, ("'triton', which does not support this run", "the platform is cpu")),
        (run("triton", head_dim=20), H100, ("does not support this run", "heads are 32 to 512 wide", "not 20")),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(config: Config, device: Any, parts: tuple[str, ...]):
    with refused("attention.norm_rotary is", *parts):
        choose_norm_rotary(config, device)
    plan: Any = SimpleNamespace(norm_rotary=Choice("triton", ""))
    with refused("plan.norm_rotary is", *parts):
        check_norm_rotary(plan, config, device)


def test_the_plan_states_it_where_a_layer_has_both():
    rows = lambda config: {name: rest for name, *rest in choice_rows(make_plan(config, jax.devices()[0]))}
    name, why = rows(resolve_config(run(), 1))["norm rotary"]
    assert name == "xla" and "GPU" not in why, "on a CPU"
    assert "norm rotary" not in rows(resolve_config(run(qk_norm=False), 1))


@pytest.mark.long
def test_a_step_with_it_has_the_loss_and_gradients_of_one_without(monkeypatch: pytest.MonkeyPatch):
    """The derivative is the kernel's, and its two functions are those in plain JAX, which run on a CPU: rows, the
    sequence and heads over two devices each, packed rows, activations recomputed, weights that 1 is added to."""
    config = small(
        model={"qk_norm": True, "norm": "zero_centered_rmsnorm", "heads": 4, "kv_heads": 2},
        parallel={"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}, memory={"remat": "full"},
    )  # fmt: skip
    plain = SmallRun(config)
    loss, gradients = plain.loss_and_gradients()
    plan = replace(make_plan(plain.config, jax.devices()[0]), norm_rotary=Choice("triton", ""))
    calls = []

    def in_plain_jax(*given: Any, implementation: str, **options: Any) -> jax.Array:
        calls.append(implementation)
        return norm_rotary(*given, implementation="xla", **options)

    monkeypatch.setattr(attention, "norm_rotary", in_plain_jax)
    plain.step = TrainStep(StepLayout(plain.config, plan), build_mesh(plan.axes, jax.devices()))
    own_loss, own_gradients = plain.loss_and_gradients()
    assert calls and set(calls) == {"triton"}
    assert own_loss == pytest.approx(loss, rel=1e-6)
    worst, name = worst_difference(own_gradients, gradients)
    assert worst < 2e-5, name
