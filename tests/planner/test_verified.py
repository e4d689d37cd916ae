"""`--verify`: what the compiled programs say decides the order, the memory and the waiting for messages."""

import json
import shlex
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from jaxpar.compiler.program.attribution import part_of
from jaxpar.config import config_to_yaml
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.plan import _parser, main
from jaxpar.planner import planning
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.verified import CLASSES, judged, print_verified, ranked
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
    slow = KERNELS | {"data": 1e-3}
    reported = ranked([judged(first, GIB, True, slow), judged(second, GIB, True, KERNELS)])
    assert [one.predicted for one in reported] == [second, first]
    more = KERNELS | {"matmul": 0.6}
    reported = ranked([judged(first, GIB, True, more), judged(second, GIB, True, KERNELS)])
    assert [one.predicted for one in reported] == [second, first], "by its compute too"
    reported = ranked([judged(first, GIB, False, KERNELS), judged(second, GIB, True, slow)])
    assert [one.predicted for one in reported] == [second, first], "what does not fit comes last, however fast"


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
    for name in ("matrix products", "attention"):
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


def test_plain_output_ends_with_the_command_that_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, output = tmp_path / "a model.yaml", tmp_path / "plan.json"
    file.write_text(config_to_yaml(small(parallel={"fsdp": 1})))
    given = ["--config", str(file), "--cluster", "h100:1x2", "--fix", "pipe=1", "--avoid", "offload", "--top", "1"]
    assert main([*given, "--out", str(output)]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("Check it against the compiled program: python -m jaxpar.plan ")
    words = shlex.split(last.partition(": ")[2])
    assert words[:3] == ["python", "-m", "jaxpar.plan"]
    own = _parser().parse_args([*given, "--verify"])
    assert vars(_parser().parse_args(words[3:])) == vars(own)


@pytest.mark.long
def test_the_best_two_are_compiled_and_ranked_by_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(planning, "DEFAULT_CACHE", tmp_path)
    file, output = tmp_path / "small.yaml", tmp_path / "plan.json"
    file.write_text(config_to_yaml(small(model={"layers": 2}, parallel={"fsdp": 1}, attention={"backend": "xla"})))
    arguments = ["--config", file, "--cluster", "h100:1x4", "--top", "2", "--fix", "pipe=2", "--fix", "schedule=1f1b"]
    assert main([*map(str, arguments), "--verify", "--out", str(output), "--json"]) == 0
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
