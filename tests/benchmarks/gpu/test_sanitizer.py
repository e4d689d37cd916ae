"""compute-sanitizer in a bring-up: it checks a kernel's own launches, and what it reports of others is no fault."""

from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.gpu.bring_up import sanitizer, steps
from benchmarks.gpu.bring_up.ladder import KERNELS, Kernel, kernel
from benchmarks.gpu.bring_up.message import message
from benchmarks.gpu.bring_up.steps import trouble
from benchmarks.gpu.journal import Journal
from tests.benchmarks.gpu.rows import H20

BANNER = "========= COMPUTE-SANITIZER"
# The forms of racecheck's and synccheck's reports in NVIDIA's manual.
OURS = """\
========= Error: Race reported between Write access at attention_dkv_128+0xb0
=========     and Read access at attention_dkv_128+0xc0 [1024 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""
OF_CUBLAS = """\
========= Error: Race reported between Write access at ampere_sgemm_64x32_nn+0xf0
=========     and Read access at ampere_sgemm_64x32_nn+0xd0 [32 hazards]
========= 
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""  # noqa: W291
BARRIER = """\
========= Barrier error detected. Divergent thread(s) in block
=========     at attention_forward_64+0x90
=========     by thread (4,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2d]
=========
========= ERROR SUMMARY: 1 error"""
NONE = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"


@pytest.fixture(autouse=True)
def _nothing_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)


def install(folder: Path, printed: str, code: int) -> Path:
    """A compute-sanitizer in `folder` that writes its arguments to `asked` beside it."""
    folder.mkdir(exist_ok=True)
    program, asked = folder / sanitizer.PROGRAM, folder / "asked"
    program.write_text(f"#!/bin/sh\necho \"$@\" > {asked}\ncat <<'END'\n{printed}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return asked


def sanitized(journal: Journal) -> dict[str, Any]:
    assert steps._sanitize(kernel("attention/triton"), "racecheck")(journal)
    return journal.rows[-1]


@pytest.mark.parametrize(
    ("printed", "code", "passed", "reported", "elsewhere"),
    [
        (NONE, 0, True, 0, 0), (OURS, 86, False, 2, 0), (BARRIER, 86, False, 5, 0), (OF_CUBLAS, 86, True, 0, 2),
        (f"{OF_CUBLAS}\n{OURS}", 86, False, 2, 2),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 86, False, 2, 0),
    ],
    ids=["nothing", "a race", "a barrier", "cuBLAS alone", "both", "an error without a name"],
)  # fmt: skip
def test_a_hazard_of_another_kernel_does_not_take_the_record_of_ours(
    printed: str,
    code: int,
    passed: bool,
    reported: int,
    elsewhere: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    install(tmp_path, f"{BANNER}\n{printed}", code)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    row = sanitized(journal := Journal("attention/triton, racecheck", 100))
    assert (row["passed"], len(row["reported"]), len(row.get("elsewhere", []))) == (passed, reported, elsewhere)
    assert (trouble("attention/triton", journal.rows) is None) == passed
    text = message(journal.rows, H20, [])
    assert ("FOUND: " in text) != passed and ("elsewhere: ========= Error: Race" in text) == bool(elsewhere)


def test_only_the_launches_of_the_kernel_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = install(tmp_path, NONE, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sanitized(Journal("p", 100))
    filters = "--kernel-name kns=attention_forward,kns=attention_dq,kns=attention_dkv"
    assert f"--tool racecheck {filters} " in asked.read_text() and "attention/triton, one tile" in asked.read_text()


def test_it_is_found_where_cuda_home_is_and_else_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "neither on PATH nor in $CUDA_HOME/bin" in sanitized(Journal("p", 100))["skipped"]
    install(tmp_path / "bin", NONE, 0)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert sanitized(Journal("p", 100))["passed"]


def test_one_that_does_not_run_says_nothing_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, f"{BANNER}\n========= Error: unrecognised option '--kernel-name'", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    row = sanitized(journal := Journal("p", 100))
    assert "it ended with 1" in row["skipped"] and "--kernel-name" in row["skipped"]
    assert trouble("attention/triton", journal.rows) is None


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.name)
def test_the_names_that_are_checked_are_those_of_all_launches(one: Kernel, monkeypatch: pytest.MonkeyPatch):
    names: list[str] = []

    def named(call: Any, key: str) -> Any:
        return lambda *arguments, **options: names.append(options[key]) or call(*arguments, **options)

    monkeypatch.setattr(pl, "pallas_call", named(pl.pallas_call, "name"))
    monkeypatch.setattr(plgpu, "kernel", named(plgpu.kernel, "kernel_name"))
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered: lambda *_: None)  # they are traced, not run
    jax.clear_caches()
    cases = next(iter(one.cases(1, True).values()))
    for case in cases:
        jax.eval_shape(one.repeat(case, True)[0])
    assert names and all(any(part in name for part in one.launches) for name in names), names
    assert all(any(part in name for name in names) for part in one.launches), names
