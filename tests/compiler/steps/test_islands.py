"""The message between islands in programs compiled for two nodes of H100s, an island on each."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.program.memory.buffers import occupants
from jaxpar.compiler.report import Analysis, Report
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.optim.outer import message_bytes
from jaxpar.planner.search.islands import IslandSearch, search_of
from jaxpar.planner.stage_work import layout_of
from tests.compiler.inspected import inspected, report_of, wide

CLUSTER = "h100:2x8"
EVERY = LAYERS = 4
SHARDS = 8
CONFIG = {"layers": LAYERS, "embed": 512, "heads": 8, "mlp": 1536, "vocab": 1024}
NORMS = (2 * LAYERS + 1) * CONFIG["embed"]
DATA = {"sequence_length": 512, "batch_size": 64}


@cache
def compiled(wire: str | None = None, fragments: int = LAYERS, **more: Any) -> tuple[Any, Report]:
    islands = {"every": EVERY, "fragments": fragments, "wire": wire} | (more or {"delay": 1})
    config = wide(model=CONFIG, data=DATA, parallel={"islands": 2, "fsdp": SHARDS, "zero": 3}, islands=islands)
    analysis, report = inspected(config, CLUSTER)
    planned = estimate_memory(plan_for(config, parse_cluster(CLUSTER))[0], analysis.compilation.plan)
    assert report.classes["optimizer"] == planned.optimizer, "with the global weights and their momentum"
    assert analysis.compilation.memory.host_argument == planned.host
    return config, report


def between(report: Report, messages: int = 2) -> Any:
    """The messages that cross the border of nodes: of matrices, and of norms, which all ranks of an island have."""
    (row,) = [row for row in report.collectives if row.crosses_nodes]
    assert (row.axis, row.count) == ("islands", messages)
    return row


def predicted_bytes(config: Any) -> float:
    """Bytes between islands in a step, on average, as the planner counts them."""
    cluster = parse_cluster(CLUSTER)
    filled, plan = plan_for(config, cluster)
    search = search_of(filled, cluster)
    assert isinstance(search, IslandSearch)
    return search.timer.exchange.sent_bytes(search.timer.weights(layout_of(filled, plan, search)))


def slowly_connected(times: float) -> Cluster:
    """The nodes, with a link between them that is so many times slower than the usual one."""
    cluster = parse_cluster("h100:1x8")
    group = cluster.groups[0]
    slow = replace(group.network, bandwidth=group.network.bandwidth / times)
    return replace(cluster, groups=(group, replace(group, name="other")), written_between=slow)


def planned_wait(config: Any, cluster: Cluster) -> float:
    """Seconds that a plan's step waits for outer gradients, on average."""
    filled, plan = plan_for(config, cluster)
    search = search_of(filled, cluster)
    return search.timer.step(layout_of(filled, plan, search)).breakdown["islands"]


@pytest.mark.long
@pytest.mark.parametrize(("wire", "kind"), [(None, "all-reduce"), ("int4", "all-gather")])
def test_the_outer_message_runs_beside_the_step_that_carries_it(wire, kind):
    """The message has the size of the weights / H, in 4 bits an eighth of it; the step waits for it at most 2% of the
    time."""
    config, report = compiled(wire)
    row = between(report)
    weights = parameter_count(config.model, padded=True) / SHARDS
    assert row.bytes == pytest.approx(predicted_bytes(config), rel=5e-3), "as in a plan, which leaves out norms"
    assert row.kind == kind and row.bytes == pytest.approx(message_bytes(round(weights), wire) / EVERY, rel=0.02)
    assert row.exposed_s <= 0.02 * report.step_seconds


@pytest.mark.long
@pytest.mark.parametrize("fragments", [LAYERS, 2])
def test_a_message_over_a_slow_link_runs_beside_forward_and_backward(fragments):
    """The same program waits for the rest of it, and a plan counts with no less."""
    config, report = compiled(None, fragments=fragments)
    halves = slowly_connected(200)
    analysis, _ = inspected(config, CLUSTER)
    row = between(report_of(Analysis(analysis.compilation, halves)))
    assert row.seconds > report.step_seconds or fragments < EVERY
    steps = 1 if fragments == EVERY else 2  # with a branch for steps without a message, which the report adds
    assert row.seconds - row.exposed_s == pytest.approx(report.step_seconds / steps, rel=0.1)
    assert row.exposed_s <= planned_wait(config, halves) * EVERY / fragments <= row.seconds


