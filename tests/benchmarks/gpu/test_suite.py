"""The GPU suite without a GPU: it runs, states what it left out, and shares the time among its parts."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu.journal import Journal, read
from benchmarks.gpu.parts import PARTS, SECONDS, Part
from benchmarks.gpu.record import ALWAYS
from jaxpar.hardware.xla_flags import xla_flags
from pallas_kernels.verified import SOURCES

ABSENT = ("grain", "jax_triton", "tokamax", "pydantic", "tyro", "tensorboardX")
"""Packages that machines with GPUs often lack."""


@pytest.mark.long
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
    assert right == {*SOURCES} - {*ALWAYS}, "every kernel of ours, in an interpreter"
    assert [row["passed"] for row in rows if row["kind"] == "bits"] == [True]
    recipes = [row["name"] for row in rows if row["kind"] == "recipe" and "step_time_s" in row]
    assert recipes == ["bfloat16", "fp8_current", "1.3b, bfloat16", "1.3b, fp8_current"]
    of_tiles = [(row["launch"], row["entry"]) for row in rows if row["kind"] == "tile"]
    assert {*of_tiles} == {(launch, entry) for launch in ("forward", "dq") for entry in (True, False)}
    assert "DRY RUN" in done.stdout and result["targets"] == []


def test_rows_outlive_the_process_that_is_killed_while_it_writes(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    journal = Journal("a", 100, file)
    journal.add("check", kernel="k", passed=True)
    with file.open("a") as out:
        out.write('{"part": "a", "kin')
    assert read(file) == journal.rows
    assert read(tmp_path / "none") == []


def test_what_there_is_no_time_for_is_reported(capsys: pytest.CaptureFixture[str]):
    journal = Journal("a", 5)
    assert journal.has_time("short", 1) and not journal.has_time("long", 60)
    assert [(row["kind"], row["what"]) for row in journal.rows] == [("skipped", "long")]
    assert suite.main(["--seconds", "0"]) == 0
    printed = capsys.readouterr().out
    assert "NOT RUN" in printed and all(part.name in printed for part in PARTS)


def test_a_part_that_hangs_is_killed_and_one_that_crashes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suite, "GRACE", 0)
    (tmp_path / "hang.sh").write_text('#!/bin/sh\ncase "$*" in *slow*) sleep 60;; *) echo broken >&2; exit 3;; esac\n')
    (tmp_path / "hang.sh").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "hang.sh"))
    run = lambda name: suite._child(Part(name, 1, lambda journal: None), 0.5, tmp_path / "rows.jsonl", tmp_path)
    assert run("slow") == "killed after 0 s"
    assert run("crash") == "ended with 3: broken"


def flags_of(part: Part, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags of XLA with which a part runs."""
    (folder / "flags.sh").write_text('#!/bin/sh\necho "$XLA_FLAGS" >&2; exit 3\n')
    (folder / "flags.sh").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "flags.sh"))
    printed = suite._child(part, 10, folder / "rows.jsonl", folder)
    assert printed is not None
    return printed.split()[3:]


def test_parts_run_with_the_flags_of_a_run_and_those_that_the_user_set_win(tmp_path, monkeypatch):
    own = "--xla_gpu_enable_triton_gemm=true"
    monkeypatch.setenv("XLA_FLAGS", own)
    found = flags_of(Part("any", 1, lambda journal: None), tmp_path, monkeypatch)
    assert found == [*(flag for flag in xla_flags() if "triton_gemm" not in flag), own]


def test_the_part_with_tritons_matmuls_writes_their_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (part,) = (part for part in PARTS if part.name == "triton")
    flags = flags_of(part, tmp_path, monkeypatch)
    assert "--xla_gpu_enable_triton_gemm=true" in flags and "--xla_gpu_enable_triton_gemm=false" not in flags
    file = Path(flags[-1].partition("=")[2])
    assert flags[-1].startswith("--xla_gpu_dump_autotune_results_to=") and file.suffix == ".txt", "text, not binary"
    assert file.parent == tmp_path / "cache" / "jaxpar" and file.parent.is_dir() and version("jaxlib") in file.name


def test_parts_share_the_time_that_is_given(monkeypatch: pytest.MonkeyPatch):
    given: list[float] = []
    monkeypatch.setattr(suite, "_child", lambda part, seconds, file, compiled: given.append(seconds))
    suite._in_processes(PARTS, 2 * SECONDS)
    assert given[0] == 2 * PARTS[0].seconds
    given.clear()
    suite._in_processes(PARTS[:1], 100)
    assert given == [pytest.approx(100, abs=1)], "a part alone has all of it"
