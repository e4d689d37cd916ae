"""Layouts for islands: one island is planned, and exchanges of outer gradients are added to its step."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpar.compiler.report.screen import screen
from jaxpar.config import Config, DataConfig, config_to_yaml
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.optim.outer import message_bytes
from jaxpar.pages.units import GIGA
from jaxpar.plan import main as plan
from jaxpar.planner.failures import STATE, state_per_parameter
from jaxpar.planner.islands import EVERY, MOST_WASTED, has_slow_link, offers, print_offers
from jaxpar.planner.jobs.job import planned_curve
from jaxpar.planner.machine import cpu_cluster
from jaxpar.planner.planning import best_plan, planned_config
from jaxpar.planner.search.islands import IslandSearch, island_of, search_of
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.settings import plan_on
from jaxpar.planner.stage_work import layout_of, stage_work
from jaxpar.planner.verified import reason_against
from tests.planner.spaces import model_of
from tests.sentences import refused

FIXED = {"tensor": "1", "context": "1", "remat": "none", "offload": "none"}
SHARDED = Layout(fsdp=8, zero=3)


def islands_of(number: int = 2, steps: int = 2000, **asked: Any) -> Config:
    """A run on islands that exchange weights every 10 steps."""
    return model_of(run={"steps": steps}, parallel={"islands": number}, islands={"every": 10, **asked})


def searched(config: Config, cluster: Cluster, **fixed: str) -> IslandSearch:
    search = search_of(planned_config(config), cluster, FIXED | fixed)
    assert isinstance(search, IslandSearch)
    return search


def halves(gigabytes: float | None) -> Cluster:
    """Two groups of one host of 8 GPUs, with such a link between them."""
    cluster = parse_cluster("h100:1x8")
    group = cluster.groups[0]
    link = None if gigabytes is None else replace(group.network, bandwidth=gigabytes * GIGA)
    return replace(cluster, groups=(replace(group, name="east"), replace(group, name="west")), written_between=link)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("wire", [None, "int8", "int4"])
def test_a_device_sends_its_weights_once_in_a_period(wire: str | None, number: int):
    """A sum sends 2 (k - 1) / k of them in float32, codes k - 1 times; fragments are together as much."""
    config = islands_of(number, wire=wire)
    timer = searched(config, parse_cluster(f"h100:{number}x8")).timer
    weights = parameter_count(config.model, padded=True) / 8
    assert timer.weights(SHARDED) == pytest.approx(weights, rel=1e-3), "but for norms"
    copies = 2 * (number - 1) / number if wire is None else number - 1
    expected = copies * message_bytes(round(weights), wire) / 10
    assert timer.exchange.sent_bytes(weights) == pytest.approx(expected, rel=1e-4)
    fragments = replace(timer.exchange, config=replace(config.islands, fragments=5))
    assert fragments.sent_bytes(weights) == pytest.approx(expected, rel=1e-3)


def test_a_step_takes_its_share_of_a_message_that_is_waited_for():
    """The message is a period's bytes over the link between the groups; the update is what it moves in memory."""
    timer = searched(islands_of(), halves(0.5)).timer
    weights, alone, step = timer.weights(SHARDED), timer.alone(SHARDED), timer.step(SHARDED)
    link = 0.5 * GIGA * timer.reached(timer.cluster).network_share
    assert timer.exchange.message(weights) == pytest.approx(4 * weights / link, rel=1e-2)
    assert step.breakdown["islands"] == pytest.approx(timer.exchange.message(weights) / 10)
    update = step.breakdown["optimizer"] - alone.breakdown["optimizer"]
    assert update == pytest.approx(timer.exchange.device.bytes_seconds(44 * weights) / 10)
    assert step.seconds == pytest.approx(alone.seconds + step.breakdown["islands"] + update)
    assert step.seconds == pytest.approx(sum(step.breakdown.values()))
    assert step.program.seconds_by_kind["islands"] == step.breakdown["islands"]
    assert step.mfu / alone.mfu == pytest.approx(alone.seconds / step.seconds)


