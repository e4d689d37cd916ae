"""Tables and pictures of runs that were left out, and their place in docs/planner.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.validation.__main__ import main
from benchmarks.validation.collectives import LARGE, read_collectives
from benchmarks.validation.errors import Anchored
from benchmarks.validation.fit import CURRENT, as_unknown, slopes
from benchmarks.validation.judged import UNKNOWN, Judged
from benchmarks.validation.leave_out import LeftOut, beside_a_run, generations_left_out, sources_left_out, spread_of
from benchmarks.validation.page import PAGE
from benchmarks.validation.plot import BARS, bars_of, scatter
from benchmarks.validation.published import PUBLISHED, read_runs
from benchmarks.validation.residuals import inputs, residuals_text
from benchmarks.validation.tables import (
    ONE_PROGRAM_ROW,
    cited_table,
    collectives_table,
    left_out_table,
    order_table,
    wrapped,
)
from jaxpar.planner.step_time.interval import KNOWN, ONE_PROGRAM, RESIDUALS
from jaxpar.planner.step_time.model import StepTime


def test_a_measured_run_corrects_those_of_its_own_software_alone():
    """Two kinds of software in one source, each off by a factor of its own: an anchor halves the error of its kind, and
    does not touch the other's."""
    others = {"b": slower("x", 1.1, 1.2, 1.3), "c": slower("x", 0.9, 0.8, 0.7)}
    two = {"a": [*slower("slow", 2.0, 2.0), *slower("fast", 0.5, 0.5)], **others}
    found = [one.error for one in beside_a_run(two, two)["a"]]
    assert len(found) == 4, "each run beside the other of its kind"
    assert all(0 < error < 1.0 for error in found[:2]) and all(-0.5 < error < 0 for error in found[2:])
    alone = {"a": [*slower("slow", 2.0), *slower("fast", 0.5)], **others}
    assert "a" not in beside_a_run(alone, alone)


def slower(software: str, *factors: float) -> list[Judged]:
    """Runs that took so many times what was predicted."""
    rows = made_up("a", [factor * 100.0 for factor in factors], [100.0] * len(factors))
    own = lambda run: replace(run, software=software)
    return [
        replace(one, run=own(one.run), each={software: (one.run.seconds or 0) / factor})
        for one, factor in zip(rows, factors, strict=True)
    ]


def test_software_that_is_left_out_is_like_none_of_its_generation():
    run = next(run for run in read_runs(PUBLISHED) if run.software == "megatron-core")
    (unknown,) = as_unknown([run])
    assert unknown.software is None and "megatron-core" not in unknown.candidates
    assert {"unknown", "llm-foundry"} <= set(unknown.candidates) and "jaxpar" not in unknown.candidates
    assert unknown.mechanisms == unknown.candidates["unknown"] != run.mechanisms


def made_up(source: str, predicted: list[float], measured: list[float]) -> list[Judged]:
    """Runs of one model on one cluster, of which layouts differ."""
    first = read_runs(PUBLISHED)[0]
    judged = []
    for fast, real in zip(predicted, measured, strict=True):
        run = replace(first, source=source, tokens_per_s_per_gpu=real, peak_gib=None)
        judged.append(Judged(run, run.layouts[0], StepTime(1.0, {}, fast, 0.3), None))
    return judged


def test_order_and_coverage_are_listed_by_source():
    """One of three pairs is out of order."""
    sources = {
        "a": made_up("a", [100, 200, 300], [100, 330, 310]),
        "b": made_up("b", [100, 200], [105, 190]),
        "c": made_up("c", [100], [90]),
    }
    unknown = {name: made_up(name, [100, 50], [100, 100]) for name in sources}
    inside = {"a": 0.75, "b": 0.5, "c": 1.0}
    beside = {name: [Anchored(0.1, True), Anchored(0.3, False)] for name in sources}
    found = LeftOut({}, {}, sources, unknown, beside, beside, KNOWN, UNKNOWN, inside, dict.fromkeys(sources, 0.0))
    lines = order_table(found)
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| a", "| b", "| c", "| **mean over sources**"]
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert [cells[name][4] for name in sources] == ["67%", "100%", "-"]
    assert all(row[5] == "-" for row in cells.values())
    assert cells["a"][0] == "75%" and cells["**mean over sources**"][:4] == ["75%", "50%", "0%", "50%"]


def test_naive_guesses_with_one_run_stand_beside_those_of_predictions(tmp_path: Path):
    """In the table and in the picture's bars, with their mean over sources."""
    sources = {name: made_up(name, [100, 200], [100, 100]) for name in ("a", "b")}
    naive, anchored = {"a": [0.1], "b": [-0.3]}, {"a": [0.4], "b": [-0.6]}
    beside = {name: [Anchored(0.05, True)] for name in sources}
    inside = dict.fromkeys(sources, 1.0)
    found = LeftOut(naive, anchored, sources, sources, beside, beside, KNOWN, UNKNOWN, inside, inside)
    head, _, first, _, mean = ([cell.strip() for cell in line.split("|")[1:-1]] for line in left_out_table(found))
    assert head[2:5] == ["one MFU per GPU", "one run measured", "unseen software"]
    assert first[2:4] == ["10.0%", "40.0%"] and mean[2:4] == ["20.0%", "50.0%"]
    bars = bars_of(found)
    assert list(bars) == list(BARS) and bars["one MFU, one run measured"] == {"a": 0.4, "b": 0.6, "mean": 0.5}
    assert bars["unseen software, one run measured"]["mean"] == pytest.approx(0.05)
    parts = {str(panel): sources["a"] for panel in range(4)}
    scatter(parts, bars, tmp_path / "errors.png")
    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_tables_between_marks_of_code_are_not_wrapped():
    long = " ".join(["word"] * 40)
    assert wrapped(["```", long, "```", long])[:3] == ["```", long, "```"]
    assert len(wrapped([long])) == 2


def test_the_tables_have_every_collective_that_was_measured_alone():
    rows = read_collectives()
    curves = [one for one in rows if one.hosts == 1 and one.size != LARGE]
    assert len(collectives_table(rows)) == 2 + len({(one.gpu, one.ranks) for one in curves}) == 2 + 6
    assert len(cited_table(rows)) == 2 + len(rows) - len(curves)
    page = PAGE.read_text()
    assert all(line in page for line in collectives_table(rows))


def test_the_table_of_parameters_has_it():
    assert ONE_PROGRAM_ROW in PAGE.read_text()
    assert f"{ONE_PROGRAM:.3g}" in ONE_PROGRAM_ROW


def test_intervals_follow_from_the_runs_parameters_and_mechanisms_of_today():
    """Whoever changes one of them runs the command that writes the residuals."""
    assert json.loads(RESIDUALS.read_text())["inputs"] == inputs()
    assert RESIDUALS.read_text() == residuals_text({"known": KNOWN, "unknown": UNKNOWN})


@pytest.mark.release
def test_intervals_are_those_of_the_runs_that_were_left_out():
    runs = [run for run in read_runs(PUBLISHED) if run.tokens_per_s_per_gpu is not None]
    known = slopes(runs, CURRENT)
    spreads = {"known": spread_of(sources_left_out(known)), "unknown": spread_of(generations_left_out(known))}
    assert residuals_text(spreads) == RESIDUALS.read_text()


@pytest.mark.parametrize("option", ["--json", "--measured=runs", "--write", "--cases"])
def test_options_of_files_and_of_the_page_are_not_mixed(option: str, capsys: pytest.CaptureFixture[str]):
    data = ["--data", "runs.csv"] if option in ("--write", "--cases") else []
    assert main([*data, option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err