@pytest.mark.long
def test_a_plan_counts_with_no_less_waiting_in_a_step_of_realistic_size():
    """XLA starts the message late in a step of 0.4 s, and hides 12.7 ms of it."""
    model = {"layers": LAYERS, "embed": 4096, "heads": 32, "mlp": 3 * 4096, "vocab": 1024}
    islands = {"every": EVERY, "fragments": LAYERS, "delay": 1}
    config = wide(
        model=model, data={"sequence_length": 4096, "batch_size": 64},
        parallel={"islands": 2, "fsdp": SHARDS, "zero": 3}, islands=islands,
    )  # fmt: skip
    analysis, report = inspected(config, CLUSTER)
    halves = slowly_connected(20)
    row = between(report_of(Analysis(analysis.compilation, halves)))
    assert report.step_seconds > 0.3 and row.exposed_s > 0.01
    assert row.exposed_s <= planned_wait(config, halves) <= row.seconds


@pytest.mark.long
def test_a_step_that_sends_a_fragment_now_and_then_has_the_same_message_in_a_branch():
    """Half of the weights, every second step."""
    config, report = compiled(None, fragments=2)
    row = between(report)
    weights = parameter_count(config.model, padded=True) / SHARDS
    assert row.bytes == pytest.approx(4 * weights / 2, rel=0.02) and row.exposed_s <= 0.02 * report.step_seconds


@pytest.mark.long
def test_without_a_delay_the_step_waits_for_a_message_in_a_branch():
    """All weights in one of four steps, which the report counts each time. Beside a delayed message, memory holds what
    is sent and the sum, and about another copy of the gradients."""
    config, report = compiled(None, fragments=1, delay=0)
    row = between(report, messages=1)  # XLA joins them
    assert row.bytes / EVERY == pytest.approx(predicted_bytes(config), rel=5e-3)
    assert row.exposed_s == pytest.approx(report.all_seconds_by_kind["islands"]) == pytest.approx(row.seconds)
    delayed, beside = compiled(None)
    analysis, _ = inspected(delayed, CLUSTER)
    live = [one.bytes for one in occupants(analysis.buffers, analysis.peak[0])]
    assert live.count(4 * (parameter_count(config.model, padded=True) - NORMS) // SHARDS // LAYERS) == 2
    more = beside.classes["temporaries"] - report.classes["temporaries"]
    one, other = (estimate_memory(*plan_for(own, parse_cluster(CLUSTER))) for own in (config, delayed))
    assert more == pytest.approx(other.temporaries - one.temporaries, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("fragments", [LAYERS, 1])
def test_the_message_of_an_eager_update_runs_beside_the_step_after_it(fragments):
    """It is of the outer gradient that the island applied before the step."""
    config, report = compiled(fragments=fragments, eager=True)
    row = between(report)
    weights = parameter_count(config.model, padded=True) / SHARDS
    assert row.bytes == pytest.approx(4 * weights / fragments, rel=0.02)
    assert row.exposed_s <= 0.02 * report.step_seconds


@pytest.mark.long
@pytest.mark.parametrize("fragments", [2, 1])
def test_outer_state_in_host_memory_leaves_the_device_and_the_message_beside_the_step(fragments):
    """No copy of it stays on the device."""
    config, report = compiled(fragments=fragments, delay=1, offload="host")
    _, resident = compiled(fragments=fragments, delay=1)
    weights = parameter_count(config.model, padded=True) / SHARDS
    assert resident.allocated_bytes - report.allocated_bytes == pytest.approx(8 * weights, rel=0.1)
    row = between(report)
    assert row.bytes == pytest.approx(4 * weights / fragments, rel=0.02)
    assert row.exposed_s <= 0.02 * report.step_seconds