@pytest.mark.parametrize("gigabytes", [50.0, 5.0])
def test_a_delayed_message_is_hidden_by_forward_and_backward(gigabytes: float):
    """Also over a slower link than the GPU's usual network; compute beside it loses a little. A longer delay hides no
    more."""
    timer = searched(islands_of(delay=2, fragments=5), halves(gigabytes)).timer
    weights, alone = timer.weights(SHARDED), timer.alone(SHARDED)
    message = timer.exchange.message(weights)
    assert message < 0.5 * alone.seconds, "forward and backward are longer"
    expected = 0.5 * timer.exchange.slowdown * message
    assert timer.step(SHARDED).breakdown["islands"] == pytest.approx(expected)


def test_a_message_is_hidden_by_no_more_than_forward_and_backward():
    config = islands_of(delay=2, fragments=5)
    timer = searched(replace(config, data=replace(config.data, sequence_length=1024)), halves(50.0)).timer
    weights, alone = timer.weights(SHARDED), timer.alone(SHARDED)
    many = 1000 * weights
    beside = alone.seconds - alone.breakdown["optimizer"] - alone.breakdown["stragglers"]
    message = timer.exchange.message(many)
    expected = 0.5 * (message - beside + timer.exchange.slowdown * beside)
    assert timer.exchange.joined(alone, many).breakdown["islands"] == pytest.approx(expected)
    longer = searched(replace(islands_of(delay=2), data=DataConfig(batch_size=1024)), halves(50.0)).timer
    assert longer.alone(SHARDED).seconds > 0.1
    assert longer.exchange.hidden_by(longer.alone(SHARDED)) == 0.012, "the least that compiled steps hid"


