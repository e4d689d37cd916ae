"""The table of the planner's memory has its place in docs/planner.md, and is put there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.planner.compiled import of_one_program, share_errors
from benchmarks.planner.fit import as_unknown
from benchmarks.planner.leave_out import LeftOut, beside_a_run
from benchmarks.planner.memory import BEGIN, END, PAGE, with_table
from benchmarks.planner.plot import BARS, bars_of, scatter
from benchmarks.planner.shipped import compared, first_choice, shipped, table
from benchmarks.planner.tables import (
    ONE_PROGRAM_ROW,
    cited_table,
    collectives_table,
    left_out_table,
    order_table,
    wrapped,
)
from jaxpar.config import config_to_yaml
from jaxpar.cost.mechanisms import GENERATIONS
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.evidence.collectives import LARGE, read_collectives
from jaxpar.planner.evidence.errors import Anchored
from jaxpar.planner.evidence.judged import Judged
from jaxpar.planner.evidence.published import read_runs
from jaxpar.planner.evidence.sizes import ACROSS, SIZES
from jaxpar.planner.evidence.validate import PUBLISHED
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.exposed import read_programs
from jaxpar.planner.step_time.interval import KNOWN, ONE_PROGRAM, UNKNOWN
from jaxpar.planner.step_time.model import StepTime, step_time
from jaxpar.planner.step_time.update import update_of
from jaxpar.units import GIB
from tests.sentences import refused
from tests.small_run import small


def test_the_table_is_put_between_the_marks_of_the_page_and_again_there():
    page = PAGE.read_text()
    once = with_table(page, ["| a |", "|---|", "| 1 |"])
    assert once.startswith(page.split(BEGIN)[0]) and once.endswith(page.split(END)[1])
    assert f"{BEGIN}\n\n| a |\n|---|\n| 1 |\n\n{END}" in once
    assert with_table(with_table(page, ["| older |"]), ["| a |", "|---|", "| 1 |"]) == once


@pytest.mark.parametrize("page", ["none", BEGIN, END + BEGIN, BEGIN + END + BEGIN + END])
def test_a_page_without_a_place_is_a_sentence(page: str):
    with refused("planner.md", BEGIN, END, "once"):
        with_table(page, [])


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


def test_a_shipped_configuration_is_priced_beside_the_planners_first(tmp_path: Path):
    """What the file sets, as it stands, and the first of the command that it names, both by the same model."""
    config = small(
        model={"layers": 4, "embed": 512, "heads": 8, "mlp": 2048, "vocab": 1024},
        parallel={"fsdp": 8, "zero": 3, "microbatches": 2},
        memory={"remat": "full"},
        data={"sequence_length": 1024, "batch_size": 16},
        precision={"compute": "bfloat16"},
    )
    file = tmp_path / "own.yaml"
    head = "# A model.\n#   python -m jaxpar.plan --config configs/own.yaml --cluster h100:1x8 --avoid offload\n"
    file.write_text(head + config_to_yaml(config))
    (tmp_path / "laptop.yaml").write_text("run: {name: laptop}\n")
    (one,) = shipped(tmp_path)
    assert (one.cluster, one.fixed, one.avoided) == ("h100:1x8", (), ("offload",))
    row = compared(one)
    own, first = row["shipped"], row["planner"]
    assert own["mesh"] == "fsdp 8" and own["microbatch"] == 1
    assert row["of_planner"] == own["seconds"] / first["seconds"] > 1.0, "it recomputes everything for nothing"
    layout = Layout(fsdp=8, zero=3, microbatch=1, remat="full")
    update = update_of(config)
    wanted = step_time(config.model, 1024, 16, layout, parse_cluster("h100:1x8"), GENERATIONS["jaxpar"], update=update)
    assert own["seconds"] == pytest.approx(wanted.seconds, rel=0.05)
    printed = table([row]).splitlines()
    assert "own.yaml" in printed[1] and "of the planner's" in printed[2] and printed[3].split()[0] == "planner"


def test_a_configuration_that_sets_each_layer_is_priced_as_it_is(tmp_path: Path):
    """Between what its presets alone would take, and beside the memory that the planner would leave free."""
    seconds = {}
    head = "#   python -m jaxpar.plan --config configs/own.yaml --cluster h100:1x8 --avoid offload\n"
    mixture = [{"layers": "0-1", "preset": "full"}, {"layers": "2-3", "preset": "none"}]
    for name, remat in {"full": "full", "mixture": mixture, "none": "none"}.items():
        config = small(
            model={"layers": 4, "embed": 512, "heads": 8, "mlp": 2048, "vocab": 1024},
            parallel={"fsdp": 8, "zero": 3, "microbatches": 2},
            memory={"remat": remat},
            data={"sequence_length": 1024, "batch_size": 16},
            precision={"compute": "bfloat16"},
        )
        (tmp_path / "own.yaml").write_text(head + config_to_yaml(config))
        (one,) = shipped(tmp_path)
        row = compared(one)
        seconds[name] = row["shipped"]["seconds"]
    assert seconds["none"] < seconds["mixture"] < seconds["full"]
    assert seconds["mixture"] == pytest.approx((seconds["none"] + seconds["full"]) / 2, rel=0.02)
    assert "may be planned for" not in table([row])
    row["shipped"] |= {"bytes": 80 << 30, "usable": 70 << 30}
    assert "80.0 GiB of 70.0 GiB that may be planned for" in table([row])


def test_every_shipped_configuration_of_a_cluster_names_its_command():
    found = {one.file.stem: one.cluster for one in shipped()}
    assert found["llama3_8b"] == "h100:1x8" and {"llama3_70b", "llama3_405b", "gpt3_175b_32k"} <= {*found}


@pytest.mark.parametrize("name", ["gemma3_1b", "gpt2_124m", "llama3_1b", "qwen3_0p6b"])
def test_the_first_lines_of_a_file_have_what_the_planner_expects_of_its_first(name: str):
    """The first keeps all activations, whose program is not that with `gemm_last`, of which other numbers are."""
    (one,) = (one for one in shipped() if one.file.stem == name)
    _, first, _ = first_choice(one)
    lines = " ".join(line.lstrip("# ") for line in one.file.read_text().splitlines() if line.startswith("#"))
    (found,) = re.findall(r"expects ([\d.]+ m?s) and (\d+) GiB of it", lines)
    seconds, gib = first.candidate.seconds, first.candidate.memory.device / GIB
    assert found == (
        f"{seconds:.2f} s" if seconds >= 1 or "0." in found[0] else f"{1000 * seconds:.0f} ms",
        f"{gib:.0f}",
    )
    assert first.candidate.layout.remat == "none" and "activations" in lines and "remat: gemm_last" in lines


def test_a_command_with_other_options_is_refused(tmp_path: Path):
    (tmp_path / "own.yaml").write_text("# python -m jaxpar.plan --config own.yaml --cluster h100:1x8 --top 3\n")
    with refused("own.yaml", "expected --config, --cluster, --fix and --avoid"):
        shipped(tmp_path)


def made_up(source: str, predicted: list[float], measured: list[float]) -> list[Judged]:
    """Runs of one model on one cluster, of which layouts differ."""
    first = read_runs(PUBLISHED)[0]
    judged = []
    for fast, real in zip(predicted, measured, strict=True):
        run = replace(first, source=source, tokens_per_s_per_gpu=real, peak_gib=None)
        judged.append(Judged(run, run.layouts[0], StepTime(1.0, {}, fast, 0.3), None))
    return judged


def test_order_and_coverage_are_listed_by_source():
    """Of three pairs one is out of order."""
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
    page, cited = PAGE.read_text(), cited_table(rows)
    assert len(cited) == 2 + len(rows) - len(curves)
    assert all(line in page for line in (*collectives_table(rows), *cited))


def test_the_page_has_order_and_coverage_of_every_source_that_is_left_out():
    part = PAGE.read_text().split("<!-- benchmarks.planner.leave_out: begin -->")[1]
    part = part.split("<!-- benchmarks.planner.leave_out: end -->")[0]
    tables = [[line.split("|")[1:-1] for line in table.splitlines()] for table in re.findall(r"(?:\|.*\n)+", part)]
    errors, spread, order, sizes = ([[cell.strip() for cell in row] for row in table] for table in tables)
    assert [row[0] for row in order[2:]] == [row[0] for row in errors[2:]]
    number = lambda cell: float(cell.rstrip("%"))
    for name in ("source unseen", "unseen software"):
        rows = {row[1]: int(row[2]) for row in sizes[2:] if row[0] == name}
        assert sum(rows[size] for size in SIZES) == int(errors[-1][1]) and ACROSS in rows
    for column, software in ((1, "known"), (3, "unknown")):
        shares = {row[0]: number(row[column]) for row in order[2:-1]}
        (own,) = [row for row in spread if row[0] == software]
        assert number(own[4]) == pytest.approx(sum(shares.values()) / len(shares), abs=1)
        worst = own[5].partition("(")[2].rstrip(")")
        assert shares[worst] == min(shares.values()) == number(own[5].split()[0])


def test_shares_of_left_out_programs_are_inside_as_often_as_intervals_say():
    """Each program of a class with several, beside the others; a narrower spread would hold too few."""
    errors, reach = share_errors(read_programs()), KNOWN.quantile * ONE_PROGRAM
    inside = lambda reach: fmean(abs(error) <= reach for error in errors)
    assert len(errors) >= 20 and 0.8 <= inside(reach) <= 0.9
    assert inside(0.98 * reach) < 0.8
    assert of_one_program(read_programs()) == pytest.approx(ONE_PROGRAM, abs=1e-3)


def test_the_table_of_parameters_has_it():
    assert ONE_PROGRAM_ROW in PAGE.read_text()
    assert f"{ONE_PROGRAM:.3g}" in ONE_PROGRAM_ROW
