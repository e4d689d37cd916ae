"""Drawing answers by prediction: a token reads weights and cache; splits of the devices."""

import re
from argparse import Namespace
from dataclasses import replace
from io import StringIO
from typing import Any

import jax
import pytest
from rich.console import Console

from jaxpar.compiler.cluster_parts import part_of, training_part
from jaxpar.config import Config, ParallelConfig, load_config, with_overrides
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster
from jaxpar.inspect import _print_answers
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.validate import validate
from jaxpar.pages.units import seconds, size
from jaxpar.planner.drawing import Drawer
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.planning import planned_config
from jaxpar.planner.rollouts import Split, draws_here, of_run, print_splits, splits
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.step_time.common import Common
from jaxpar.rl.sampling.sampler import split_devices
from tests.sentences import refused

BANDWIDTH = 3.35e12 * 0.73
"""Bytes per second that elementwise kernels reach on an H100."""


def config_of(**rl: Any) -> Config:
    sizes = {"prompts": 8, "group": 8, "answer_tokens": 513} | rl
    sections = {
        "model.preset": "qwen3-0.6b", "model.vocab": 151936, "loss.name": "grpo", "data.source": "prompts",
        "data.path": "digits", "data.sequence_length": 1024, "data.batch_size": 64,
    } | {f"rl.{key}": value for key, value in sizes.items()}  # fmt: skip
    return load_config(None, [f"{key}={value}" for key, value in sections.items()])


def drawer_of(config: Config, cluster: str) -> Drawer:
    return Drawer(config, Common(config.model, 1024, 64, named_cluster(cluster)))


def test_a_token_takes_the_time_in_which_weights_and_cache_are_read():
    """28 layers of 8 heads of 128 keys and values, two bytes each, in pages of 256 tokens of 64 rows. A prompt of 511
    tokens fills 1, and each of its 8 rows has 3 more: 200, of a pool of 256. Rows grow from 512 to 1025 tokens."""
    config = config_of()
    made = drawer_of(config, "h100:1x1").drawing(Layout())
    page = 256 * 28 * 2 * 8 * 128 * 2
    assert made.bytes.cache == 256 * page and made.bytes.prefixes == 8 * 2 * page
    cache = 64 * 3.5 * page
    assert made.bytes.read == pytest.approx(cache, rel=0.01)
    weights = 2 * parameter_count(config.model, padded=True)
    assert made.bytes.weights == pytest.approx(weights, rel=0.01)
    assert (weights + cache) / BANDWIDTH < made.token < 1.25 * (weights + cache) / BANDWIDTH
    assert made.seconds == pytest.approx(512 * made.token, rel=0.05), "prompts are read once for 8 answers"
    wide = drawer_of(config_of(group=32), "h100:1x1").drawing(Layout())
    assert wide.token - made.token == pytest.approx(3 * cache / BANDWIDTH, rel=0.2)


def test_weights_that_are_sharded_are_gathered_at_each_token():
    drawer = drawer_of(config_of(), "h100:1x8")
    sharded, whole = drawer.drawing(Layout(fsdp=8, zero=3)), drawer.drawing(Layout(fsdp=8))
    assert sharded.bytes.weights < 0.2 * whole.bytes.weights
    least = 28 * 3.4e-5
    assert sharded.token - whole.token > least, "a message for each layer"


