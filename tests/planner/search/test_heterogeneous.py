"""On hosts of several kinds stages are of one kind each, and as long as their GPUs are fast where that saves time."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from jaxpar.compiler.report.screen import screen
from jaxpar.config import Config
from jaxpar.config.schema import OptimizerConfig
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.cost.layout import Layout
from jaxpar.distributed import devices
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.layout import plan_file
from jaxpar.layout.choices.matmul_quantization import matmul_quantization
from jaxpar.layout.choices.pipeline import even_chunks
from jaxpar.pages.units import GIGA
from jaxpar.planner.machine import cluster_at_hand
from jaxpar.planner.report.explain import print_explanation
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.search.stage_groups import check_stages
from jaxpar.planner.step_time.model import StepTime
from jaxpar.planner.step_time.update import update_of
from jaxpar.planner.verified import reason_against
from jaxpar.train import main as train
from tests.planner.spaces import everything, model_of
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
    lengths = timer.lengths(layout)
    assert lengths is not None
    return lengths, timer.step(replace(layout, stage_layers=lengths))


def clock_of(cluster: Cluster, config: Config = CONFIG) -> StepTimer:
    return StepTimer(config.model, 2048, 64, cluster, None, update_of(config))


def test_twice_the_speed_is_twice_the_layers_and_saves_a_third():
    timer = clock_of(cluster_of(2.0))
    layout = replace(LAYOUT, fsdp=4, tensor=1)
    lengths, step = in_proportion(timer, layout)
    assert lengths == (16, 8)
    once = lambda step: step.seconds - step.breakdown["data"] - step.breakdown["optimizer"]  # these stay as they are
    assert once(step) / once(timer.step(layout)) == pytest.approx(2 / 3, rel=0.02)
    assert step.seconds == pytest.approx(sum(step.breakdown.values()))


@pytest.mark.parametrize("slower", [1.3, 2.3])
def test_no_other_lengths_are_faster(slower: float):
    timer = clock_of(cluster_of(slower))
    lengths, step = in_proportion(timer, LAYOUT)
    every = {n: timer.step(replace(LAYOUT, stage_layers=(n, LAYERS - n))).seconds for n in range(1, LAYERS)}
    assert step.seconds == min(every.values()) == every[lengths[0]]


def test_every_kind_is_timed_on_its_own_network_and_edges_on_the_slower(tmp_path: Path):
    """InfiniBand and Ethernet: whoever reduces gradients over Ethernet waits, and less where only stages cross it."""
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
    assert ib.seconds < apart.seconds < ethernet.seconds
    across = replace(LAYOUT, pipe=1, fsdp=8)
    assert clusters["apart"].step(across).breakdown["data"] > 5 * ib.breakdown["data"]


@pytest.mark.parametrize("words", [8192, 32768])
def test_the_search_finds_what_timing_every_layout_finds(words: int):
    """With many words all wait for the loss of the slower GPUs, and uneven stages save less."""
    config = model_of(model={"layers": 4, "activation": "gelu", "vocab": words}, data={"batch_size": 8})
    space = Space(config, cluster_of(2.0, gpus=2), {"context": "1", "offload": "none"})
    search = Search(space, limit=2**30)
    wanted = everything(search)[:40]
    first_found = list(islice(search.by_time(), 40))
    assert [one.seconds for one in first_found] == pytest.approx([one.seconds for one in wanted], rel=1e-9)
    assert any(one.layout.stage_layers for one in first_found) is (words == 8192)


def devices_of(order: str) -> list[Any]:
    """Two GPUs of each host, of H100 and A100."""
    kinds = {"H": "NVIDIA H100 80GB HBM3", "A": "NVIDIA A100-SXM4-80GB"}
    return [
        SimpleNamespace(platform="gpu", device_kind=kinds[letter], process_index=host, id=2 * host + own)
        for host, letter in enumerate(order)
        for own in range(2)
    ]


def test_stages_on_gpus_of_two_kinds_are_not_verified():
    """A compiled program would be timed for the slower kind in all stages."""
    assert "one kind of GPU, and mixed has 2" in reason_against(cluster_of(2.0), CONFIG.islands)


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
    plan_file.write(tmp_path / "plan.json", replace(planned, order=(0, 1)).file("two"))
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


def test_short_chunks_make_again_what_the_first_rows_do():
    """Chunks of eight layers run no others of a map whose first eight layers recompute something."""
    again, kept = (("mlp_input", "recompute"), ("mlp_hidden", "recompute")), (("mlp_input", "save"),)
    of_slow = lambda *runs: clock_of(cluster_of(2.0)).step(replace(LAYOUT, remat=runs, stage_layers=(16, 8)))
    first, every, last = of_slow((8, again), (8, kept)), of_slow((16, again)), of_slow((8, kept), (8, again))
    assert first.breakdown["recomputation"] == pytest.approx(every.breakdown["recomputation"]) != 0
    assert last.breakdown["recomputation"] == 0
    assert LAYOUT.first_layers(8) is LAYOUT


@pytest.mark.parametrize("option", ["adamw", "muon", "fp8_block"])
def test_rows_that_pad_take_part_in_what_comes_once_a_step(option: str):
    """All ranks gather, reduce and update as many rows as the longest chunk has: those of a model with such stages."""
    muon = OptimizerConfig("muon") if option == "muon" else CONFIG.optimizer
    precision = replace(CONFIG.precision, matmul="fp8_block" if option == "fp8_block" else None)
    config, cluster = replace(CONFIG, optimizer=muon, precision=precision), cluster_of(2.0)
    codes = matmul_quantization(config, cluster.gpu, "none", None, ("all",) * 16, 2)
    equal = replace(LAYOUT, matmul_quantization=codes)

    def once(layers: int) -> Mapping[str, float]:
        timer = clock_of(cluster, replace(config, model=replace(config.model, layers=layers)))
        return timer.steps(cluster.groups[1]).step(equal).once

    longest, shorter = once(2 * 16), once(LAYERS)
    breakdown = clock_of(cluster, config).step(replace(equal, stage_layers=(16, 8))).breakdown
    assert {name: breakdown[name] for name in longest} == pytest.approx(longest)
    assert all(1.2 * shorter[name] < longest[name] < 1.5 * shorter[name] for name in longest), "16 layers for 12"


def test_lengths_that_are_named_cost_what_the_same_lengths_do():
    """Ten layers in four stages, so that two stages have a row that pads."""
    timer = clock_of(cluster_of(2.0), replace(CONFIG, model=replace(CONFIG.model, layers=10)))
    layout = replace(LAYOUT, pipe=4, tensor=1)
    named = timer.step(replace(layout, stage_layers=even_chunks(10, 4)))
    assert timer.step(layout).breakdown == pytest.approx(named.breakdown)


def test_padded_stages_gain_nothing_and_stay_equal():
    assert clock_of(cluster_of(2.0)).lengths(LAYOUT) == (16, 8)
    for kept in ({"offload_fraction": 0.5}, {"zero": 3}, {"context": 2, "tensor": 1, "context_strategy": "ring"}):
        assert clock_of(cluster_of(2.0)).lengths(replace(LAYOUT, **kept)) is None
