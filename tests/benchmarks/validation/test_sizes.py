"""Errors by the number of GPUs, and of runs whose tensor ranks are on several hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.validation.__main__ import main
from benchmarks.validation.judged import Judged
from benchmarks.validation.predict import judge
from benchmarks.validation.published import PUBLISHED, read_runs
from benchmarks.validation.report import report
from benchmarks.validation.sizes import ACROSS, SIZES, SizeErrors, by_size
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.model import StepTime

SMALL, MIDDLE, LARGE = SIZES
RUN = next(run for run in read_runs(PUBLISHED) if run.tokens_per_s_per_gpu)


def off(error: float, devices: int, tensor: int = 1, source: str = "a") -> Judged:
    """A run on hosts of eight, whose prediction is off by so much."""
    layout = Layout(fsdp=devices // tensor, tensor=tensor)
    return Judged(replace(RUN, source=source, tokens_per_s_per_gpu=100.0), layout, speed(100 * (1 + error)), None)


def speed(tokens: float) -> StepTime:
    return StepTime(1.0, {}, tokens, 0.3)


def test_runs_count_in_the_class_of_their_gpus():
    found = by_size([off(0.1, 8), off(0.3, 64), off(-0.2, 65), off(0.2, 512), off(0.5, 513), off(0.7, 4096)])
    assert {name: own.rows for name, own in found.items()} == {SMALL: 2, MIDDLE: 2, LARGE: 2}
    assert (found[SMALL].bias, found[MIDDLE].bias) == pytest.approx((0.2, 0.0))
    assert (found[LARGE].least, found[LARGE].largest) == pytest.approx((0.5, 0.7))
    assert found[MIDDLE].median_error == pytest.approx(0.2)
    assert (found[SMALL].coverage, found[LARGE].coverage) == (0.5, 0.0)


def test_tensor_ranks_of_several_hosts_are_a_class_besides():
    found = by_size([off(0.1, 64, tensor=8), off(-0.3, 64, tensor=16)])
    assert found[SMALL].rows == 2 and found[ACROSS].rows == 1 and found[ACROSS].bias == pytest.approx(-0.3)
    assert ACROSS not in by_size([off(0.1, 64, tensor=8)])


def test_each_source_counts_once_in_the_mean_over_sources():
    found = by_size([off(0.1, 8), off(0.1, 8), off(0.1, 8), off(0.5, 8, source="b")])[SMALL]
    assert (found.sources, found.bias) == (2, pytest.approx(0.1)) and found.source_bias == pytest.approx(0.3)


def test_the_report_has_them_as_text_and_json():
    found = report([off(0.1, 8), off(0.2, 2048, tensor=16)])
    keys = set(SizeErrors.__annotations__)
    assert set(found.as_json()["sizes"]) == {SMALL, LARGE, ACROSS}
    assert all(set(own) == keys for own in found.as_json()["sizes"].values())
    text = "\n".join(found.lines())
    assert f"{LARGE}  " in text and "+20.0%" in text and ACROSS in text and MIDDLE not in text


def test_the_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = PUBLISHED.read_text().splitlines()
    some = [line for line in lines[2:] if line.startswith(("megatron_sc21_t1", "korthikanti"))]
    path = tmp_path / "some.csv"
    path.write_text("\n".join([lines[1], *some]) + "\n")
    assert main(["--data", str(path), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert sum(written["sizes"][name]["rows"] for name in SIZES) == len(some) == written["overall"]["rows"]
    assert main(["--data", str(path)]) == 0
    assert f"{len(some)}" in (printed := capsys.readouterr().out) and all(name in printed for name in SIZES)


@pytest.mark.long
def test_large_runs_are_as_close_as_small_ones():
    """All published runs, with the parameters that were fitted to them."""
    found = by_size(judge(run) for run in read_runs(PUBLISHED) if run.tokens_per_s_per_gpu)
    assert [found[name].rows for name in SIZES] == [243, 139, 23] and found[ACROSS].rows == 6
    assert all(own.median_error <= 0.055 and abs(own.bias) <= 0.045 for own in found.values())
    assert max(abs(found[ACROSS].least), found[ACROSS].largest) <= 0.10
