"""Quantized messages in full steps: the numbers of the exact step, within what each states.

Gradients are compared by the relative error of the whole gradient, |found - exact| / |exact|, with the errors that
docs/zeropp.md states; a scale applied twice, a shard of another step or a contribution left out exceed them.
"""

from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from tests.nonzero_gradients import nonzero_gradients
from tests.same_bits import apart, worst_difference
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import on_one_device

MODEL = {"layers": 2, "embed": 64, "mlp": 128}
NODE = 4

HASHED = {"experts": ExpertsConfig(count=4, per_token=2, width=32, router="hash")}
"""Whose choices do not change with rounded weights."""

INT8 = {"quantized": {"weights": "int8", "gradients": "int8"}}

QUANTIZED: dict[str, tuple[float, dict[str, dict[str, Any]]]] = {
    "bfloat16 gradients": (0.004, {"parallel": {"fsdp": 8, "quantized": {"gradients": "bfloat16"}}}),
    "int8 gradients, replicas in nodes": (
        0.03, {"parallel": {"replica": 4, "fsdp": 2, "quantized": {"gradients": "int8"}}},
    ),
    "all of int8, state over replicas": (
        0.05, {"parallel": {"replica": 2, "fsdp": 4, "overlap": {"shard_state_over_replicas": True}, **INT8}},
    ),
    "int8 weights under ZeRO-1": (0.05, {"parallel": {"fsdp": 8, "zero": 1, "quantized": {"weights": "int8"}}}),
    "float8 weights": (0.15, {"parallel": {"fsdp": 8, "quantized": {"weights": "float8_e4m3fn"}}}),
    "all of int8, accumulation, remat, tied": (0.05, {
        "parallel": {"fsdp": 4, "context": 2, "hpz": 4, "microbatches": 2, **INT8}, "memory": {"remat": "full"},
        "model": {"tied": True},
    }),
    "all of int8 in a pipeline": (0.05, {"parallel": {"pipe": 2, "fsdp": 4, "hpz": 2, "microbatches": 2, **INT8}}),
    "all of int8, layers on the host": (0.05, {
        "parallel": {"fsdp": 8, "hpz": 2, **INT8}, "memory": {"optimizer_offload": "host", "weights_offload": "host"},
    }),
    "all of int8, experts": (0.05, {"parallel": {"fsdp": 4, "expert": 2, "hpz": 4, **INT8}, "model": HASHED}),
    "ZeRO++: int8 weights, an hpZ shard, int4 gradients": (
        0.45, {"parallel": {"fsdp": 8, "hpz": 4, "quantized": {"weights": "int8", "gradients": "int4"}}},
    ),
}  # fmt: skip


def config_of(sections: dict[str, dict[str, Any]]) -> Any:
    return small(**sections | {"model": MODEL | sections.get("model", {})})


@pytest.mark.matrix(ci=3)
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_messages_give_them_within_the_stated_error(name: str):
    limit, sections = QUANTIZED[name]
    wanted_loss, wanted, _ = on_one_device(config_of({"model": sections.get("model", {})}))
    nodes = 2 if sections["parallel"].get("pipe", 1) > 1 else NODE
    loss, gradients = nonzero_gradients(SmallRun(config_of(sections), nodes))
    weights = sections["parallel"]["quantized"].get("weights")
    assert abs(loss - wanted_loss) <= (0.01 if weights else 1e-5) * wanted_loss
    error = apart(gradients, wanted)
    assert limit / 20 < error < limit, "not exact, or the messages were not quantized"
    if weights is None:
        norms = gradients["final_norm"], wanted["final_norm"]
        assert worst_difference(*norms)[0] <= 1e-5, "norms stay exact"


@pytest.mark.long
@pytest.mark.parametrize("zero", [1, 3])
def test_evaluations_are_of_the_weights_that_are_saved(zero: int):
    model = {"layers": 1, "experts": ExpertsConfig(count=2, per_token=1, width=32)}
    quantized = {"weights": "int8", "tokens": "float8_e4m3fn"}

    def loss(**parallel: Any) -> float:
        run = SmallRun(small(model=model, parallel={"fsdp": 2, "expert": 2, "zero": zero, **parallel}))
        weights = run.step.residency.readable(run.step.residency.initial_state().master)
        return float(run.step.evaluate(weights, run.batch(0))[0]["loss"])

    assert loss(quantized=quantized) == loss()
