"""The bring-up of kernels on a GPU, without one: what it runs, what stops it, how it goes on, and what it records."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import attention, cross_entropy, grouped, grouped_tiled, tiled
from benchmarks.gpu.attention_cases import Case
from benchmarks.gpu.bring_up import run, steps
from benchmarks.gpu.bring_up.ladder import KERNELS, RUNGS, Kernel, kernel
from benchmarks.gpu.bring_up.message import left, message
from benchmarks.gpu.bring_up.steps import STAGES, Step, trouble
from benchmarks.gpu.journal import Journal, read
from benchmarks.gpu.record import ALWAYS
from pallas_kernels.attention.registry import implementation
from pallas_kernels.verified import SOURCES, read_records, user_file

STEPS = [one for stage in STAGES for one in stage]
DEVICE = {
    "device": "NVIDIA H20", "platform": "gpu", "compute_capability": "9.0", "processors": 78, "count": 1,
    "versions": {"jax": "1"}, "toolchain": {"jax": "1", "ptxas": "12.9.86"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_dry_run_climbs_the_ladder_and_records_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    of_one = tuple(one for one in STEPS if one.kernel == "linear_cross_entropy/triton")
    monkeypatch.setattr(run, "STAGES", (of_one,))
    assert suite.main(["--bring-up", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "linear_cross_entropy/triton     right up to: the grid" in printed
    assert "3 launches of small, logits kept: the same bits" in printed and "run the same command again" in printed
    assert not user_file().exists()


def test_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(run, "_device", lambda dry: DEVICE | {"platform": "cpu", "device": "cpu"})
    assert suite.main(["--bring-up"]) == 2
    assert "needs an NVIDIA GPU, and JAX has cpu" in capsys.readouterr().out


def test_every_kernel_of_ours_climbs_in_one_order_attention_first_and_sanitizers_last():
    assert {one.name for one in KERNELS} == {*SOURCES} - {*ALWAYS}
    for one in KERNELS:
        own = [step.name.removeprefix(f"{one.name}, ") for step in STEPS if step.kernel == one.name]
        assert own == [*RUNGS, "launches", "racecheck", "synccheck"]
    first, speed, *_, last = STAGES
    attention = {name for name in SOURCES if name.startswith("attention/")} - {*ALWAYS}
    assert {one.kernel for one in first} == {one.kernel for one in last[: 2 * len(attention)]} == attention
    assert speed == (steps.ATTENTION_SPEEDS,)
    assert [one.tool is not None for stage in STAGES for one in stage] == [False] * (len(STEPS) - len(last)) + [
        True
    ] * len(last)


@pytest.mark.parametrize("processors", [132, 114, 78, 16])
def test_waves_are_of_the_processors_at_hand(processors: int):
    rungs = kernel("attention/mosaic").cases(processors, False)
    tiles = {rung: {case.heads * case.seq // 128 for case in cases} for rung, cases in rungs.items()}
    assert tiles["one tile"] == {1}
    (wave,), (three,) = tiles["one wave"], tiles["three tiles a processor"]
    assert 0.85 * processors < wave <= processors and 3 * processors <= three
    assert {case.width for case in rungs["one tile"]} == {64, 96, 128, 192, 256}
    assert all(len({*map(kernel("attention/mosaic").label, cases)}) == len(cases) for cases in rungs.values())


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
    text, more = message(read(file), DEVICE, []), left(read(file))
    assert f"{kind.upper()} at {case}" in text
    assert first.kernel is not None and trouble(first.kernel, read(file)) == row
    assert more and not [name for name in more if name.startswith(f"{first.kernel}, ")]


def test_a_sanitizer_that_takes_too_long_says_nothing_of_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = stub(tmp_path, monkeypatch, f"{BEGIN}; sleep 60")
    monkeypatch.setattr(run, "SANITIZING", 1.0)
    (one,) = (one for one in STEPS if (one.kernel, one.tool) == ("attention/mosaic", "racecheck"))
    run.watch(one, 60, file)
    assert trouble("attention/mosaic", read(file)) is None and steps.is_over(one, read(file))
    assert "attention/mosaic, racecheck: skipped (it took more than 1 s)" in message(read(file), DEVICE, [])


def test_programs_that_steps_share_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    file = stub(tmp_path, monkeypatch, """echo "{\\"part\\": \\"$JAX_COMPILATION_CACHE_DIR\\"}" > $JOURNAL""")
    run.watch(STEPS[0], 60, file)
    assert [row["part"] for row in read(file)] == [str(tmp_path / "compiled")]


def test_what_hung_while_it_was_timed_is_left_out_when_the_same_command_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = Case("causal", 128, 64, 1, 1)
    what = "causal, 128 tokens, width 64"
    monkeypatch.setattr(attention, "DRY_TIMED", (case,))
    monkeypatch.setattr(attention, "IMPLEMENTATIONS", [implementation("xla")])
    monkeypatch.setattr(attention.torch_attention, "programs", lambda *_: {})
    nothing = jnp.zeros(1)
    monkeypatch.setattr(attention, "compile_all", lambda programs: {key: lambda *_: (nothing, 0) for key in programs})
    speed = Step("speeds of attention", steps._measure(attention.measure))
    file = stub(tmp_path, monkeypatch, f"""{BEGIN.replace("1024 x 16, causal, 128", f"{what} by xla")}; sleep 60""")
    monkeypatch.setattr(run, "HANG", 1.0)
    run.watch(speed, 60, file)
    assert read(file)[-1]["case"] == f"{what} by xla" and not steps.is_over(speed, read(file))
    for earlier, timed, begins in (
        (read(file), [], [what, what, what]),
        ([], ["forward", "backward"], [what, f"{what} by xla", what, f"{what} by xla", what]),
        ([{"part": speed.name, "kind": "crash", "case": what}], [], []),
    ):
        journal = Journal(speed.name, 100, dry=True, earlier=earlier)
        assert speed.run(journal)
        assert [row["way"] for row in journal.rows if row["kind"] == "attention"] == timed
        assert [row["what"] for row in journal.rows if row["kind"] == "begin"] == begins


@pytest.mark.parametrize(
    ("measure", "cases"),
    [
        (grouped.measure, [case.name for case in grouped.DRY]), (tiled.measure, [case.name for case in tiled.DRY]),
        (grouped_tiled.measure, [case.name for case in grouped_tiled.DRY]),
        (cross_entropy.measure, ["64 x 32 x 640"]),
    ],
    ids=["grouped", "tiled", "grouped tiled", "cross-entropy"],
)  # fmt: skip
def test_a_case_that_hung_is_not_begun_again(measure: Any, cases: list[str], monkeypatch: pytest.MonkeyPatch):
    begun: list[str] = []
    monkeypatch.setattr(Journal, "begin", lambda journal, what: begun.append(what))
    hung = [{"part": "speeds", "kind": "hang", "case": case} for case in cases]
    measure(Journal("speeds", 100, dry=True, earlier=hung))
    assert not begun


def test_a_step_that_runs_out_of_time_goes_on_with_the_cases_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ran: list[str] = []

    def check(journal: Journal, cases: Sequence[str]) -> None:
        ran.extend(cases)
        for case in cases:
            journal.add("check", kernel="k", case=case, passed=True)

    one = Kernel("k", lambda processors, dry: {RUNGS[0]: ["a", "b"]}, str, check, lambda case, dry: (None, ()))
    climb = Step("k, one tile", steps._climb(one, RUNGS[0]), "k")
    monkeypatch.setattr(run, "step", lambda name: climb)
    monkeypatch.setattr(steps, "_processors", lambda journal: 78)
    file = tmp_path / "journal.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "left", property(lambda journal: 100.0 if not ran else 0.0))
        assert run.run_step(climb.name, 100, file) == 3
    assert ran == ["a"] and not steps.is_over(climb, read(file))
    assert run.run_step(climb.name, 100, file) == 0
    assert ran == ["a", "b"] and steps.is_over(climb, read(file))
    assert [row["what"] for row in read(file) if row["kind"] == "begin"] == ["a", "b"]


def test_cases_that_compile_side_by_side_are_begun_together(monkeypatch: pytest.MonkeyPatch):
    checked: list[Sequence[str]] = []
    check = lambda journal, cases: checked.append(cases)
    one = Kernel("k", lambda *_: {RUNGS[0]: ["a", "b", "c", "d"]}, str, check, lambda *_: (None, ()), together=2)
    monkeypatch.setattr(steps, "_processors", lambda journal: 78)
    journal = Journal("p", 100, earlier=[{"part": "p", "kind": "over", "step": "p", "case": "b"}])
    assert steps._climb(one, RUNGS[0])(journal)
    assert checked == [("a", "c"), ("d",)]
    assert [row["what"] for row in journal.rows if row["kind"] == "begin"] == ["a, c", "d"]


def test_other_bits_in_one_of_many_launches_are_seen_but_where_they_may_vary(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "LAUNCHES", 50)
    monkeypatch.setattr(steps, "_processors", lambda journal: 78)
    for varies, passed in (((), False), (("dq",), True)):
        calls = iter(range(100))
        launch = lambda calls=calls: (jnp.ones(3), jnp.full(3, jnp.nan if next(calls) == 30 else 2.0, jnp.bfloat16))
        repeat = lambda case, dry, launch=launch: (launch, ("out", "dq"))
        one = Kernel("k", lambda *_: {RUNGS[0]: ["a"]}, str, lambda *_: None, repeat, varies)
        journal = Journal("k, launches", 100)
        steps._launch(one)(journal)
        row = journal.rows[-1]
        assert row["launches"] == 50 and row["passed"] == passed
        assert row["differed"] == ({} if passed else {"dq": 1})
        assert (trouble("k", journal.rows) is None) == passed


@pytest.mark.parametrize(("code", "passed"), [(0, True), (86, False), (1, None)])
def test_what_the_sanitizer_reports_is_in_the_journal(
    code: int, passed: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "compute-sanitizer"
    program.write_text(f'#!/bin/sh\necho "========= $2: hazard in $8 $9"; exit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    journal = Journal("attention/triton, racecheck", 100)
    assert steps._sanitize(kernel("attention/triton"), "racecheck")(journal)
    row = journal.rows[-1]
    assert row.get("passed") == passed and ("skipped" in row) == (passed is None)
    assert passed is None or "racecheck: hazard" in row["reported"][0]
    assert (trouble("attention/triton", journal.rows) is not None) == (passed is False)


def test_what_is_right_in_every_step_is_recorded_and_the_text_has_the_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def right(journal: Journal) -> bool:
        journal.add("check", kernel=journal.part.split(",")[0], case="c", passed=True, errors={}, allowed={})
        return True

    def wrong(journal: Journal) -> bool:
        journal.add("check", kernel="attention/mosaic", case="c", passed=False, errors={"dq": 1.0}, allowed={"dq": 0.1})
        return True

    def found(journal: Journal) -> bool:
        recorded.append({record.kernel for record in read_records(user_file())})
        of_triton = journal.part == "attention/triton, racecheck"
        journal.add("sanitizer", kernel=journal.part.split(",")[0], passed=not of_triton, reported=["a hazard"])
        return True

    recorded: list[set[str]] = []
    does = lambda one: (
        (lambda journal: True) if one.kernel is None
        else found if one.tool is not None
        else wrong if one.name == "attention/mosaic, one wave"
        else right
    )  # fmt: skip
    stages = tuple(tuple(Step(one.name, does(one), one.kernel, one.tool) for one in stage) for stage in STAGES)
    monkeypatch.setattr(run, "STAGES", stages)
    monkeypatch.setattr(run, "ATTENTION_SPEEDS", stages[1][0])
    monkeypatch.setattr(run, "_device", lambda dry: DEVICE)
    monkeypatch.setattr(
        run,
        "watch",
        lambda one, seconds, file: (
            one.run(journal := Journal(one.name, 9, file)) and journal.add("step", what=one.name)
        ),
    )
    assert suite.main(["--bring-up"]) == 1
    assert recorded[0] == {*SOURCES} - {"attention/mosaic"}, "before the sanitizers, and cuDNN for its speed"
    found_wrong = {"attention/mosaic", "attention/triton"}
    assert {record.kernel for record in read_records(user_file())} == {*SOURCES} - found_wrong
    printed = capsys.readouterr().out
    assert "attention/mosaic                CHECK at c (attention/mosaic, one wave); right up to: one wave" in printed
    assert "WRONG: errors {'dq': 1.0}" in printed and '"processors": 78' in printed
    (text,) = (user_file().parent / "bring_up").glob("nvidia-h20-*.txt")
    assert text.read_text() in printed and json.loads(text.read_text().splitlines()[-1])


def test_the_journal_is_of_the_gpu_the_versions_and_the_sources():
    other = DEVICE | {"processors": 132}, DEVICE | {"toolchain": {"jax": "2"}}, DEVICE | {"device": "NVIDIA H200"}
    assert len({run.journal_file(device) for device in (DEVICE, *other)}) == 4
