"""On hosts of several kinds stages are of one kind each, and as long as their GPUs are fast where that saves time."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from jaxpar.cost.hardware_model import HOPPER, hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.distributed import devices
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.layout import plan_file
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.planner.layout import Layout
from jaxpar.planner.machine import check_stage_kinds, cluster_at_hand
from jaxpar.planner.planning import screen
from jaxpar.planner.report.document import planned_file
from jaxpar.planner.report.explain import print_explanation
from jaxpar.planner.search.heterogeneous import StepTimer, stage_lengths
from jaxpar.planner.search.search import Candidate, Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.search.stage_groups import check_stages, stages_by_group
from jaxpar.planner.step_time.model import StepTime
from jaxpar.planner.step_time.update import ADAMW
from jaxpar.train import main as train
from jaxpar.units import GIGA
from tests.planner.spaces import choices, model_of
from tests.sentences import refused

LAYERS = 24
CONFIG = model_of(model={"layers": LAYERS, "embed": 4096, "heads": 32, "mlp": 16384, "vocab": 1024})
LAYOUT = Layout(pipe=2, fsdp=2, tensor=2, schedule="1f1b", zero=1)


def cluster_of(slower: float, hosts: int = 1, gpus: int = 4) -> Cluster:
    """Hosts of H100, and as many whose GPUs compute, and move memory, so many times slower."""
    fast = parse_cluster(f"h100:{hosts}x{gpus}").groups[0]
    peaks = MappingProxyType({name: peak / slower for name, peak in fast.gpu.peaks.items()})
    gpu = replace(fast.gpu, short="slow", peaks=peaks, hbm_bandwidth=fast.gpu.hbm_bandwidth / slower)
    groups = (replace(fast, name="fast"), replace(fast, name="slow", gpu=fast.gpu if slower == 1 else gpu))
    return Cluster("mixed", gpus, groups)


@pytest.fixture(autouse=True)
def half_a_hopper(monkeypatch: pytest.MonkeyPatch):
    """A GPU of half the speed reaches the same share of it."""
    monkeypatch.setattr("jaxpar.cost.hardware_model._MODELS", {"h100": HOPPER, "slow": HOPPER, "a100-80": HOPPER})


def in_proportion(timer: StepTimer, layout: Layout) -> tuple[tuple[int, ...], StepTime]:
    found = timer.in_proportion(layout)
    assert found is not None
    return found


def clock_of(cluster: Cluster) -> StepTimer:
    return StepTimer(CONFIG.model, 2048, 64, cluster, None, ADAMW)


def test_stages_are_as_long_as_their_devices_are_fast():
    assert stage_lengths(30, (1.0, 1.0, 2.0)) == (8, 7, 15) or stage_lengths(30, (1.0, 1.0, 2.0)) == (7, 8, 15)
    assert stage_lengths(4, (1.0, 100.0)) == (1, 3)
    lengths = stage_lengths(32, (3.0, 5.0))
    slowest = max(layers / speed for layers, speed in zip(lengths, (3.0, 5.0), strict=True))
    assert all(slowest <= max(first / 3.0, (32 - first) / 5.0) for first in range(1, 32))


def test_twice_the_speed_is_twice_the_layers_and_saves_what_the_simulator_states():
    timer = clock_of(cluster_of(2.0))
    layout = replace(LAYOUT, fsdp=4, tensor=1)
    lengths, step = in_proportion(timer, layout)
    assert lengths == (16, 8)
    schedule = make_schedule("1f1b", ranks=2, microbatches=32)
    of = lambda first, second: (
        simulate(
            schedule,
            Durations(forward=(first, 2 * second), backward=(2 * first, 4 * second), weight=0),
            mode="lockstep",
        ).makespan
    )
    once = lambda step: step.seconds - step.breakdown["data"] - step.breakdown["optimizer"]  # these stay as they are
    assert once(step) / once(timer.step(layout)) == pytest.approx(of(16, 8) / of(12, 12), rel=0.02)
    assert of(16, 8) / of(12, 12) == pytest.approx(2 / 3)
    assert step.seconds == pytest.approx(sum(step.breakdown.values()))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-uniform"])
def test_one_kind_may_be_slowest_in_layers_and_another_in_the_loss(schedule: str):
    """The fast GPUs take longer for 24 layers than the others for 8, which take longer for a head of many words."""
    model = replace(CONFIG.model, layers=32, vocab=128256)
    timer = replace(clock_of(cluster_of(2.0)), model=model)
    layout = replace(LAYOUT, schedule=schedule, stage_layers=(24, 8))
    kinds = list(zip((24, 8), timer.kinds(layout), strict=True))
    fast, slow = (timer.parts(2 * layers, layout, group).pieces for layers, group in kinds)
    assert 24 * fast.forward > 8 * slow.forward and fast.head < slow.head
    both = lambda name: (24 * getattr(fast, name), 8 * getattr(slow, name))
    message = simulate(
        make_schedule(schedule, ranks=2, microbatches=32),
        Durations(both("forward"), both("backward"), both("weight"), slow.head, max(fast.transfer, slow.transfer)),
        mode="lockstep",
    )
    step = timer.step(layout)
    after = sum(step.breakdown[name] for name in ("data", "optimizer", "stragglers"))
    assert step.seconds - after == pytest.approx(message.makespan, rel=1e-9)
    alone = [timer.of_kind(2 * layers, layout, group) for layers, group in kinds]
    assert step.seconds > 1.02 * max(time.seconds for time in alone)


def test_short_chunks_make_again_what_the_first_rows_do():
    """Of a map whose first eight layers make something again, chunks of eight layers run no others."""
    again, kept = (("mlp_input", "recompute"), ("mlp_hidden", "recompute")), (("mlp_input", "save"),)
    of_slow = lambda *runs: clock_of(cluster_of(2.0)).step(replace(LAYOUT, remat=runs, stage_layers=(16, 8)))
    first, every, last = of_slow((8, again), (8, kept)), of_slow((16, again)), of_slow((8, kept), (8, again))
    assert first.breakdown["recomputation"] == pytest.approx(every.breakdown["recomputation"]) != 0
    assert last.breakdown["recomputation"] == 0
    assert LAYOUT.first_layers(8) is LAYOUT


def test_rows_that_pad_take_part_in_what_comes_once_a_step():
    """All ranks reduce and update as many rows as the longest chunk has."""
    timer = clock_of(cluster_of(2.0))
    layout = replace(LAYOUT, stage_layers=(18, 6))
    whole, own = (timer.parts(2 * layers, layout, timer.kinds(layout)[1]).once for layers in (18, 6))
    step, unpadded = timer.step(layout), replace(timer, padding=False).step(layout)
    assert {name: step.breakdown[name] for name in whole} == pytest.approx(whole)
    assert whole["data"] > 2 * own["data"] and whole["optimizer"] > 2 * own["optimizer"]
    assert unpadded.seconds < step.seconds


@pytest.mark.parametrize("slower", [1.3, 2.3])
def test_no_other_lengths_are_faster(slower: float):
    timer = clock_of(cluster_of(slower))
    lengths, step = in_proportion(timer, LAYOUT)
    every = {n: timer.step(replace(LAYOUT, stage_layers=(n, LAYERS - n))).seconds for n in range(1, LAYERS)}
    assert step.seconds == min(every.values()) == every[lengths[0]]


def test_padded_stages_gain_nothing_and_stay_equal():
    assert clock_of(cluster_of(2.0)).lengths(LAYOUT) == (16, 8)
    for kept in ({"offload_fraction": 0.5}, {"zero": 3}, {"context": 2, "tensor": 1, "context_strategy": "ring"}):
        assert clock_of(cluster_of(2.0)).lengths(replace(LAYOUT, **kept)) is None


def test_alike_kinds_take_what_one_kind_takes():
    alike = cluster_of(1.0)
    assert not alike.is_heterogeneous
    one = clock_of(parse_cluster("h100:2x4"))
    assert clock_of(alike).step(LAYOUT) == one.step(LAYOUT)
    assert clock_of(alike).in_proportion(LAYOUT) is None


def test_every_kind_is_timed_on_its_own_network_and_edges_on_the_slower(tmp_path: Path):
    """InfiniBand and Ethernet: whoever reduces gradients over Ethernet waits; only the ends' sum over pipe crosses."""
    text = "gpus_per_host: 4\ngroups: {ib: {gpu: h100, hosts: 2}, eth: {gpu: h100, hosts: 2%s}}\n%s"
    clusters = {}
    for name, of_group, between in (
        ("ib", "", ""),
        ("ethernet", ", levels: {network: {bandwidth: 3}}", ""),
        ("apart", "", "between: {bandwidth: 3}\n"),
    ):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text % (of_group, between))
        clusters[name] = clock_of(parse_cluster(str(file)))
    assert clusters["apart"].cluster.between.bandwidth == 3 * GIGA
    layout = replace(LAYOUT, fsdp=4)
    ib, ethernet, apart = (clusters[name].step(layout) for name in ("ib", "ethernet", "apart"))
    assert ethernet.breakdown["data"] > 5 * ib.breakdown["data"]
    shards, stride = layout.fsdp, layout.devices // layout.pipe
    model = clusters["ib"].model
    assert model.vocab is not None
    ends = (1 if model.tied else 2) * 4.0 * model.vocab * model.embed / layout.tensor / shards
    over_pipe = [
        network_of(clusters[name].cluster, hardware_of(clusters[name].cluster.gpu)).stages(stride, layout.pipe)
        for name in ("apart", "ib")
    ]
    slower, faster = (ring.reduce(ends) for ring in over_pipe)
    assert slower > 5 * faster
    assert apart.breakdown["data"] - ib.breakdown["data"] == pytest.approx(slower - faster)
    assert ib.seconds < apart.seconds < ethernet.seconds
    across = replace(LAYOUT, pipe=1, fsdp=8)
    assert clusters["apart"].step(across).breakdown["data"] > 5 * ib.breakdown["data"]


