"""What a plan takes for head and loss, and why."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.choices.head_loss import choose_loss
from tests.sentences import refused
from tests.small_run import small

CPU: Any = SimpleNamespace(platform="cpu")
H100: Any = DescribedGPU("NVIDIA H100 80GB HBM3", "9.0", 132)


def run(compute: str = "bfloat16", **memory: Any) -> Config:
    return small(memory=memory, precision={"compute": compute})


def test_auto_takes_the_kernel_where_it_was_right(verified: Callable[..., None]):
    verified(H100, "linear_cross_entropy/triton")
    assert choose_loss(run(), H100).name == "fused"
    assert choose_loss(run(), CPU).rejected == {"fused": "it needs an NVIDIA GPU, and the platform is cpu"}
    assert "not float32" in choose_loss(run("float32"), H100).rejected["fused"]
    assert choose_loss(run(loss_tiles=2), H100).rejected == {"fused": "it has no tiles"}
    assert choose_loss(run(loss_backend="xla"), H100).name == "xla"


def test_auto_leaves_a_kernel_that_nobody_has_verified_and_one_that_is_named_runs(verified: Callable[..., None]):
    verified(H100)
    found = choose_loss(run(), H100)
    assert found.name == "xla" and found.rejected == {"fused": "it has not been verified on such a device"}
    found = choose_loss(run(loss_backend="fused"), H100)
    assert found.name == "fused" and "unverified on such a device" in found.reason, "the plan states it"


@pytest.mark.parametrize(
    ("memory", "device", "parts"),
    [
        ({}, CPU, ("memory.loss_backend is 'fused'", "does not support", "platform is cpu")),
        ({"loss_tiles": 3}, H100, ("memory.loss_tiles", "expected null", "memory.loss_backend: fused", "got 3")),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(memory: dict[str, Any], device: Any, parts: tuple[str, ...]):
    with refused(*parts):
        choose_loss(run(loss_backend="fused", **memory), device)
