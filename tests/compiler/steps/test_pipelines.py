"""Pipelines' work, messages and memory, read from the programs that XLA makes for GPUs."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import layer_matmul_parameters
from jaxpar.layout.memory.estimate import chunk_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.timing.simulate import simulate
from tests.compiler.inspected import CLUSTER, asked, inspected, sent, wide

FSDP = {"fsdp": 2, "tensor": 2, "zero": 3}
PIPELINES: dict[str, dict[str, Any]] = {
    "1f1b": {"parallel": {"pipe": 2, **FSDP}},
    "breadth-first": {"parallel": {"pipe": 2, "virtual_stages": 2, **FSDP}},
    "zb-h1": {"parallel": {"pipe": 4, "fsdp": 2, "zero": 1}},
    "interleaved": {"parallel": {"pipe": 2, "virtual_stages": 2, **FSDP}, "memory": {"remat": "full"}},
    "gpipe": {"parallel": {"pipe": 4, "fsdp": 2, "zero": 2, "pipe_ends": "shared"}},
    "zb-v": {"parallel": {"pipe": 2, "fsdp": 4, "zero": 3}},
}
MICROBATCHES = 4
ALMOST = 0.95
"""XLA merges like gathers of one tick, and leaves out what a single tick's row masks on every rank."""


def config_of(name: str) -> Any:
    sections = PIPELINES[name]
    parallel = {"schedule": name, "microbatches": MICROBATCHES, **sections["parallel"]}
    return wide(**{**sections, "parallel": parallel, "model": {"layers": 12}, "data": {"batch_size": 16}})


def layout_of(name: str) -> StepLayout:
    """The layout of the step that was compiled."""
    config, plan = plan_for(config_of(name), parse_cluster(CLUSTER))
    return StepLayout(config, plan)


def expected_flops(layout: StepLayout) -> float:
    """Executed ticks times a chunk's FLOPs, with the loss in the ticks that have it; remat's work is not in it."""
    model, axes, plan = layout.config.model, layout.plan.axes, layout.plan
    sequence = layout.config.data.sequence_length
    tokens = plan.microbatch_rows * sequence
    matmuls = 2 * layer_matmul_parameters(model) * tokens / axes.tensor
    attention = 4 * model.heads * (model.embed // model.heads) * tokens * sequence / axes.tensor
    splits = layout.schedule.splits_backward
    work = {
        Kind.FORWARD: matmuls + attention,
        Kind.BACKWARD: (1 if splits else 2) * matmuls + 2 * attention,
        Kind.WEIGHT: matmuls,
    }
    layers = layout.order.layers_per_chunk
    assert model.vocab is not None
    head = 6 * model.embed * model.vocab * tokens / axes.tensor / (axes.pipe if plan.pipe_ends == "shared" else 1)
    total = 0.0
    for loop in layout.program.loops:
        for run in loop.runs:
            total += loop.repeats * run.ticks * (layers * sum(work[kind] for kind in run.kinds) + head * run.head)
    return total


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_runs_sends_and_keeps_what_its_table_states(name: str):
    layout = layout_of(name)
    _, report = inspected(config_of(name))
    assert report.flops - report.recompute_flops == pytest.approx(expected_flops(layout), rel=0.02)
    found, wanted = sent(report), asked(layout.config, layout.plan)
    assert found.keys() == wanted.keys()
    for collective, size in wanted.items():
        assert ALMOST * size <= found[collective] <= size, collective
    peak = max(simulate(layout.schedule, mode="lockstep").peak_in_flight)
    if layout.plan.remat != "full" and not layout.schedule.splits_backward:
        assert report.classes["saved_activations"] == pytest.approx(
            peak * chunk_bytes(layout.config, layout.plan).stash, rel=0.05
        )