@pytest.mark.parametrize("words", [8192, 32768])
def test_the_search_finds_what_timing_every_layout_finds(words: int):
    """With many words all wait for the loss of the slower GPUs, and uneven stages save less."""
    config = model_of(model={"layers": 4, "activation": "gelu", "vocab": words}, data={"batch_size": 8})
    space = Space(config, cluster_of(2.0, gpus=2), {"context": "1", "offload": "none"})
    search = Search(space, limit=2**30)
    found: list[Candidate] = []
    for group in space.groups():
        for choice in choices(space, group):
            even = search.activations(group, choice)
            uneven = search.timer.lengths(even.layout("none"))
            planners = [even, *([search.activations(group, replace(choice, stage_layers=uneven))] if uneven else [])]
            found += [Candidate(o.layout, search.timer.step(o.layout), o.memory) for k in planners for o in k.options()]
    wanted = sorted(found, key=lambda one: one.seconds)[:40]
    first_found = list(islice(search.by_time(), 40))
    assert [one.seconds for one in first_found] == pytest.approx([one.seconds for one in wanted], rel=1e-9)
    assert any(one.layout.stage_layers for one in first_found) is (words == 8192)


def test_who_holds_which_stages_is_reported():
    words = stages_by_group(cluster_of(2.0), 4, (0, 1, 2, 3, 0, 1, 2, 3), (4, 4, 2, 2, 4, 4, 2, 2))
    assert [(one.first, one.ranks, one.layers) for one in words] == [(0, 2, (8, 8)), (2, 2, (4, 4))]
    assert str(words[0]) == "stages 0 to 1: fast (1 host, H100-SXM-80GB), 8 layers each"
    assert not stages_by_group(parse_cluster("h100:2x4"), 4, (0, 1, 2, 3), (6, 6, 6, 6))


