"""Plans that are compiled: the programs decide the order, the memory and the waiting for messages."""

import json
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from jaxpar.compiler import wheels
from jaxpar.compiler.program.attribution import part_of
from jaxpar.config import config_to_yaml
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.plan import main
from jaxpar.planner import planning
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.step_time.interval import PUBLISHED
from jaxpar.planner.verified import CLASSES, Verified, judged, print_verified, ranked
from tests.small_run import small

GIB = 2**30


@pytest.fixture(scope="module")
def plans() -> list[Planned]:
    """The best two of a small pipeline."""
    config = planned_config(small(data={"batch_size": 16}))
    return Search(Space(config, parse_cluster("h100:2x4"), {"pipe": "2"})).best(2)


KERNELS = {"matmul": 0.5, "attention": 0.25, "elementwise": 0.125, "copy": 0.0625}


def test_the_program_decides_the_order(plans: list[Planned]):
    first, second = plans
    slow = judged(first, GIB, True, KERNELS | {"data": 1e-3})
    more = judged(first, GIB, True, KERNELS | {"matmul": 0.6})
    large = judged(first, GIB, False, {"matmul": 0.1})
    other = judged(second, GIB, True, KERNELS)
    for one in (slow, more, large):  # by messages, by compute, and because it does not fit, however fast
        assert ranked(plans, [one, other]) == [(other.planned, other), (one.planned, one)]
    assert ranked(plans, [slow]) == [(slow.planned, slow), (second, None)], "a predicted time is below a compiled one"
    assert ranked(plans, [large]) == [(second, None), (large.planned, large)]
    assert ranked(plans, []) == [(first, None), (second, None)]


def test_memory_and_time_are_those_of_the_program(plans: list[Planned]):
    before = plans[0].candidate
    messages = {
        ("fsdp", "scatter_gradient"): 1.5e-3, ("context", "gather_weight"): 2e-3, ("context", "gather_context"): 4e-3,
        ("context+tensor", "gather_sequence"): 8e-3, ("expert", "exchange_tokens"): 3e-3,
        ("pipe", "shift_stage"): 16e-3, ("host", "-"): 17e-3, ("fsdp+tensor", "reduce_max"): 5e-3,
    }  # fmt: skip
    parts = Counter()
    for (axis, collective), seconds in messages.items():
        parts[part_of(axis, collective)] += seconds
    one = judged(plans[0], 3 * GIB, True, KERNELS | parts)
    after = one.planned.candidate
    classes = {name: compiled for name, (_, compiled) in one.seconds_by_class.items() if compiled}
    assert classes == pytest.approx(
        {
            "matrix products": 0.5, "attention": 0.25, "memory traffic": 0.1875, "data": 3.5e-3, "context": 4e-3,
            "tensor": 8e-3, "experts": 3e-3, "pipe": 16e-3, "host": 17e-3, "scales": 5e-3,
        }
    )  # fmt: skip
    kept = before.time.breakdown["stragglers"]
    assert after.seconds == pytest.approx(sum(classes.values()) + kept)
    assert sum(after.time.breakdown.values()) == pytest.approx(after.seconds)
    assert after.time.mfu * after.seconds == pytest.approx(before.time.mfu * before.seconds)
    assert after.memory.device == 3 * GIB and one.predicted.candidate is before


def test_every_part_of_a_step_and_every_kind_of_a_program_is_in_one_class(plans: list[Planned]):
    one = judged(plans[0], GIB, True, KERNELS)
    before = sum(predicted for predicted, _ in one.seconds_by_class.values())
    kept = plans[0].candidate.time.breakdown["stragglers"]
    assert before == pytest.approx(plans[0].candidate.seconds - kept), "the bubble is in what ranks run in it"
    kinds = [kind for kinds in CLASSES.values() for kind in kinds]
    assert len(kinds) == len({*kinds}) and {*KERNELS, "host", "pipe"} < {*kinds}
    assert {*plans[0].candidate.time.breakdown} < {*kinds, "recomputation", "stragglers"}


def test_recomputation_is_in_the_classes_of_what_runs_again():
    """A full recomputation runs attention again; the classes of its trace know, which the parts of a step do not."""
    of = lambda remat: Search(Space(planned_config(small()), parse_cluster("h100:1x1"), {"remat": remat})).best(1)[0]
    judgements = [judged(of(remat), GIB, True, {"matmul": 1.0}) for remat in ("none", "full")]
    none, full = (one.seconds_by_class for one in judgements)
    for name in ("matrix products", "attention", "memory traffic"):
        assert full[name][0] > 1.05 * none[name][0], name
    for one in judgements:
        total = sum(before for before, _ in one.seconds_by_class.values())
        assert total == pytest.approx(one.predicted.candidate.time.program.seconds)


