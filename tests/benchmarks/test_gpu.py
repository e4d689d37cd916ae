"""The GPU suite without a GPU: it runs, says what it left out, and records only what was right on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu.attention_cases import CHECKED, Case, timed
from benchmarks.gpu.journal import Journal, read
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.record import add_records, verified
from benchmarks.gpu.report import table
from benchmarks.gpu.targets import targets
from pallas_kernels.verified import records

ABSENT = ("grain", "jax_triton", "tokamax", "pydantic", "tyro", "tensorboardX")
"""Packages that machines with GPUs often lack."""
H200 = {"device": "NVIDIA H200", "platform": "gpu", "compute_capability": "9.0", "count": 1, "versions": {"jax": "1"}}


def test_a_dry_run_goes_through_every_part_without_the_packages_that_gpu_machines_lack(tmp_path: Path):
    file = tmp_path / "gpu.json"
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT}, None)); from benchmarks.gpu.__main__ import main; "
        f"sys.exit(main(['--dry-run', '--record', '--json', {str(file)!r}]))"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # it is all compiling
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "only a run on a GPU is recorded" in done.stderr, done.stdout + done.stderr
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert {row["part"] for row in rows} == {part.name for part in PARTS}
    assert not [row for row in rows if suite.wrong(row)]
    right = {row["kernel"] for row in rows if row.get("passed") and row["kind"] == "check"}
    assert {"attention/triton", "linear_cross_entropy/triton"} <= right
    assert [row["passed"] for row in rows if row["kind"] == "bits"] == [True]
    assert {row["by"] for row in rows if row["kind"] == "cross_entropy"} == {
        "fused", "chunks in plain JAX", "full logits", "jaxpar's tiles",
    }  # fmt: skip
    assert "DRY RUN" in done.stdout and result["targets"] == []


def test_rows_outlive_the_process_that_is_killed_while_it_writes(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    journal = Journal("a", 100, file)
    journal.add("check", kernel="k", passed=True)
    with file.open("a") as out:
        out.write('{"part": "a", "kin')
    assert read(file) == journal.rows
    assert read(tmp_path / "none") == []


def test_what_there_is_no_time_for_is_told(capsys: pytest.CaptureFixture[str]):
    journal = Journal("a", 5)
    assert journal.has_time("short", 1) and not journal.has_time("long", 60)
    assert [(row["kind"], row["what"]) for row in journal.rows] == [("skipped", "long")]
    assert suite.main(["--seconds", "0"]) == 0
    said = capsys.readouterr().out
    assert "NOT RUN" in said and all(part.name in said for part in PARTS)


def test_a_part_that_hangs_is_killed_and_one_that_crashes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suite, "GRACE", 0)
    (tmp_path / "hang.sh").write_text('#!/bin/sh\ncase "$*" in *slow*) sleep 60;; *) echo broken >&2; exit 3;; esac\n')
    (tmp_path / "hang.sh").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "hang.sh"))
    run = lambda name: suite._child(Part(name, 1, lambda journal: None), 0.5, tmp_path / "rows.jsonl")
    assert run("slow") == "killed after 0 s"
    assert run("crash") == "ended with 3: broken"


def check_row(kernel: str, **more: Any) -> dict[str, Any]:
    return {"part": "check", "kind": "check", "kernel": kernel, "case": "c", **more}


def test_a_kernel_is_right_when_all_it_does_not_refuse_is_right():
    rows = [
        check_row("a", passed=True), check_row("a", refused="too wide"), check_row("b", passed=True),
        check_row("b", passed=False), check_row("c", refused="no"), check_row("d", passed=True),
        check_row("d", failed="it crashed"), check_row("attention/cudnn", passed=True), check_row("e", passed=True),
        {"part": "check-e", "kind": "skipped", "what": "e", "why": "time budget"},
    ]  # fmt: skip
    assert verified(rows) == ["a"]


def test_a_part_that_was_cut_off_verifies_nothing():
    rows = [check_row("a", passed=True), {"part": "check", "kind": "broken", "what": "check", "why": "killed"}]
    assert verified(rows) == []


def test_records_are_read_back_by_the_registry(tmp_path: Path):
    file = tmp_path / "verified.json"
    file.write_text("[]")
    add_records(["attention/triton"], H200, file)
    add_records(["attention/triton", "linear_cross_entropy/triton"], H200 | {"versions": {"jax": "2"}}, file)
    found = [(one.kernel, one.device, one.compute_capability, dict(one.versions)) for one in records(file)]
    assert found == [
        ("attention/triton", "NVIDIA H200", "9.0", {"jax": "2"}),
        ("linear_cross_entropy/triton", "NVIDIA H200", "9.0", {"jax": "2"}),
    ]
    with pytest.raises(ValueError, match="only a run on a GPU"):
        add_records(["attention/triton"], H200 | {"platform": "cpu"}, file)


def attention_row(by: str, tflops: float, **more: Any) -> dict[str, Any]:
    row = {"part": "attention", "kind": "attention", "case": "causal", "seq": 8192, "width": 128, "way": "forward"}
    return row | {"heads": 16, "kv_heads": 16, "by": by, "tflops": tflops} | more


def test_targets_compare_our_best_with_the_best_of_the_others():
    rows = [
        attention_row("triton", 400.0), attention_row("mosaic", 660.0), attention_row("cudnn", 600.0),
        attention_row("torch flash", 700.0), attention_row("triton", 50.0, case="window 1024", seq=16384),
        attention_row("cudnn", 40.0, case="window 1024", seq=16384),
    ]  # fmt: skip
    rows += [
        {"part": "c", "kind": "cross_entropy", "by": by, "seconds": seconds, "temporary_bytes": size, "tflops": 1.0}
        for by, seconds, size in (("fused", 0.12, 10), ("full logits", 0.1, 200))
    ]
    found = {target["what"]: target for target in targets(rows)}
    measured = {what: target for what, target in found.items() if target["measured"] is not None}
    assert [(round(target["measured"], 2), target["met"]) for target in measured.values()] == [
        (1.1, True), (1.25, False), (1.2, False), (0.05, True),
    ]  # fmt: skip
    result = {"device": H200, "dry_run": False, "seconds": 1.0, "targets": list(found.values()), "rows": rows}
    assert "MISSED   1.25 >= 1.5" in table(result) and "not measured" in table(result)


def test_timed_cases_are_of_16k_tokens_and_cover_what_is_asked():
    cases = timed()
    assert {case.seq for case in cases} == {2048, 4096, 8192, 16384, 32768} and {64, 128, 256} == {
        c.width for c in cases
    }
    assert all(case.batch * case.seq == max(16384, case.seq) for case in cases)
    assert {case.window for case in cases} >= {1024, 4096} and any(case.packed == 1024 for case in cases)
    assert len({(case.name, case.seq, case.width) for case in cases}) == len(cases)
    assert {1, 113, 203, 1023, 1024, 4224} == {case.seq for case in CHECKED}


def test_documents_fill_their_row_and_are_of_the_mean_that_is_asked():
    case = Case("packed", 16384, packed=1024)
    segments = case.segments()
    assert segments is not None and segments.shape == (1, 16384) and segments.min() == 1
    assert (segments[0, 1:] >= segments[0, :-1]).all() and 8 <= segments.max() <= 32
    assert case.flops() < Case("causal", 16384).flops() / 4
