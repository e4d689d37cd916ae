"""Messages of weights and gradients under pipelines, against what the executor's own step sends."""

from dataclasses import replace
from math import prod
from typing import Any

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config.presets import PRESETS
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.pipeline import holds_chunks as executor_holds_chunks
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.placements import added_dim, local_shape
from jaxpar.planner.step_time.model import StepTime, step_time
from jaxpar.planner.step_time.pipeline import ticks_of
from jaxpar.planner.step_time.weight_traffic import held_seconds, holds_chunks, reduces_with_weights
from tests.compiler.inspected import CLUSTER, asked, wide

MODEL = PRESETS["llama3-8b"]
HOSTS = parse_cluster("h100:2x8")
HELD_LAYOUT = Layout(pipe=2, fsdp=8, zero=3, schedule="breadth-first", virtual_stages=2)


def elements(layout: StepLayout, part: str) -> int:
    """Of a device's shards of the weights that a gather over fsdp joins."""
    trees = (layout.specs, layout.placements.compute.layout, layout.placements.optimizer.layout)
    return sum(
        prod(local_shape(spec.shape, sharded, layout.plan.axes))
        for spec, compute, sharded in zip(*(jax.tree.leaves(tree[part]) for tree in trees), strict=True)
        if added_dim(compute, sharded) is not None
    )


def messages_of_a_layer(layout: Layout, microbatches: int) -> tuple[float, float]:
    """Gathers and reductions in a step: as often as the planner's ticks have a chunk's forward or backward."""
    v = layout.virtual_stages
    if layout.zero < 3:
        return layout.zero, layout.zero
    if holds_chunks(layout):
        gathers, scatters = held_seconds(layout, 1.0, 1.0)
        return gathers / v, scatters / v
    ticks = ticks_of(layout.schedule, layout.pipe, microbatches, v)
    has = lambda kind: sum(number for tick, number in ticks.counts if getattr(tick, kind)) / v
    return has("forward") + has("backward"), has("weight" if reduces_with_weights(layout) else "backward")


@pytest.mark.parametrize(
    ("schedule", "virtual", "zero"),
    [
        pytest.param("1f1b", 1, 3, id="1f1b"),
        pytest.param("interleaved", 2, 3, id="interleaved"),
        pytest.param("breadth-first", 2, 3, id="breadth-first: held"),
        pytest.param("breadth-first", 3, 3, id="breadth-first of three chunks: held"),
        pytest.param("zb-v", 2, 3, id="zb-v: gradients with W"),
        pytest.param("zb-h1", 1, 1, id="zb-h1, ZeRO-1"),
    ],
)
def test_messages_are_those_that_the_executor_sends(schedule: str, virtual: int, zero: int):
    """Layers as often as the table has it, ends once a step, and the ends' gradients summed over pipe in float32."""
    parallel: dict[str, Any] = {"schedule": schedule, "microbatches": 4, "pipe": 2, "fsdp": 4, "zero": zero}
    if virtual > 1:
        parallel["virtual_stages"] = virtual
    asked_of = wide(parallel=parallel, model={"layers": 12}, data={"batch_size": 16})
    config, plan = plan_for(asked_of, parse_cluster(CLUSTER))
    made, sent = StepLayout(config, plan), asked(config, plan)
    layers, ends = elements(made, "layers"), sum(elements(made, part) for part in ("embedding", "final_norm", "head"))
    layout = Layout(pipe=2, fsdp=4, zero=zero, schedule=schedule_of(plan.schedule), virtual_stages=virtual)
    gathers, scatters = messages_of_a_layer(layout, 4)
    assert holds_chunks(layout) == executor_holds_chunks(plan)
    assert sent["gather_weight", "fsdp"] == 3 * 2 * (gathers * layers + ends)
    assert sent["scatter_gradient", "fsdp"] == 3 * 4 * (scatters * layers + ends)
    assert sent["reduce_sum", "pipe"] == pytest.approx(4 * ends, abs=8)  # and a scalar


def schedule_of(name: str) -> str:
    """The name that the planner has for a schedule of a plan."""
    return {"zb-h1": "zb-uniform"}.get(name, name)


def seconds(layout: Layout, batch: int = 128, vocab: int = 32000, tied: bool = False) -> StepTime:
    model = replace(MODEL, vocab=vocab, tied=tied)
    return step_time(model, 4096, batch, layout, HOSTS)


def test_held_chunks_cost_their_messages_once_a_batch():
    """Twice the microbatches add no message, where chunks gathered in every tick have more."""
    few, many = (seconds(HELD_LAYOUT, batch=batch).breakdown["data"] for batch in (128, 256))
    assert many == pytest.approx(few)
    ticks = replace(HELD_LAYOUT, schedule="interleaved")
    few, many = (seconds(ticks, batch=batch).breakdown["data"] for batch in (128, 256))
    assert many > 1.3 * few


def test_whole_chunks_are_copied_from_and_into_their_stacks_in_each_tick():
    """Most of the memory traffic of Llama-3 405B in 64 chunks on 1,024 H100s. Under ZeRO-3 those are shards."""
    piped = Layout(pipe=2, fsdp=8, schedule="1f1b", remat="full")
    full, shards = (seconds(replace(piped, zero=zero)).breakdown["slices"] for zero in (1, 3))
    assert shards == pytest.approx(full / 8) and shards > 0
    wide = Layout(pipe=16, fsdp=4, context=4, tensor=4, zero=1, schedule="interleaved", virtual_stages=4)
    parts = step_time(PRESETS["llama3-405b"], 8192, 2048, wide, parse_cluster("h100:128x8")).breakdown
    assert parts["slices"] > parts["other"]