@pytest.mark.parametrize(
    ("asked", "layout"),
    [
        ({}, {(fsdp, 1, 8 // fsdp) for fsdp in (1, 2, 4, 8)}),
        ({"tensor": 2}, {(4, 1, 2)}),
        ({"context": 2}, {(4, 2, 1)}),
        ({"context": 2, "tensor": 2, "fsdp": 2}, {(2, 2, 2)}),
        ({"fsdp": 2}, set()),
        ({"tensor": 3}, set()),
    ],
)
def test_a_sampler_has_the_layout_that_is_asked_for(asked: dict[str, int], layout: set[tuple[int, ...]]):
    config = config_of(**{f"sampler.{axis}": ranks for axis, ranks in asked.items()})
    layouts = [one.layout for one in drawer_of(config, "h100:1x8").drawings()]
    assert {(one.fsdp, one.context, one.tensor) for one in layouts} == layout


def test_a_layout_that_splits_nothing_evenly_is_refused():
    config = config_of(**{"sampler.tensor": 3})
    with refused("rl.sampler: tensor 3", "expected sizes that divide"):
        of_run(replace(config, parallel=ParallelConfig(fsdp=8)), named_cluster("h100:1x8"))


def test_a_server_draws_on_no_device_of_the_cluster():
    assert draws_here(config_of()) and not draws_here(config_of(**{"sampler.url": "http://x", "sampler.folder": "a"}))


@pytest.mark.long
def test_the_devices_are_split_where_both_sides_take_as_long():
    config = planned_config(config_of(answer_tokens=900))
    cluster = named_cluster("h100:1x8")
    search = Search(Space(config, cluster))
    found = splits(config, cluster, search, search.best(1)[0])
    assert all(one.fits for one in found) and [one.seconds for one in found] == sorted(one.seconds for one in found)
    for one in found:
        drawn = one.drawing.seconds + one.update
        assert one.seconds == (max(drawn, one.learning) if one.sampler else drawn + one.learning)
        assert 0 <= one.waiting < 1 and (one.waiting > 0) == (one.sampler > 0)
        assert one.trained.cluster.devices == 8 - one.sampler
    assert {one.sampler for one in found} == {0, 1, 2, 3, 4, 5, 6, 7} & {one.sampler for one in found}
    assert any(setting.startswith("rl.sampler.devices=") for one in found for setting in one.settings("sync"))


def test_devices_of_a_sampler_are_whole_hosts_or_a_share_of_one():
    config = config_of(**{"sampler.devices": 8})
    assert training_part(config, named_cluster("h100:4x8")).devices == 24
    assert part_of(named_cluster("h100:1x8"), 3).devices == 3
    with refused("rl.sampler.devices", "whole hosts of 8"):
        part_of(named_cluster("h100:4x8"), 12)


def printed_settings(ways: list[Split], mode: str, cluster: Cluster) -> list[str]:
    out = StringIO()
    print_splits(ways, mode, cluster, Console(file=out, width=500))
    return re.findall(r"--set (\S+)", out.getvalue())


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["h100:1x4", "h100:2x2"])
def test_a_run_takes_the_settings_of_each_split_and_its_time(monkeypatch: pytest.MonkeyPatch, cluster: str):
    """Whichever `rl.mode` it had before. A host has a process, of which several draw in turns."""
    where = named_cluster(cluster)
    config = planned_config(config_of())
    search = Search(Space(config, where))
    found = splits(config, where, search, search.best(1)[0])
    assert {one.sampler > 0 for one in found} == {False, where.hosts == 1}
    assert {one.copies for one in found} == ({1, 2, 3} if where.hosts == 1 else {1, 2})
    monkeypatch.setattr(jax, "process_count", lambda: where.hosts)
    devices: list[Any] = list(range(where.devices))
    for mode in (["rl.mode=sync"], ["rl.mode=one_step_off"], ["rl.mode=async", "rl.staleness=2"]):
        for one in found:
            had = with_overrides(one.trained.config, mode)
            settings = printed_settings([one, *found], had.rl.mode, where)
            assert settings == one.settings(had.rl.mode) != []
            asked = with_overrides(had, settings)
            validate(asked)
            trainers, samplers = split_devices(asked, devices)
            assert (len(trainers), len(samplers)) == (one.trained.cluster.devices, one.sampler)
            (again,) = of_run(asked, where)
            assert (again.sampler, again.copies, again.drawing.layout) == (one.sampler, one.copies, one.drawing.layout)
            assert again.seconds == pytest.approx(one.seconds, rel=1e-3)


def test_devices_apart_are_refused_in_a_job_of_several_processes(monkeypatch: pytest.MonkeyPatch):
    devices: list[Any] = list(range(4))
    config = replace(config_of(**{"sampler.devices": 1}), parallel=ParallelConfig(fsdp=3))
    assert split_devices(config, devices) == ([0, 1, 2], [3])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with refused("rl.sampler.devices: 1 in a job of 2 processes"):
        split_devices(config, devices)


@pytest.mark.long
def test_inspect_prints_time_and_memory_of_both_meshes(capsys: pytest.CaptureFixture[str]):
    """Qwen3-8B: 8 of 32 GPUs draw, 24 train; who waits, and for which share of the devices' time."""
    keys = {
        "model.preset": "qwen3-8b", "model.vocab": 151936, "loss.name": "grpo", "data.source": "prompts",
        "data.path": "digits", "data.sequence_length": 1024, "data.batch_size": 24, "rl.prompts": 8, "rl.group": 8,
        "rl.answer_tokens": 512, "rl.mode": "one_step_off", "rl.sampler.devices": 8, "parallel.fsdp": 24,
    }  # fmt: skip
    overrides = [f"{key}={value}" for key, value in keys.items()]
    _print_answers(Namespace(config=None, overrides=overrides, cluster="h100:4x8"))
    (one,) = of_run(load_config(None, overrides), named_cluster("h100:4x8"))
    shown = " ".join(capsys.readouterr().out.split())
    memory = f"{size(one.drawing_bytes)}, {size(one.trained.candidate.memory.device)}"
    for words in (
        "8 GPUs",
        "fsdp 24",
        seconds(one.drawing.seconds),
        seconds(one.learning),
        f"{one.waiting:.0%}",
        memory,
    ):
        assert words in shown
    assert one.trained.cluster.devices == 24 and one.fits and 0 < one.waiting < 1
