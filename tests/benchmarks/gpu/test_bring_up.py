"""The bring-up of kernels on a GPU, without one: what it runs, what stops it, how it goes on, and what it records."""

import json
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu.attention_cases import Case
from benchmarks.gpu.bring_up import run, steps
from benchmarks.gpu.bring_up.ladder import RUNGS, Kernel, kernel
from benchmarks.gpu.bring_up.message import message
from benchmarks.gpu.bring_up.steps import STAGES, Step, trouble
from benchmarks.gpu.journal import Journal, read
from pallas_kernels.verified import SOURCES, read_records, user_file
from tests.benchmarks.gpu.rows import H20, attention_row

STEPS = [one for stage in STAGES for one in stage]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_dry_run_climbs_the_ladder_and_records_nothing(monkeypatch, capsys):
    of_one = tuple(one for one in STEPS if one.kernel == "tiled_matmul/mosaic")
    monkeypatch.setattr(run, "STAGES", (of_one,))
    assert suite.main(["--bring-up", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "tiled_matmul/mosaic             right up to: the grid" in printed
    assert "3 launches of small: the same bits" in printed and "run the same command again" in printed
    assert not user_file().exists()


def test_it_needs_a_gpu(capsys: pytest.CaptureFixture[str]):
    assert suite.main(["--bring-up"]) == 2
    assert "needs an NVIDIA GPU, and JAX has cpu: python -m jaxpar.doctor" in capsys.readouterr().err


def test_where_jax_does_not_start_the_sentence_has_its_reason(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "driverless")
    assert suite.main(["--bring-up"]) == 2
    printed = capsys.readouterr().err
    assert "JAX finds no device: " in printed and "driverless" in printed and "jaxpar.doctor" in printed
    assert "Traceback" not in printed


def test_a_kernel_that_the_gpu_cannot_run_is_refused_and_neither_launched_nor_wrong():
    mosaic = kernel("attention/mosaic")
    climbed = Journal(f"{mosaic.name}, {RUNGS[2]}", 100)
    assert steps._climb(mosaic, RUNGS[2], processors=1)(climbed)
    launched = Journal(f"{mosaic.name}, launches", 100, earlier=climbed.rows)
    assert steps._launch(mosaic, processors=1)(launched) and launched.rows == []
    assert trouble("attention/mosaic", climbed.rows) is None
    [line] = (line for line in message(climbed.rows, H20, []).splitlines() if line.startswith("attention/mosaic "))
    assert "refused: it needs an NVIDIA GPU, and the platform is cpu" in line
    assert not run._all_over("attention/mosaic", climbed.rows), "nothing is recorded"


@pytest.mark.parametrize("processors", [132, 114, 78, 16])
def test_waves_are_of_the_processors_at_hand(processors: int):
    rungs = kernel("attention/mosaic").cases(processors, False)
    tiles = {rung: {case.heads * case.seq // 128 for case in cases} for rung, cases in rungs.items()}
    assert tiles["one tile"] == {1}
    (wave,), (three,) = tiles["one wave"], tiles["three tiles a processor"]
    assert 0.85 * processors < wave <= processors and 3 * processors <= three
    assert {case.width for case in rungs["one tile"]} == {64, 96, 128, 192, 256}
    assert all(len({*map(kernel("attention/mosaic").label, cases)}) == len(cases) for cases in rungs.values())


def test_a_step_that_runs_out_of_time_goes_on_with_the_cases_that_are_left(tmp_path, monkeypatch):
    ran: list[str] = []

    def check(journal: Journal, cases: Sequence[str]) -> None:
        ran.extend(cases)
        for case in cases:
            journal.add("check", kernel="k", case=case, passed=True)

    one = Kernel("k", ("k_",), lambda processors, dry: {RUNGS[0]: ["a", "b"]}, str, check, lambda case, dry: (None, ()))
    climb = Step("k, one tile", steps._climb(one, RUNGS[0], processors=1), "k")
    monkeypatch.setattr(run, "step", lambda name: climb)
    file = tmp_path / "journal.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "left", property(lambda journal: 100.0 if not ran else 0.0))
        assert run.run_step(climb.name, 100, file) == 3
    assert ran == ["a"] and not steps.is_over(climb, read(file))
    assert run.run_step(climb.name, 100, file) == 0
    assert ran == ["a", "b"] and steps.is_over(climb, read(file))
    assert [row["what"] for row in read(file) if row["kind"] == "begin"] == ["a", "b"]


def test_cases_that_compile_side_by_side_are_begun_together():
    checked: list[Sequence[str]] = []
    rungs = {RUNGS[0]: ["a", "b", "c", "d"]}
    check = lambda journal, cases: checked.append(cases)
    one = Kernel("k", ("k_",), lambda *_: rungs, str, check, lambda *_: (None, ()), together=2)
    journal = Journal("p", 100, earlier=[{"part": "p", "kind": "over", "step": "p", "case": "b"}])
    assert steps._climb(one, RUNGS[0], processors=1)(journal)
    assert checked == [("a", "c"), ("d",)]
    assert [row["what"] for row in journal.rows if row["kind"] == "begin"] == ["a, c", "d"]


def test_other_bits_in_one_of_many_launches_are_seen_but_where_they_may_vary():
    for varies, passed in (((), False), (("dq",), True)):
        calls = iter(range(100))
        launch = lambda calls=calls: (jnp.ones(3), jnp.full(3, jnp.nan if next(calls) == 30 else 2.0, jnp.bfloat16))
        repeat = lambda case, dry, launch=launch: (launch, ("out", "dq"))
        one = Kernel("k", ("k_",), lambda *_: {RUNGS[0]: ["a"]}, str, lambda *_: None, repeat, varies)
        journal = Journal("k, launches", 100)
        steps._launch(one, launches=50, processors=1)(journal)
        row = journal.rows[-1]
        assert row["launches"] == 50 and row["passed"] == passed
        assert row["differed"] == ({} if passed else {"dq": 1})
        assert (trouble("k", journal.rows) is None) == passed


def test_one_case_of_each_sort_is_launched_and_once():
    names = ["64 a", "64 b", "96 a", "128 a", "128 b"]
    repeat = lambda case, dry: (lambda: (jnp.ones(3),), ("out",))
    sort = lambda case: case.split()[0]
    one = Kernel("k", ("k_",), lambda *_: {RUNGS[0]: names}, str, lambda *_: None, repeat, sort=sort)
    refused = {"part": "k, one tile", "kind": "check", "kernel": "k", "case": "128 b", "refused": "no room"}
    earlier = [refused, {"part": "k, launches", "kind": "launches", "kernel": "k", "case": "96 a"}]
    journal = Journal("k, launches", 100, earlier=earlier)
    assert steps._launch(one, launches=40, processors=1)(journal)
    found = [(row["case"], row["launches"]) for row in journal.rows if row["kind"] == "launches"]
    assert found == [("64 b", 13), ("128 a", 13)]
    begun = [(row["kind"], row["what"]) for row in journal.rows if row["kind"] in ("begin", "compiling")]
    assert begun[:2] == [("compiling", "13 launches of 64 b"), ("begin", "13 launches of 64 b")]
    late = Journal("k, launches", 1, earlier=earlier)
    assert not steps._launch(one, processors=1)(late), "time is up: another run goes on"


def test_what_is_right_in_every_step_is_recorded_and_the_text_has_the_record(monkeypatch, capsys):
    def right(journal: Journal) -> bool:
        journal.add("check", kernel=journal.part.split(",")[0], case="c", passed=True, errors={}, allowed={})
        return True

    def wrong(journal: Journal) -> bool:
        journal.add("check", kernel="attention/mosaic", case="c", passed=False, errors={"dq": 1.0}, allowed={"dq": 0.1})
        return True

    def timed(journal: Journal) -> bool:
        for by, rate in (("mosaic_deterministic", 500.0), ("cudnn", 400.0)):
            for way, part in (("forward", 1.0), ("backward", 2.5)):
                row = attention_row(by, rate, way=way, seconds=part * case.flops() / (1e12 * rate))
                journal.add(**{name: value for name, value in row.items() if name != "part"})
        return True

    def found(journal: Journal) -> bool:
        recorded.append({record.kernel for record in read_records(user_file())})
        of_triton = journal.part == "attention/triton, racecheck"
        journal.add("sanitizer", kernel=journal.part.split(",")[0], passed=not of_triton, reported=["a hazard"])
        return True

    case = Case("causal", 8192, 128, 16, 16, batch=2)
    recorded: list[set[str]] = []
    does = lambda one: (
        timed if one == steps.ATTENTION_SPEEDS
        else (lambda journal: True) if one.kernel is None
        else found if one.tool is not None
        else wrong if one.name == "attention/mosaic, one wave"
        else right
    )  # fmt: skip
    stages = tuple(tuple(Step(one.name, does(one), one.kernel, one.tool) for one in stage) for stage in STAGES)
    monkeypatch.setattr(run, "STAGES", stages)
    monkeypatch.setattr(run, "ATTENTION_SPEEDS", stages[1][0])
    monkeypatch.setattr(run, "_device", lambda dry: H20)
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
    fast = {record.kernel: dict(record.speeds) for record in read_records(user_file()) if record.speeds}
    assert fast == {"attention/mosaic_deterministic": {"causal 128": 500.0}, "attention/cudnn": {"causal 128": 400.0}}
    printed = capsys.readouterr().out
    assert "Targets of an NVIDIA H200, beside what this NVIDIA H20 has: not judged" in printed
    assert "1.25 >= 1    causal, 8192 tokens, width 128, forward" in printed and "met     1.25" not in printed
    assert "attention/mosaic                CHECK at c (attention/mosaic, one wave); right up to: one wave" in printed
    assert "WRONG: errors {'dq': 1.0}" in printed and '"processors": 78' in printed
    (text,) = (user_file().parent / "bring_up").glob("nvidia-h20-*.txt")
    assert text.read_text() in printed and json.loads(text.read_text().splitlines()[-1])


def test_the_journal_is_of_the_gpu_the_versions_and_the_sources():
    other = H20 | {"processors": 132}, H20 | {"toolchain": {"jax": "2"}}, H20 | {"device": "NVIDIA H200"}
    assert len({run.journal_file(device) for device in (H20, *other)}) == 4
