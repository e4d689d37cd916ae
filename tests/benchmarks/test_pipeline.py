"""The benchmark of pipelines, at sizes that run in no time: what it reports, and not how long anything takes."""

import json

import jax
import pytest

from benchmarks.pipeline.__main__ import main, table
from benchmarks.pipeline.actions import durations
from benchmarks.pipeline.steps import Case, Sizes, measure
from jaxpar.pipeline.lockstep import branching_ticks
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.simulate import simulate

TINY = Sizes(pipe=2, microbatches=2, layers=2, embed=16, mlp=16, vocab=32, sequence=8)


@pytest.mark.long
def test_reports_for_each_case_the_ticks_that_ran_and_the_prediction_from_the_actions_of_its_chunks():
    result = measure(TINY, [Case("zb-h1"), Case("zb-h1", branching=True)], rounds=2, repeats=1)
    uniform, branching = result["schedules"]
    assert (uniform["schedule"], branching["schedule"]) == ("zb-h1", "zb-h1, branching")
    schedule = make_schedule("zb-h1", ranks=2, microbatches=2)
    assert uniform["ticks"] == len(schedule.ticks)
    assert branching["ticks"] == len(branching_ticks(schedule.orders, schedule.chunks))
    for clock in ("wall", "processor"):
        measured = _durations(result, clock, "1 layer a chunk, split backward")
        in_ticks, apart = (simulate(schedule, measured, mode=mode) for mode in ("lockstep", "branching"))
        fixed = result["actions_s"]["a step without ticks"][clock]["median"]
        in_branches = apart.ideal if clock == "processor" else apart.makespan
        for row, ticks in ((uniform, in_ticks.makespan), (branching, in_branches)):
            buffers = row[clock]["buffers_s"]["median"]
            assert row[clock]["predicted_s"] == pytest.approx(ticks + fixed + buffers)
            executed = row[clock]["executed_s"]["median"]
            assert executed > 0
            assert row[clock]["ratio"] == pytest.approx(executed / row[clock]["predicted_s"])
    shown = table(json.loads(json.dumps(result)))
    assert "not the speed of GPUs" in shown
    assert all(row["schedule"] in shown for row in result["schedules"])


def _durations(result, clock, chunk):
    medians = {name: found[clock]["median"] for name, found in result["actions_s"].items()}
    of = lambda part: {n.removeprefix(f"{part}: "): t for n, t in medians.items() if n.startswith(f"{part}: ")}
    return durations(of("ends"), of(chunk))


def test_the_time_of_a_backward_is_that_of_its_parts():
    ends = {"embedding": 1.0, "embedding_gradients": 2.0, "head": 3.0, "transfer": 0.5}
    found = durations(ends, {"forward": 10.0, "backward": 20.0, "weight": 15.0})
    assert (found.forward, found.backward, found.weight, found.head) == (11.0, 37.0, 15.0, 3.0)
    assert not found.overlap, "the cores that compute send as well"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--layers", "3", "--schedules", "1f1b", "--branching"], "--layers: 3 does not divide into the 2 chunks"),
        (["--microbatches", "3", "--schedules", "interleaved", "--branching"], "microbatches"),
        (["--pipe", "1000", "--schedules", "1f1b"], "--branching: 1000 ranks would share"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(arguments, expected, monkeypatch, capsys):
    jax.devices()  # The command asks for devices of its own, which the other tests of this process must not get.
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err