def test_plans_are_those_of_an_island_and_can_be_run():
    """With the memory of the run, global weights and momentum included, and what links inside an island reach."""
    cluster = halves(0.5)
    search = searched(islands_of(), cluster)
    best = search.best(1)[0]
    assert (best.plan.axes.islands, best.plan.axes.devices, best.cluster) == (2, 16, cluster)
    assert best.candidate.memory == estimate_memory(best.config, best.plan)
    assert plan_on(best.config, cluster) == (best.config, best.plan)
    assert all(one.layout.islands == 2 for one in search.evaluated)
    rows = best.config.data.batch_size
    assert best.plan.microbatches == best.candidate.layout.microbatches(rows)
    half = replace(planned_config(model_of()), data=replace(best.config.data, batch_size=rows // 2))
    alone = Search(Space(half, parse_cluster("h100:1x8"), FIXED)).best(1)[0]
    layout = replace(best.candidate.layout, islands=1)
    assert search.timer.alone(layout).seconds == pytest.approx(alone.candidate.seconds)
    without = estimate_memory(alone.config, alone.plan).optimizer
    weights = parameter_count(best.config.model, padded=True) / 8
    assert best.candidate.memory.optimizer - without == pytest.approx(8 * weights, rel=0.01)
    assert best.file("two").predicted["stages"] == []
    written = layout_of(best.config, best.plan, search)  # as of a run that is compared with its prediction
    assert search_of(best.config, cluster).timer.step(written).seconds == pytest.approx(best.candidate.seconds)


def test_plans_have_room_for_the_codes_of_all_islands():
    """A layout that fits with the message of one island alone is none."""
    config, cluster = islands_of(8, delay=1, wire="int8"), parse_cluster("h100:8x8")
    config = replace(config, data=replace(config.data, batch_size=64))
    roomy, tight = searched(config, cluster), searched(config, cluster)
    best = roomy.best(1)[0].candidate
    tight.limit = best.memory.device - 1
    other = tight.best(1)[0].candidate
    assert other.memory.device <= tight.limit and other.layout != best.layout
    assert not tight.effort.declined, "the search itself knows"


def test_a_layout_that_islands_exclude_is_no_plan():
    """Chunks of layers of several on a rank, and state on the host."""
    with refused("islands.every: 10", "parallel.virtual_stages"):
        searched(islands_of(), parse_cluster("h100:2x8"), pipe="2", virtual_stages="2").best(1)
    with refused("islands.every: 10", "memory.optimizer_offload"):
        searched(islands_of(), parse_cluster("h100:2x8"), offload="optimizer", pipe="1").best(1)


@pytest.mark.parametrize("number", [1, 2])
def test_auto_plans_inside_an_island(number: int):
    config = islands_of(number)
    best = best_plan(replace(config, parallel=replace(config.parallel, auto=True)), cpu_cluster(4))
    assert (best.plan.axes.islands, best.plan.axes.devices) == (number, 4)
    assert best.config.islands == config.islands


def test_a_slow_link_suggests_islands_and_chooses_none():
    """Each row has the least period that wastes little enough, and waits less than data parallelism."""
    cluster, config = halves(0.2), planned_config(model_of(run={"steps": 5000}, data={"batch_size": 256}))
    search = search_of(config, cluster, FIXED)
    assert has_slow_link(search) and not has_slow_link(search_of(config, halves(None), FIXED))
    assert all(one.plan.axes.islands == 1 for one in search.best(3))
    found = offers(search)
    assert found.across is not None and not found.refused
    exact, int8, int4, *delayed = [row.exchange.every for row in found.rows]
    assert exact > int8 > int4
    assert delayed[0] <= exact and delayed[1] < int8 and delayed[2] < int4, "a part of each message is hidden"
    for row in found.rows:
        time = row.candidate.time
        assert row.wasted <= MOST_WASTED and time.seconds < 0.8 * found.across.seconds
        assert row.wasted == pytest.approx(time.breakdown["islands"] / time.seconds, abs=0.01)
        shorter = [every for every in EVERY if row.exchange.delay < every < row.exchange.every]
        for every in shorter[-1:]:
            asked = replace(row.exchange, every=every, fragments=1)
            run = replace(config, parallel=replace(config.parallel, islands=2), islands=asked)
            timer = searched(run, cluster).timer
            layout = replace(row.candidate.layout, islands=1)
            assert timer.alone(layout).seconds < (1 - MOST_WASTED) * timer.step(layout).seconds
    stated = replace(config, parallel=replace(config.parallel, islands=2), islands=found.rows[-1].exchange)
    planned = searched(stated, cluster).best(1)[0]
    assert planned.candidate.seconds == pytest.approx(found.rows[-1].candidate.seconds, rel=0.02)
    slower = offers(search, 2.0).rows[0]
    assert slower.candidate.seconds == pytest.approx(2 * found.rows[0].candidate.seconds)
    assert (slower.exchange, slower.wasted) == (found.rows[0].exchange, found.rows[0].wasted)


def test_islands_that_a_run_cannot_have_are_left_out_with_a_reason(capsys: pytest.CaptureFixture[str]):
    search = search_of(planned_config(model_of(run={"steps": 2})), halves(0.001), FIXED)
    print_offers(offers(search), screen())
    assert "No islands: exchanges take more than 5% of the step, however rare" in capsys.readouterr().out
    config = planned_config(model_of(run={"steps": 20}, optimizer={"ema": 0.9}))
    print_offers(offers(search_of(config, halves(0.5), FIXED)), screen())
    assert "No islands: islands.every: 20 excludes optimizer.ema: 0.9" in capsys.readouterr().out


def test_islands_have_whole_hosts_or_even_parts_of_one():
    four = parse_cluster("h100:4x8")
    assert (island_of(four, 2).hosts, island_of(four, 2).gpus_per_host) == (2, 8)
    part = island_of(four, 16)
    assert (part.hosts, part.gpus_per_host, part.host_limit()) == (1, 2, four.host_limit())
    slow = replace(halves(0.5), groups=(*halves(0.5).groups[:1], four.groups[0]))
    slow = replace(slow, groups=(slow.groups[0], replace(halves(0.5).groups[1], network=halves(0.5).between)))
    assert island_of(slow, 2).groups[0].network == slow.between, "all wait for the slowest"
    for number in (3, 64):
        with refused(f"parallel.islands: {number}", "32 GPUs", "full hosts"):
            island_of(four, number)
    groups = (four.groups[0], replace(four.groups[0], hosts=2))
    with refused("parallel.islands: 2", "several groups"):
        island_of(replace(four, groups=groups), 2)
    unlike = (four.groups[0], parse_cluster("a100-80:4x8").groups[0])
    with refused("parallel.islands: 2", "unlike GPUs", "A100", "islands.folder"):
        island_of(replace(four, groups=unlike), 2)
    with refused("parallel.islands: 2", "bandwidths", "nodes.csv"):
        island_of(replace(four, bandwidth_file=Path("nodes.csv")), 2)


def test_the_schedule_of_islands_is_that_of_one(tmp_path: Path):
    """Layers, links and microbatches of an island; `schedule --config` draws it."""
    pipe = {"pipe": 2, "fsdp": 2, "zero": 1, "microbatches": 4, "schedule": "1f1b"}
    two = model_of(run={"steps": 20}, parallel={**pipe, "islands": 2}, islands={"every": 10})
    one = model_of(parallel=pipe, data={"batch_size": two.data.batch_size // 2})
    files = [tmp_path / "two.yaml", tmp_path / "one.yaml"]
    for file, config in zip(files, (two, one), strict=True):
        file.write_text(config_to_yaml(config))
    assert stage_work(files[0], [], "h100:2x4") == stage_work(files[1], [], "h100:1x4")


@pytest.mark.parametrize("keys", [{"delay": 1}, {"eager": True}, {}])
def test_programs_that_exchange_in_some_steps_alone_are_not_verified(keys: dict[str, Any]):
    """The work of a branch of the program is counted in each step."""
    cluster, islands = parse_cluster("h100:2x8"), islands_of(**keys).islands
    assert "islands.fragments: 10" in reason_against(cluster, islands)
    assert not reason_against(cluster, replace(islands, fragments=10))
    assert not reason_against(cluster, Config().islands)


def test_eager_updates_and_state_on_the_host_take_longer_to_update():
    times = []
    for keys in ({}, {"eager": True}, {"offload": "host"}, {"eager": True, "offload": "host"}):
        config = islands_of(**keys)
        times.append(searched(config, parse_cluster("h100:2x8")).timer.step(SHARDED).breakdown["optimizer"])
    assert times == sorted(times) and len(set(times)) == 4


def test_plan_prints_the_exchanges_of_stated_islands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "two.yaml"
    file.write_text(config_to_yaml(islands_of(wire="int4")))
    fixed = [part for name, value in FIXED.items() for part in ("--fix", f"{name}={value}")]
    asked = ["--config", str(file), "--cluster", "h100:2x8", *fixed, "--out", str(tmp_path / "plan.json")]
    assert plan([*asked, "--no-verify"]) == 0
    printed = capsys.readouterr().out
    for words in ("islands 2 x fsdp 8", "2 islands of 8 GPUs", "in 1 of 10 steps a message", "exposed: "):
        assert words in printed
    assert plan(["explain", str(tmp_path / "plan.json")]) == 0
    assert "islands 2 x fsdp 8" in capsys.readouterr().out


def test_a_budget_and_a_share_of_a_cluster_are_of_stated_islands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Numbers of GPUs that islands divide have their layouts, and checkpoints the state of each island."""
    config = islands_of()
    file = tmp_path / "two.yaml"
    file.write_text(config_to_yaml(config))
    asked = ["--cluster", "h100:1x8", "--tokens", "1e9", "--gpus", "1:2", "--price", "1", "--json"]
    assert plan(["budget", "--config", str(file), *asked]) == 0
    budget = json.loads(capsys.readouterr().out)
    (cost,) = budget["costs"]
    assert plan(["budget", "--config", str(file), *asked[:-1]]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no slower link" in printed and "another loss" in printed
    assert "islands 2" in cost["layout"] and "parallel.islands: 2" in budget["without_layout"]["1"]
    two = parse_cluster("h100:1x2")
    best = search_of(planned_config(config), two).best(1)[0].candidate
    assert cost["tokens_per_s"] == pytest.approx(2 * best.time.tokens_per_s_per_gpu)
    curve = planned_curve(planned_config(config), two)
    assert list(curve.points) == [2] and "islands 2" in curve.points[2].layout
    assert state_per_parameter(config) == 2 * STATE + 8 and state_per_parameter(model_of()) == STATE
