"""Predictions stay as close to published runs as they were, and bad files get one sentence."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from jaxpar.config.errors import UserError
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.planner.evidence.published import FRAMEWORKS, mechanisms_of, read_runs
from jaxpar.planner.evidence.validate import HELD_OUT, PUBLISHED, Report, judge, report, validate
from tests.sentences import refused

ALL = Path(__file__).parents[4] / "shared" / "measurements" / "calibration.csv"
"""Every published run, where it lies beside the repository."""


@pytest.fixture(scope="module")
def fitted() -> Report:
    return validate(PUBLISHED)


def percent(value: float | None) -> float:
    assert value is not None
    return 100 * value


@pytest.mark.long
def test_errors_of_fitted_runs_have_not_risen(fitted: Report):
    overall = fitted.overall
    assert percent(overall.median_error) <= 5.2
    assert percent(overall.p90_error) <= 12
    assert percent(overall.memory_median_error) <= 3
    assert percent(overall.regret) <= 3
    assert overall.rank_correlation is not None and overall.rank_correlation >= 0.85


def test_no_source_is_far_off(fitted: Report):
    worst = max(percent(errors.median_error) for errors in fitted.sources.values() if errors.rows)
    assert worst <= 15


def test_runs_that_nothing_was_fitted_to_are_as_close():
    overall = validate(HELD_OUT).overall
    assert overall.rows == 41
    assert percent(overall.median_error) <= 6
    assert percent(overall.p90_error) <= 12


@pytest.mark.long
def test_all_runs_that_there_are():
    """The whole file where it lies beside the repository, else the part of it that is in it."""
    whole = ALL.exists()
    overall = validate(ALL if whole else PUBLISHED).overall
    assert (overall.rows, overall.memory_rows) == ((373, 19) if whole else (127, 19))
    assert percent(overall.median_error) <= (5 if whole else 5.2)
    assert percent(overall.p90_error) <= 12


def test_every_figure_cites_its_source():
    assert all(run.citation for path in (PUBLISHED, HELD_OUT) for run in read_runs(path))


def test_the_report_states_the_same_as_json_and_as_a_table(fitted: Report):
    written = fitted.as_json()
    assert set(written) == {"overall", "sources", "assumed"}
    keys = {
        "rows", "median_error", "p90_error", "memory_rows", "memory_median_error", "rank_correlation", "regret",
    }  # fmt: skip
    assert set(written["overall"]) == keys
    assert all(set(errors) == keys for errors in written["sources"].values())
    lines = fitted.table()
    assert len(lines) == len(written["sources"]) + 2
    assert f"{100 * written['overall']['median_error']:.1f}%" in lines[-1]


def test_a_worse_model_of_the_hardware_is_reported():
    """The judge can fail: a GPU that is taken to be a fifth slower is off by about as much."""
    runs = [run for run in read_runs(PUBLISHED) if run.source == "kwai_7b" and run.tokens_per_s_per_gpu]
    slow = lambda gpu: replace(hardware_of(gpu), matmul_share=0.6 * hardware_of(gpu).matmul_share)
    errors = report(judge(run, slow(run.cluster.gpu)) for run in runs).overall
    assert percent(errors.median_error) > 10


def test_choosing_the_slowest_has_regret():
    runs = [run for run in read_runs(PUBLISHED) if run.source == "kwai_7b" and run.tokens_per_s_per_gpu]
    turned = lambda run: replace(run, tokens_per_s_per_gpu=1 / (run.tokens_per_s_per_gpu or 1))
    upside_down = [replace(judge(run), run=turned(run)) for run in runs]
    errors = report(upside_down).overall
    assert percent(errors.regret) > 10
    assert errors.rank_correlation is not None and errors.rank_correlation < -0.5


HEADER, ROW = (line for line in PUBLISHED.read_text().splitlines()[1:3])


def written(folder: Path, header: str = HEADER, row: str = ROW) -> Path:
    path = folder / "runs.csv"
    path.write_text(f"{header}\n{row}\n")
    return path


def with_cells(**changed: str) -> str:
    cells = ROW.split(",")
    assert '"' not in ",".join(cells[: HEADER.split(",").index("notes")]), "cells before the notes have no commas"
    for column, value in changed.items():
        cells[HEADER.split(",").index(column)] = value
    return ",".join(cells)


def with_cell(column: str, value: str) -> str:
    return with_cells(**{column: value})


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (HEADER.replace("seq_len", "sequence"), ROW, "column 'seq_len' is missing"),
        (HEADER.replace("n_gpus", "n_gpu"), ROW, "did you mean n_gpu?"),
        (HEADER, with_cell("d_model", "wide"), "d_model: expected a number, got 'wide'"),
        (HEADER, with_cell("n_layers", "2.5"), "n_layers: expected a whole number"),
        (HEADER, with_cell("step_time_s", "16268"), "expected tokens/s of one GPU, and seconds"),
        (HEADER, with_cell("dp", "7"), "dp x tp x cp x pp is"),
        (HEADER, with_cell("gpu", "H900"), "no GPU is called"),
        (HEADER, with_cell("n_gpus", "0"), "n_gpus: expected a whole number from 1 to"),
        (HEADER, with_cell("zero_stage", "7"), "zero_stage: expected a whole number from 0 to 3, got 7"),
        (HEADER, with_cell("recompute", "some"), "recompute: expected none, selective, gemm_last or full, got 'some'"),
        (HEADER, with_cell("peak_memory_gib", "38000"), "expected GiB of one GPU"),
        (HEADER, with_cells(step_time_s="", tokens_per_s_per_gpu="9e6"), "expected tokens/s of one GPU, and seconds"),
        (HEADER, with_cell("offload_alpha", "90"), "offload_alpha: expected a share from 0 to 1"),
        (HEADER, with_cell("ep", "8"), "ep: expected 1"),
        (HEADER, with_cell("precision", "fp4"), "precision: expected fp8, fp16, fp32 or bf16, got 'fp4'"),
        (HEADER, with_cell("tp", "0"), "tp: expected a whole number from 1"),
        (HEADER, with_cell("gpus_per_node", "0"), "gpus_per_node: expected a whole number from 1"),
        (HEADER, with_cell("micro_batch_seqs", "0"), "micro_batch_seqs: expected a whole number from 1"),
        (HEADER, with_cell("global_batch_seqs", "0"), "global_batch_seqs: expected a whole number from 1"),
        (HEADER, with_cell("micro_batch_seqs", "100003"), "micro_batch_seqs: expected a divisor of the"),
        (HEADER, with_cell("flash_attention", "yes"), "flash_attention: expected 0, 1 or nothing, got 'yes'"),
        (HEADER, ROW.rsplit(",", 30)[0], "expected as many cells as columns"),
        (HEADER, with_cells(tokens_per_s_per_gpu="", step_time_s="0.001"), "step_time_s: "),
    ],
)
def test_a_file_that_is_wrong_gets_one_sentence(tmp_path: Path, header: str, row: str, words: str):
    with pytest.raises(UserError) as error:
        validate(written(tmp_path, header, row))
    message = str(error.value)
    assert words in message and "runs.csv" in message and "\n" not in message


PIPELINED = next(line for line in PUBLISHED.read_text().splitlines() if line.startswith("kwai_7b"))


@pytest.mark.parametrize("vpp", ["x", "4.0001", "0", "99", "3"])
def test_virtual_stages_that_cannot_be_are_reported(tmp_path: Path, vpp: str):
    cells = next(csv.reader([PIPELINED]))
    cells[HEADER.split(",").index("vpp")] = vpp
    cells[HEADER.split(",").index("micro_batch_seqs")] = "1" if vpp != "3" else "3"
    with pytest.raises(UserError, match=r"vpp: |micro_batch_seqs: "):
        read_runs(written(tmp_path, HEADER, ",".join(f'"{cell}"' for cell in cells)))


def test_software_that_is_not_known_is_treated_as_another_and_the_report_states_it(tmp_path: Path):
    found = validate(written(tmp_path, HEADER, with_cell("framework", "Colossal-AI")))
    (assumed,) = found.assumed.values()
    assert assumed["Colossal-AI does what megatron-core does"] == 1
    assert "Colossal-AI does what megatron-core does (1)" in "\n".join(found.lines())


def test_what_rows_leave_open_is_listed(fitted: Report):
    assert any("micro_batch_seqs" in what for what in fitted.assumed["mtnlg_530b"])
    assert "Megatron" not in str(fitted.assumed), "the software of every source is known"


def test_every_generation_of_software_has_an_attention_that_is():
    legal = get_args(get_type_hints(Mechanisms)["attention"])
    for framework, _ in FRAMEWORKS:
        for flash in ("", "0", "1"):
            row = {"notes": "", "citation": "", "precision": "bf16", "flash_attention": flash}
            assert mechanisms_of(framework, row, "H100-80GB").attention in legal


def test_a_file_without_measurements_is_reported(tmp_path: Path):
    cells = {"step_time_s": "", "tokens_per_s_per_gpu": "", "peak_memory_gib": ""}
    row = ROW.split(",")
    for column in cells:
        row[HEADER.split(",").index(column)] = ""
    with refused("runs.csv", "no row", "time", "peak memory"):
        validate(written(tmp_path, HEADER, ",".join(row)))


def test_a_file_that_is_not_there_is_reported(tmp_path: Path):
    with refused(str(tmp_path / "none.csv"), "no such file"):
        validate(tmp_path / "none.csv")
