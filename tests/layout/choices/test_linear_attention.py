"""The implementation that a plan takes for the state of mixers, and its reason."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.config.axes import axis_sizes
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.plan import AxisSizes, Choice
from jaxpar.config.schema.model import Pattern
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.choices.linear_attention import check_linear_backends, linear_backends
from pallas_kernels.choice import UNVERIFIED
from tests.sentences import refused
from tests.small_run import small

CPU: Any = SimpleNamespace(platform="cpu")
H100: Any = DescribedGPU("NVIDIA H100 80GB HBM3", "9.0", 132)
WIDE = LinearAttentionConfig(key_dim=128, value_dim=64)
KINDS = {
    "kinds": {
        "full": {"mixer": "attention"},
        "state": {"linear_attention": {"key_dim": 128, "value_dim": 64}},
        "other": {},
    },
    "pattern": Pattern(unit=("full", "state", "other")),
    "layers": 3,
}


def run(backend: str = "auto", compute: str = "bfloat16", **model: Any) -> Config:
    model = {"embed": 96, "heads": 4, "mixer": "gated_deltanet", "linear_attention": WIDE} | model
    return small(
        model=model, parallel={"context": 2}, precision={"compute": compute}, attention={"linear_backend": backend}
    )


def chosen(config: Config, device: Any) -> dict[str, Choice]:
    return linear_backends(config, AxisSizes(**axis_sizes(config.parallel)), device, 1)


def test_auto_takes_the_kernel_that_was_right_where_layers_can_run_it(verified: Callable[..., None]):
    verified(H100, "linear_attention/mosaic")
    assert chosen(run(), H100)["all"].name == "mosaic"
    assert chosen(run("xla"), H100)["all"].rejected["mosaic"] == "attention.linear_backend names xla"
    assert "platform is cpu" in chosen(run(), CPU)["all"].rejected["mosaic"]
    assert "not float32" in chosen(run(compute="float32"), H100)["all"].rejected["mosaic"]
    kinds = chosen(run(linear_attention=None, **KINDS), H100)
    assert {kind: choice.name for kind, choice in kinds.items()} == {"state": "mosaic", "other": "xla"}
    assert "256 dims, not 24" in kinds["other"].rejected["mosaic"]
    assert chosen(run(mixer="attention", linear_attention=None), H100) == {}


def test_auto_leaves_a_kernel_that_nobody_has_verified_and_one_that_is_named_runs(verified: Callable[..., None]):
    verified(H100)
    left = chosen(run(), H100)["all"]
    assert left.name == "xla" and left.rejected["mosaic"] == UNVERIFIED
    named = chosen(run("mosaic"), H100)["all"]
    assert named.name == "mosaic" and named.reason == f"attention.linear_backend names mosaic, though {UNVERIFIED}"


@pytest.mark.parametrize(
    ("config", "device", "parts"),
    [
        (run("mosaic"), CPU, ("platform is cpu",)),
        (run("mosaic", linear_attention=None, **KINDS), H100, ("layers of kind other", "not 24")),
        (run("mosaic", mixer="attention", linear_attention=None), H100, ("no layer has a mixer with a state",)),
    ],
    ids=["no GPU", "a kind", "nothing to do"],
)
def test_what_a_kernel_cannot_do_is_refused(config: Config, device: Any, parts: tuple[str, ...]):
    with refused("attention.linear_backend", "mosaic", *parts):
        chosen(config, device)


def test_a_plan_that_names_another_or_other_kinds_is_refused():
    config = run()
    plan: Any = lambda **choices: SimpleNamespace(
        axes=AxisSizes(context=2), microbatch_rows=1, linear_attention={kind: Choice(x) for kind, x in choices.items()}
    )
    check_linear_backends(plan(all="mosaic"), config, H100)
    with refused("plan.linear_attention", "kinds state", "layers with a state, all"):
        check_linear_backends(plan(state="xla"), config, H100)
    with refused("plan.linear_attention.all", "'mosaic'", "platform is cpu"):
        check_linear_backends(plan(all="mosaic"), config, CPU)
    named = replace(config, attention=replace(config.attention, linear_backend="xla"))
    with refused("plan.linear_attention.all: mosaic", "attention.linear_backend is xla"):
        check_linear_backends(plan(all="mosaic"), named, H100)
