"""Offload read from the GPU program: which bytes move, what memory it saves, and what hides the copies."""

from dataclasses import replace
from functools import cache

import pytest

from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.config import Config
from jaxpar.layout.memory.host import offloaded_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.pages.units import GIB
from jaxpar.pipeline.actions import Kind
from tests.compiler.inspected import assert_planned, inspected, wide
from tests.memory.published_offload import memory_bytes

pytestmark = pytest.mark.long

LAYERS, EMBED, TOKENS, BFLOAT = 24, 512, 2048, 2

FSDP = {"fsdp": 8, "zero": 3, "overlap": {"layer_unroll": 1, "weight_prefetch": "layer"}}
"""Weights are gathered in the same way with and without copies, so that memory differs by what is copied."""
SIZES = {"pipe": 2, "fsdp": 4}
PIPE = SIZES | {"zero": 3, "microbatches": 4}

INPUT = EMBED * TOKENS * BFLOAT
"""Bytes of a layer's input: every device has one row of a microbatch."""


def config_of(pipe: bool, *names: str) -> Config:
    """A step that recomputes all but `names`, which it offloads."""
    return wide(
        model={"layers": LAYERS, "embed": EMBED, "mlp": 4 * EMBED, "vocab": 512},
        data={"sequence_length": TOKENS, "batch_size": 16 if pipe else 8},
        parallel=PIPE if pipe else FSDP,
        memory={"remat": {"preset": "full"} | dict.fromkeys(names, "offload")},
    )


@cache
def compiled(pipe: bool, *names: str) -> tuple[Analysis, Report]:
    """The step of `config_of`, compiled."""
    return inspected(config_of(pipe, *names), "h100:1x8")


def moved(report: Report) -> dict[str, float]:
    """Bytes that go to the host and come back from it in a step."""
    return {row.collective: row.bytes for row in report.collectives if row.axis == "host"}


@pytest.mark.parametrize("names", [(), ("layer_input",), ("layer_input", "attention_residual")], ids=len)
def test_every_array_goes_to_the_host_once_and_comes_back_once_beside_the_layers(names: tuple[str, ...]):
    """XLA allocated one buffer on the host for two that are alike, and copied it."""
    analysis, report = compiled(False, *names)
    assert moved(report) == (dict.fromkeys(("to_host", "from_host"), len(names) * LAYERS * INPUT) if names else {})
    if names:
        assert_copies_are_hidden(analysis)


def test_that_is_what_the_device_no_longer_holds_and_the_host_does():
    without, with_offload = (compiled(False, *names)[0].compilation.memory for names in ((), ("layer_input",)))
    assert with_offload.host_temp - without.host_temp == LAYERS * INPUT
    fallen = without.temp - with_offload.temp
    assert fallen == pytest.approx(LAYERS * INPUT, rel=0.05)
    assert fallen == pytest.approx((LAYERS - 1) * INPUT, rel=0.01), "all but the one that comes back ahead"
    assert (without.argument, without.output) == (with_offload.argument, with_offload.output)


def assert_copies_are_hidden(analysis: Analysis, but_for: float = 0.05) -> None:
    """All are asynchronous, and at most this share of their time is waited for."""
    copies = [o for o in analysis.schedule.overlaps if o.movement.transfer.channel == "host"]
    assert all(not copy.movement.transfer.synchronous for copy in copies)
    needed = sum(copy.time.seconds * copy.movement.executions for copy in copies)
    assert needed > 0
    assert sum(copy.exposed_per_step for copy in copies) < but_for * needed


def test_nothing_runs_again_because_there_is_more_on_the_host_than_a_device_has():
    """XLA counts what is on the host as the device's."""
    config = wide(
        model={"layers": 100, "embed": 2048, "heads": 16, "kv_heads": 16, "mlp": 4096, "vocab": 512},
        data={"sequence_length": 512, "batch_size": 1024},
        parallel={"fsdp": 8, "zero": 3},
        memory={
            "remat": {"preset": "full"}
            | dict.fromkeys(("layer_input", "query", "attention_output", "attention_residual"), "offload")
        },
    )
    _, report = inspected(config, "h100:1x8")
    assert report.host_bytes > 80 * GIB > 3 * report.allocated_bytes and report.compiler_recomputes == 0


