"""Steps of a bring-up that hang, crash or take too long: what the journal has of them, and what is left out after."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.gpu import attention, grouped, tiled
from benchmarks.gpu.bring_up import run, steps
from benchmarks.gpu.bring_up.message import left, message
from benchmarks.gpu.bring_up.steps import STAGES, trouble
from benchmarks.gpu.journal import Journal, read
from benchmarks.gpu.programs import compile_all
from tests.benchmarks.gpu.rows import H20

STEPS = [one for stage in STAGES for one in stage]


def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Steps run this shell script, in which $JOURNAL is their journal; returns the journal."""
    program, file = tmp_path / "stub.sh", tmp_path / "journal.jsonl"
    program.write_text(f"#!/bin/sh\nJOURNAL={file}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return file


BEGIN = """echo '{"part": "p", "kind": "begin", "what": "1024 x 16, causal, 128"}' >> $JOURNAL"""


@pytest.mark.parametrize(
    ("script", "kind", "case"),
    [
        (f"{BEGIN}; sleep 60", "hang", "1024 x 16, causal, 128"),
        ("sleep 60", "hang", "before its first case"),
        (
            f"{BEGIN}; printf '%s' '{{\"half' >> $JOURNAL; echo illegal address; exit 7",
            "crash",
            "1024 x 16, causal, 128",
        ),
    ],
)
def test_a_hang_or_a_crash_names_its_case_and_ends_the_climb_of_its_kernel_alone(
    script: str, kind: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = stub(tmp_path, monkeypatch, script)
    monkeypatch.setattr(run, "HANG", 1.0)
    first = STEPS[0]
    run.watch(first, 60, file)
    row = read(file)[-1]
    assert (row["kind"], row["case"], row["kernel"]) == (kind, case, first.kernel)
    assert kind == "hang" or "ended with 7: illegal address" in row["why"]
    text, more = message(read(file), H20, []), left(read(file))
    assert f"{kind.upper()} at {case}" in text
    assert first.kernel is not None and trouble(first.kernel, read(file)) == row
    assert more and not [name for name in more if name.startswith(f"{first.kernel}, ")]


def test_a_sanitizer_that_takes_too_long_says_nothing_of_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = stub(tmp_path, monkeypatch, f"{BEGIN}; sleep 60")
    monkeypatch.setattr(run, "SANITIZING", 1.0)
    (one,) = (one for one in STEPS if (one.kernel, one.tool) == ("attention/mosaic", "racecheck"))
    run.watch(one, 60, file)
    assert trouble("attention/mosaic", read(file)) is None and steps.is_over(one, read(file))
    assert "attention/mosaic, racecheck: skipped (it took more than 1 s)" in message(read(file), H20, [])


COMPILING = BEGIN.replace("begin", "compiling")


@pytest.mark.parametrize("shown", [True, False])
def test_a_slow_compilation_is_no_hang(shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is one, and is named as such, where nothing is compiled for longer."""
    last = "" if shown else "; sleep 60"
    file = stub(tmp_path, monkeypatch, f"{COMPILING}; sleep 1.7; {COMPILING}{last}")
    monkeypatch.setattr(run, "HANG", 1.2)
    monkeypatch.setattr(run, "COMPILING", 3.0)
    run.watch(STEPS[0], 60, file)
    assert [row["kind"] for row in read(file)] == ["compiling"] * 2 + ["hang"] * (not shown)
    text = message(read(file), H20, [])
    assert ("1024 x 16, causal, 128: HANG: not compiled in 3 s" in text) != shown


def test_a_kernel_that_hangs_once_it_is_compiled_is_not_waited_for_longer(tmp_path, monkeypatch):
    file = stub(tmp_path, monkeypatch, f"{COMPILING}; sleep 0.5; {BEGIN}; sleep 60")
    monkeypatch.setattr(run, "HANG", 1.0)
    run.watch(STEPS[0], 60, file)
    assert read(file)[-1]["kind"] == "hang" and "HANG: nothing for 1 s" in message(read(file), H20, [])


def test_each_program_that_is_compiled_has_a_row_and_its_case_begins_after_the_last():
    journal = Journal("p", 100)
    done = jax.jit(lambda x: x + 1)
    programs = {"a": lambda: done.lower(1.0), "b": lambda: done.lower(1), "c": lambda: done.lower("no array")}
    found = compile_all(journal, "two cases", programs)
    assert [*found] == ["a", "b", "c"] and isinstance(found["c"], TypeError) and found["a"](1.0) == 2.0
    # Three lowered, two compiled.
    assert [row["kind"] for row in journal.rows] == ["compiling"] * 5 + ["begin"]
    assert {row["what"] for row in journal.rows} == {"two cases"}


def test_programs_that_steps_share_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    file = stub(tmp_path, monkeypatch, """echo "{\\"part\\": \\"$JAX_COMPILATION_CACHE_DIR\\"}" > $JOURNAL""")
    run.watch(STEPS[0], 60, file)
    assert [row["part"] for row in read(file)] == [str(tmp_path / "compiled")]


@pytest.mark.parametrize(
    ("measure", "cases"),
    [
        (grouped.measure, [case.name for case in grouped.DRY]),
        (tiled.measure, [case.name for cases in tiled.DRY.values() for case in cases]),
        (attention.measure, [f"{one.name}, {one.seq} tokens, width {one.width}" for one in attention.DRY_TIMED]),
    ],
    ids=["grouped", "tiled", "attention"],
)  # fmt: skip
def test_a_case_that_hung_is_not_begun_again(measure: Any, cases: list[str], monkeypatch: pytest.MonkeyPatch):
    begun: list[str] = []
    monkeypatch.setattr(Journal, "begin", lambda journal, what: begun.append(what))
    hung = [{"part": "speeds", "kind": "hang", "case": case} for case in cases]
    measure(Journal("speeds", 100, dry=True, earlier=hung))
    assert not begun


def test_what_hung_while_it_was_timed_is_left_out_of_its_case(monkeypatch: pytest.MonkeyPatch):
    case, nothing = attention.DRY_TIMED[0], jnp.zeros(1)
    what = f"{case.name}, {case.seq} tokens, width {case.width}"
    monkeypatch.setattr(attention, "DRY_TIMED", (case,))
    monkeypatch.setattr(attention.torch_attention, "programs", lambda *_: {})
    monkeypatch.setattr(attention, "compile_all", lambda *of: {key: lambda *_: (nothing, 0) for key in of[-1]})
    hung = {"part": "speeds", "kind": "hang", "case": f"{what} by xla"}
    journal = Journal("speeds", 100, dry=True, earlier=[hung])
    attention.measure(journal)
    begun = {row["what"] for row in journal.rows if row["kind"] == "begin"}
    assert {what, f"{what} by mosaic"} <= begun and f"{what} by xla" not in begun