def test_a_verdict_names_the_classes_that_are_apart(plans: list[Planned]):
    like = judged(plans[0], GIB, True, {"matmul": 1.0})
    kernels = {CLASSES[name][0]: before for name, (before, _) in like.seconds_by_class.items() if before}
    same = judged(plans[0], GIB, True, kernels)
    assert same.planned.candidate.seconds == pytest.approx(plans[0].candidate.seconds)
    assert same.verdict.startswith("agrees") and same.differences == pytest.approx(dict.fromkeys(CLASSES, 0.0))
    slower = judged(plans[0], GIB, True, kernels | {"attention": kernels["attention"] + 1.0})
    assert slower.verdict.startswith("does not agree") and slower.verdict.endswith(": attention 1.00 s more")
    screen = Console(width=160, record=True, file=StringIO())
    print_verified([same, slower], screen)
    printed = screen.export_text()
    assert same.verdict in printed and slower.verdict in printed
    assert slower.to_dict()["verdict"] == slower.verdict


def test_plans_that_are_not_compiled_are_printed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A limit that is too short, then a compiler that is not installed."""
    file, output = tmp_path / "model.yaml", tmp_path / "plan.json"
    file.write_text(config_to_yaml(small(parallel={"fsdp": 1})))
    arguments = ["--config", str(file), "--cluster", "h100:1x2", "--top", "2", "--out", str(output)]
    monkeypatch.setattr(planning, "DEFAULT_CACHE", tmp_path / "cache")
    assert main([*arguments, "--timeout", "0.01"]) == 0
    out, err = capsys.readouterr()
    assert (
        "Not compiled (1, 2 in the table): compiling for h100:1x2 took longer than 0.0" in out
        and "Compiling plan 1 of 2" in err
    )
    alone = output.read_text()
    monkeypatch.setattr(wheels, "_version", lambda name: None)
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert all("which is not installed" in one["predicted"]["unverified"] for one in json.loads(out)) and not err
    assert main([*arguments, "--no-verify", "--json"]) == 0
    assert not any("unverified" in one["predicted"] for one in json.loads(capsys.readouterr().out))
    assert output.read_text() == alone


@pytest.mark.long
def test_the_best_two_are_compiled_and_ranked_by_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(planning, "DEFAULT_CACHE", tmp_path)
    file, output = tmp_path / "small.yaml", tmp_path / "plan.json"
    file.write_text(config_to_yaml(small(model={"layers": 2}, parallel={"fsdp": 1}, attention={"backend": "xla"})))
    arguments = ["--config", file, "--cluster", "h100:1x4", "--top", "2", "--fix", "pipe=2", "--fix", "schedule=1f1b"]
    assert main([*map(str, arguments), "--out", str(output), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)
    found = [file["predicted"] for file in files]
    assert len(found) == 2
    assert [one["step_time_s"] for one in found] == sorted(one["step_time_s"] for one in found)
    for one in found:
        assert one["verified"]["fits"] and any("pipeline" in note for note in one["verified"]["notes"])
        assert one["peak_bytes"] == one["verified"]["allocated_bytes"] > 0
        assert one["step_time_s"] != one["verified"]["predicted_step_time_s"]
        assert sum(one["breakdown"].values()) == pytest.approx(one["step_time_s"])
    assert len(list(tmp_path.glob("*.json.gz"))) == 2
    assert json.loads(output.read_text())["plan"] == files[0]["plan"] and files[0]["plan"]["axes"]["pipe"] == 2


def test_what_places_are_worth_stays_the_same_share(plans: list[Planned]):
    placed = replace(plans[0], order=(1, 0), default_seconds=1.25 * plans[0].candidate.seconds)
    after = judged(placed, GIB, True, {"matmul": 2 * placed.candidate.seconds}).planned
    assert after.candidate.seconds > 1.01 * placed.candidate.seconds
    assert after.default_seconds == pytest.approx(1.25 * after.candidate.seconds)


def test_measured_runs_change_compiled_times_as_they_change_predicted_ones(plans: list[Planned]):
    spread = PUBLISHED.measured([0.2, 0.2])
    kinds = {"matmul": 1.0}
    before, after = (judged(one, GIB, True, kinds).planned.candidate.seconds for one in (plans[0], plans[0].on(spread)))
    assert after == pytest.approx(spread.factor * before) and spread.factor > 1.1


def test_compiled_times_are_not_compared_with_predicted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Alternatives, and splits between sampler and trainer, where the limit leaves out all plans but the first."""

    def verify_first(plans: list[Planned], *_: object) -> tuple[list[Verified], str]:
        return [judged(plans[0], GIB, True, {"matmul": 2 * plans[0].candidate.seconds})], "no time is left"

    monkeypatch.setattr(planning, "reason_against", lambda *_: "")
    monkeypatch.setattr(planning, "verify", verify_first)
    run = ["--cluster", "h100:1x8", "--top", "2", "--out", str(tmp_path / "plan.json"), "--config"]
    assert main([*run, "configs/llama3_8b.yaml"]) == 0
    alternatives = capsys.readouterr().out.partition("Nearest alternatives")[2].splitlines()[1]
    assert " slower: " in alternatives and "-" not in alternatives.partition(": ")[2].partition(" slower")[0]
    answers = []
    for more in ([], ["--no-verify"]):
        assert main([*run, "configs/grpo_json.yaml", "--json", *more]) == 0
        answers.append(json.loads(capsys.readouterr().out)[0]["predicted"]["answers"])
    assert answers[0] == answers[1] != []