HALF = {"pipe": 4, "fsdp": 2, "zero": 1, "microbatches": 8}


def fraction_of(alpha: float) -> Config:
    """A step that keeps of each layer its input, and of that a share on the host."""
    return wide(
        model={"layers": 32, "embed": 1536, "heads": 12, "kv_heads": 12, "mlp": 6144, "vocab": 512},
        data={"sequence_length": TOKENS, "batch_size": 16},
        parallel=HALF,
        memory={"remat": "full", "offload_fraction": alpha},
    )


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(("alpha", "exposed"), [(0.25, 0.12), (0.5, 0.01), (1.0, 0.05)])
def test_the_memory_of_a_pipeline_falls_with_the_fraction(alpha: float, exposed: float):
    """M(alpha) = M_static + A [N - alpha (N - transit)]: N units of A bytes, of which alpha goes, but for two layers on
    their way: the one that computes and the next one, of which only one may be there when the step has its peak. Where
    only two layers of a chunk go (alpha 0.25), XLA unrolls their loop and normalises both as soon as a tick that only
    drains begins: there the copies are waited for."""
    analysis, report = inspected(fraction_of(alpha), "h100:1x8")
    layout = StepLayout(fraction_of(alpha), analysis.compilation.plan)
    units, layer = layout.program.slots["stash"], 1536 * TOKENS * BFLOAT
    unit = 8 * layer
    one, two = (memory_bytes(0, unit, units, alpha, transit=number * layer / (alpha * unit)) for number in (1, 2))
    assert 0.95 * one <= report.classes["saved_activations"] <= 1.05 * two
    assert analysis.compilation.memory.host_temp == offloaded_bytes(layout.config, layout.plan) == alpha * units * unit
    if alpha > 0.25:
        assert_planned(fraction_of(alpha), "h100:1x8", analysis, report)
    assert_copies_are_hidden(analysis, but_for=exposed)


def test_a_pipeline_moves_a_chunk_in_every_tick_and_keeps_as_many_as_it_has_slots():
    """The query is named inside the layer, and has as many bytes as the input. Copies run also in ticks in which a rank
    has nothing to do, since ranks run one program; then a rank may go forward again over what stands in a slot, whose
    input comes back for it."""
    names = "layer_input", "query"
    analysis, report = compiled(True, *names)
    layout = StepLayout(config_of(True, *names), analysis.compilation.plan)
    chunk, program = LAYERS // 2 * 2 * INPUT, layout.program
    runs = [(loop.repeats * run.ticks, run.kinds) for loop in program.loops for run in loop.runs]
    ticks = {kind: sum(times for times, kinds in runs if kind in kinds) for kind in Kind}
    found = moved(report)
    assert found["to_host"] == ticks[Kind.FORWARD] * chunk
    again = found["from_host"] - ticks[Kind.BACKWARD] * chunk
    assert 0 <= again <= ticks[Kind.FORWARD] * INPUT and again % INPUT == 0
    assert (
        analysis.compilation.memory.host_temp
        == offloaded_bytes(layout.config, layout.plan)
        == program.slots["stash"] * chunk
    )


def test_the_reported_peak_is_the_devices_however_much_lies_on_the_host():
    """With more on the host than on the device, XLA gives the host's peak."""
    analysis, _ = compiled(False, "layer_input")
    memory = analysis.compilation.memory
    of_host = replace(analysis.compilation, memory=replace(memory, peak=3 * memory.total_allocation))
    report = make_report(replace(analysis, compilation=of_host), "small")
    assert report.peak_bytes == sum(size for kind, size in report.classes.items() if kind != "host")
    assert report.peak_bytes == pytest.approx(memory.peak, rel=1e-4)
