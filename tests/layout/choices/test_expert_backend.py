"""Which implementation a plan takes for the products of experts, and why."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.config.axes import axis_sizes
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import AxisSizes, Choice
from jaxpar.config.schema.model import Pattern
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.choices.experts import expert_layouts
from tests.sentences import refused
from tests.small_run import small

CPU: Any = SimpleNamespace(platform="cpu")
H100: Any = DescribedGPU("NVIDIA H100 80GB HBM3", "9.0", 132)
OTHER = {"count": 4, "width": 96}
KINDS = {
    "kinds": {"dense": {"experts": None}, "routed": {}, "other": {"experts": OTHER}},
    "pattern": Pattern(unit=("dense", "routed", "other")),
}


def products(config: Config, device: Any, kind: str = "all") -> Choice:
    return expert_layouts(config, AxisSizes(**axis_sizes(config.parallel)), device, None, 1, None)[kind].products


def run(backend: str = "auto", compute: str = "bfloat16", **model: Any) -> Config:
    model = {"embed": 128, "heads": 8, "experts": ExpertsConfig(8, width=256)} | model
    parallel = {"expert": 2, "tensor": 2, "experts": {"backend": backend}}
    return small(model=model, parallel=parallel, precision={"compute": compute})


def test_auto_takes_the_kernel_that_was_right_where_layers_can_run_it(verified: Callable[..., None]):
    verified(H100, "grouped_matmul/mosaic")
    assert products(run(), H100).name == "mosaic"
    assert products(run(backend="xla"), H100).rejected["mosaic"] == "parallel.experts.backend names xla"
    assert "platform is cpu" in products(run(), CPU).rejected["mosaic"]
    assert "not float32" in products(run(compute="float32"), H100).rejected["mosaic"]
    assert products(run(**KINDS), H100, "routed").name == "mosaic"
    assert "128 x 48" in products(run(**KINDS), H100, "other").rejected["mosaic"]


@pytest.mark.parametrize(
    ("config", "device", "parts"),
    [
        (run("mosaic"), CPU, ("platform is cpu",)),
        (run("mosaic", **KINDS), H100, ("layers of kind other", "multiples of 64", "128 x 48")),
        (run("mosiac"), H100, ("expected auto, mosaic", "did you mean mosaic")),
    ],
    ids=["no GPU", "a kind", "misspelt"],
)
def test_what_a_kernel_cannot_do_is_refused(config: Config, device: Any, parts: tuple[str, ...]):
    with refused("parallel.experts.backend", repr(config.parallel.experts.backend), *parts):
        products(config, device)
