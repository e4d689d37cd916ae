"""`--verify`: what the compiled programs say decides the order, the memory and the waiting for messages."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from jaxpar.compiler.report.record import Collective
from jaxpar.config import config_to_yaml
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.plan import _parser, main
from jaxpar.planner import planning
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.step_time.interval import PUBLISHED
from jaxpar.planner.verified import CLASSES, WAITS, judged, print_verified, ranked
from jaxpar.units import seconds
from tests.small_run import small

GIB = 2**30


@pytest.fixture(scope="module")
def plans() -> list[Planned]:
    """The best two of a small pipeline."""
    config = planned_config(small(data={"batch_size": 16}))
    return Search(Space(config, parse_cluster("h100:2x4"), {"pipe": "2"})).best(2)


def sent(axis: str, collective: str, *, exposed: float, of: float = 2e-3, crosses: bool = False) -> Collective:
    """A message of 1 MB that takes `of` seconds, of which nothing hides `exposed`."""
    return Collective(axis, collective, "all-gather", "bf16", crosses, 1, 1e6, 0, of, of - exposed, exposed)


def test_the_program_decides_the_order(plans: list[Planned]):
    first, second = plans
    slow = [sent("fsdp", "gather_weight", exposed=1e-3)]
    reported = ranked([judged(first, HOPPER, GIB, True, slow), judged(second, HOPPER, GIB, True, [])])
    assert [one.predicted for one in reported] == [second, first]
    reported = ranked([judged(first, HOPPER, GIB, False, []), judged(second, HOPPER, GIB, True, slow)])
    assert [one.predicted for one in reported] == [second, first], "what does not fit comes last, however fast"


def test_memory_and_waiting_are_those_of_the_program(plans: list[Planned]):
    before = plans[0].candidate
    messages = [
        sent("fsdp", "scatter_gradient", exposed=1e-3, crosses=True),
        sent("context", "gather_weight", exposed=2e-3),
        sent("context", "gather_context", exposed=4e-3, of=4e-3),
        sent("context+tensor", "gather_sequence", exposed=8e-3, of=16e-3),
        sent("pipe", "shift_stage", exposed=16e-3, of=16e-3),
        sent("host", "-", exposed=16e-3, of=16e-3),
    ]
    one = judged(plans[0], HOPPER, 3 * GIB, True, messages)
    after = one.planned.candidate
    busy = 1 - before.time.breakdown["bubble"] / before.time.seconds
    assert 0 < busy < 1
    slow = HOPPER.overlap_slowdown
    assert after.time.breakdown["data"] == pytest.approx(busy * (1e-3 + slow * 1e-3 + 2e-3))
    assert after.time.breakdown["context"] == pytest.approx(busy * 4e-3)
    assert after.time.breakdown["tensor"] == pytest.approx(busy * (8e-3 + slow * 8e-3))
    same = {name for name in before.time.breakdown if name not in WAITS}
    assert all(after.time.breakdown[name] == before.time.breakdown[name] for name in same)
    assert sum(after.time.breakdown.values()) == pytest.approx(after.time.seconds)
    assert after.time.mfu * after.time.seconds == pytest.approx(before.time.mfu * before.time.seconds)
    assert after.memory.device == 3 * GIB
    assert one.exposed_bytes == pytest.approx(1e6 * (1 / 2 + 1 + 1 + 1 / 2))
    assert one.predicted.candidate is before


def test_predicted_and_compiled_seconds_stand_side_by_side_by_class(plans: list[Planned]):
    """A made-up report of a program: kinds of kernels, and messages by axis."""
    kernels = {"matmul": 0.5, "attention": 0.25, "elementwise": 0.125, "copy": 0.0625}
    messages = [
        sent("fsdp", "scatter_gradient", exposed=1e-3),
        sent("expert", "exchange_tokens", exposed=2e-3),
        sent("pipe", "shift_stage", exposed=16e-3, of=16e-3),
        sent("host", "-", exposed=8e-3, of=16e-3),
    ]
    one = judged(plans[0], HOPPER, GIB, True, messages, (), kernels)
    found, breakdown = one.seconds_by_class, plans[0].candidate.time.breakdown
    assert found["matrix products"] == (breakdown["matmuls"], 0.5)
    moved = sum(breakdown[part] for part in ("other", "slices", "optimizer"))
    assert found["memory traffic"] == (moved, 0.1875)
    assert [found[name][1] for name in ("data", "experts", "pipe", "host")] == [1e-3, 2e-3, 16e-3, 8e-3]
    assert found["recomputation"][1] is None
    assert sum(before for before, _ in found.values()) == pytest.approx(plans[0].candidate.seconds)
    kinds = [kind for _, kinds in CLASSES.values() for kind in kinds]
    assert {*kernels, "host", "pipe", *WAITS} == {*kinds} and len(kinds) == len({*kinds})
    screen = Console(width=160, record=True, file=StringIO())
    print_verified([one], screen)
    printed = screen.export_text()
    assert "By class of time: predicted, compiled" in printed
    (line,) = [line for line in printed.splitlines() if line.strip().startswith("matrix products")]
    assert line.split()[2:] == [*seconds(breakdown["matmuls"]).split(), "500", "ms"]
    *_, steps, between, _ = printed.splitlines()
    ends = [PUBLISHED.interval(found.candidate.seconds) for found in (one.predicted, one.planned)]
    assert between.split() == ["80%", *" ".join(" to ".join(map(seconds, own)) for own in ends).split()]
    assert steps.split()[:3] == ["step", *seconds(plans[0].candidate.seconds).split()]
    assert one.to_dict()["predicted_interval_s"] == list(ends[0])
    assert one.to_dict()["seconds_by_class"]["attention"] == {"predicted": breakdown["attention"], "compiled": 0.25}


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


def test_what_places_are_worth_stays_the_same_share(plans: list[Planned]):
    placed = replace(plans[0], order=(1, 0), default_seconds=1.25 * plans[0].candidate.seconds)
    after = judged(placed, HOPPER, GIB, True, [sent("fsdp", "gather_weight", exposed=1e-1)]).planned
    assert after.candidate.seconds > 1.01 * placed.candidate.seconds
    assert after.default_seconds == pytest.approx(1.25 * after.candidate.seconds)


@pytest.mark.long
def test_the_best_two_are_compiled_and_ranked_by_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(planning, "DEFAULT_CACHE", tmp_path)
    file, output = tmp_path / "small.yaml", tmp_path / "plan.json"
    file.write_text(config_to_yaml(small(parallel={"fsdp": 1})))
    arguments = ["--config", file, "--cluster", "h100:1x2", "--top", "2", "--verify", "--out", output, "--json"]
    assert main([str(one) for one in arguments]) == 0
    files = json.loads(capsys.readouterr().out)
    found = [file["predicted"] for file in files]
    assert len(found) == 2
    assert [one["step_time_s"] for one in found] == sorted(one["step_time_s"] for one in found)
    for one in found:
        assert one["verified"]["fits"]
        assert one["peak_bytes"] == one["verified"]["allocated_bytes"] > 0
        assert one["verified"]["exposed_bytes"] > 0
        assert one["step_time_s"] != one["verified"]["predicted_step_time_s"]
        assert sum(one["breakdown"].values()) == pytest.approx(one["step_time_s"])
    assert len(list(tmp_path.glob("*.json.gz"))) == 2
    assert json.loads(output.read_text())["plan"] == files[0]["plan"]


@pytest.mark.long
def test_a_pipeline_is_compiled_as_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(planning, "DEFAULT_CACHE", tmp_path)
    file = tmp_path / "small.yaml"
    file.write_text(config_to_yaml(small(model={"layers": 2}, parallel={"fsdp": 1}, attention={"backend": "xla"})))
    arguments = ["--config", file, "--cluster", "h100:1x4", "--top", "1", "--fix", "pipe=2", "--fix", "schedule=1f1b"]
    assert main([*map(str, arguments), "--verify", "--out", str(tmp_path / "plan.json"), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)
    found = file["predicted"]
    assert file["plan"]["axes"]["pipe"] == 2
    assert found["verified"]["fits"]
    assert found["breakdown"]["bubble"] > 0
    assert any("pipeline" in note for note in found["verified"]["notes"])
    assert found["step_time_s"] == pytest.approx(sum(found["breakdown"].values()))