def devices_of(order: str) -> list[Any]:
    """Two GPUs of each host, of H100 and A100."""
    kinds = {"H": "NVIDIA H100 80GB HBM3", "A": "NVIDIA A100-SXM4-80GB"}
    return [
        SimpleNamespace(platform="gpu", device_kind=kinds[letter], process_index=host, id=2 * host + own)
        for host, letter in enumerate(order)
        for own in range(2)
    ]


def test_stages_must_be_on_the_gpus_that_they_were_planned_for():
    stages = [
        {"group": "new", "gpu": "H100-SXM-80GB", "first": 0, "layers": [12, 12]},
        {"group": "old", "gpu": "A100-SXM-80GB", "first": 2, "layers": [4, 4]},
    ]
    check_stage_kinds(stages, 4, devices_of("HHAA")[::-1])
    check_stage_kinds(stages[:1], 4, devices_of("AHHA"))
    for order, parts in (
        ("AAHH", ("stage 0", "planned for H100-SXM-80GB (group new)", "on A100-SXM-80GB")),
        ("HAHA", ("stage 1", "planned for H100-SXM-80GB (group new)", "on A100")),
    ):
        with refused(*parts):
            check_stage_kinds(stages, 4, devices_of(order))
    with refused("stage 0", "on A100-SXM-80GB and H100-SXM-80GB"):
        check_stage_kinds([stages[0], {**stages[1], "first": 1}], 2, devices_of("HAHA"))


def test_auto_takes_gpus_of_one_kind():
    with refused("auto", "one kind", "A100-SXM-80GB and H100"):
        cluster_at_hand(devices_of("HA"))


def test_train_refuses_hosts_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    groups = "{new: {gpu: h100, hosts: 1}, old: {gpu: a100-80, hosts: 1}}"
    (tmp_path / "two.yaml").write_text(f"gpus_per_host: 2\ngroups: {groups}\n")
    config = model_of(model={"layers": 4, "activation": "gelu"}, data={"batch_size": 8})
    planned = Search(Space(config, parse_cluster(str(tmp_path / "two.yaml")), {"pipe": "2"})).best(1)[0]
    plan_file.write(tmp_path / "plan.json", planned_file(replace(planned, order=(0, 1)), "two"))
    print_explanation(tmp_path / "plan.json", screen())
    assert "nodes      start processes on them in this order: 0 1" in capsys.readouterr().out
    monkeypatch.setattr(devices, "prepare_devices", lambda *_: None)
    monkeypatch.setattr(devices, "find_devices", lambda: devices_of("AH"))
    assert train(["--plan", str(tmp_path / "plan.json")]) == 2
    assert "stage 0 is planned for H100-SXM-80GB (group new)" in capsys.readouterr().err


def test_stages_that_no_kind_can_make_are_a_sentence():
    three = replace(cluster_of(2.0), groups=tuple(replace(g, hosts=3) for g in cluster_of(2.0).groups))
    check_stages(three, {"pipe": "6"})
    with refused("--fix pipe=48", "24 GPUs", "expected 2"):
        check_stages(three, {"pipe": "48"})
    with refused("--fix pipe=4", "2 x 4 GPUs of group fast", "of 5 GPUs", "expected 5, 10 or 20"):
        check_stages(replace(three, groups=(replace(three.groups[0], hosts=2), three.groups[1])), {"pipe": "4"})
