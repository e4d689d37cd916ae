"""Rows of published runs: what they state, what they leave open, and what is refused."""

import csv
from pathlib import Path

import pytest

from benchmarks.validation.__main__ import main
from benchmarks.validation.page import everything
from benchmarks.validation.published import FILES, Run, read_runs
from benchmarks.validation.table import COLUMNS
from tests.sentences import refused

RUNS, REFUSED = everything()


def row(source: str, **wanted: object) -> Run:
    return next(
        run
        for run in RUNS
        if run.source == source and all(getattr(run.layouts[0], key) == value for key, value in wanted.items())
    )


def test_a_row_holds_what_its_columns_state():
    run = row("kwai_fig9")
    assert (run.model.layers, run.model.heads, run.sequence, run.batch) == (96, 96, 4096, 256)
    layout = run.layouts[0]
    assert (layout.pipe, layout.fsdp, layout.context, layout.tensor) == (16, 4, 2, 2)
    kept = layout.schedule, layout.virtual_stages, layout.remat, layout.offload_fraction
    assert kept == ("interleaved", 6, "none", 0.522)
    assert run.cluster.devices == 256 and run.cluster.bandwidth(True) == 100e9 / 8
    assert run.tokens_per_s_per_gpu * run.seconds * 256 == pytest.approx(run.batch * run.sequence)
    assert row("dgxc_maxtext", fsdp=128, replica=16).cluster.devices == 2048


def test_what_was_not_published_may_have_been_anything_that_divides():
    assert {layout.microbatch for layout in row("mtnlg_530b").layouts} == {1, 2, 4, 8}
    assert {layout.virtual_stages for layout in row("megatron_sc21_t2", pipe=12).layouts} == {1, 2, 4, 8}


def test_all_rows_are_timed_but_experts_in_float8():
    assert len(RUNS) > 400 and {run.source for run in RUNS} >= {"torchtitan_h200_2506", "mcore_moe"}
    assert [one.why for one in REFUSED] == ["precision: fp8, and products of experts are timed in 16 bits alone"]


def test_selection_by_operation_runs_half_of_the_products_again():
    kept = {one for run in RUNS if run.source.startswith("torchtitan") for one in (run.layouts[0].remat,)}
    assert any(isinstance(one, tuple) for one in kept)


def changed(folder: Path, **cells: str) -> Path:
    """A file with the first published run, and these cells in place of its own."""
    with FILES[0].open(newline="") as stream:
        first = next(csv.DictReader(line for line in stream if not line.startswith("#")))
    file = folder / "runs.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, first | cells)
        writer.writeheader()
        writer.writerow(first | cells)
    return file


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"n_layers": "many"}, "n_layers: expected a number, got 'many'"),
        ({"dp": "7"}, "dp x tp x cp x pp is 7, but n_gpus 512"),
        ({"precision": "fp4"}, "precision: expected"),
        ({"gpu": "A100-80GB", "precision": "fp8"}, "does not multiply in float8"),
        ({"step_time_s": "", "tokens_per_s_per_gpu": "1e9"}, "expected tokens/s of one GPU"),
        ({"step_time_s": "1", "tokens_per_s_per_gpu": "1007"}, "tokens_per_s_per_gpu is 1007, but"),
        ({"architecture": "encoder"}, "the time model has decoders only, got 'encoder'"),
        ({"recompute": "some"}, "recompute: expected"),
        ({"micro_batch_seqs": "3"}, "expected a divisor"),
        ({"ep": "2"}, "ep: expected 1"),
        ({"fsdp": "7"}, "fsdp: expected a divisor of the 512 data ranks, got 7"),
        ({"mechanisms": "fast=1"}, "mechanisms: expected"),
    ],
)
def test_what_cannot_be_timed_is_left_out_with_the_reason(cells: dict[str, str], why: str, tmp_path: Path):
    runs, (one,) = read_runs(changed(tmp_path, **cells))
    assert not runs and why in one.why and one.row.startswith("row 2 (mosaic_llmfoundry")


def test_a_file_without_a_column_is_refused(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text(",".join(name for name in COLUMNS if name != "n_layers") + "\n")
    with refused("a.csv", "n_layers", "is missing"):
        read_runs(file)
    with refused("there is no such file"):
        read_runs(tmp_path / "b.csv")


def test_the_command_prints_the_error_of_each_run_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--data", str(changed(tmp_path))]) == 0
    printed = capsys.readouterr().out
    assert "| mosaic_llmfoundry L75 | 16.3 s |" in printed and "%" in printed
    assert main(["--data", str(changed(tmp_path, n_layers="many"))]) == 2
    assert main(["--write", "--data", str(tmp_path / "runs.csv")]) == 2
