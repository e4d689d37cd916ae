"""How many rows of a model of two kinds of layers are stored as codes: what estimates count and what a layout has."""

import jax
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.schema.model import Pattern
from jaxpar.layers.matmul_formats import are_exact
from jaxpar.layout.choices.matmul_quantization import quantized_rows
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from tests.small_run import small


@pytest.mark.parametrize("excepted", [(1, 1), (3, 0), (0, 2)])
@pytest.mark.parametrize("unit", [("dense", "routed"), ("routed", "dense", "dense")])
def test_an_exception_is_none_of_the_other_kind(unit: tuple[str, ...], excepted: tuple[int, int]):
    first, last = excepted
    config = small(
        model={
            "layers": 6, "embed": 64, "mlp": 64, "kv_heads": 8, "head_dim": 16, "pattern": Pattern(unit=unit),
            "experts": ExpertsConfig(count=4, per_token=2, width=64),
            "kinds": {"dense": {"experts": None, "mlp": 64}, "routed": {}},
        },
        precision={
            "matmul": "fp8_current",
            "matmul_options": MatmulOptions(exclude=("head", "router"), first_layers=first, last_layers=last),
        },
    )  # fmt: skip
    config = resolve_config(config, 1)
    layout = StepLayout(config, make_plan(config, jax.devices()[0]))
    expected = quantized_rows(config, [slot.kind for slot in layout.order.slots])
    for kind, stack in layout.order.stacks.items():
        assert sum(are_exact(config, layers) is False for layers in stack.layers_of_rows) == expected[kind]
