"""Islands that cannot train or be planned: one sentence each."""

import pytest

from jaxpar.config import Config
from jaxpar.config.axes import resolve_axes
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.validate import validate
from jaxpar.planner.planning import planned_config
from jaxpar.training.run_folder.same_run import forbidden_changes
from tests.sentences import refused

CASES = {
    "no period": (["parallel.islands=2"], ("islands.every", "null", "parallel.islands is 2")),
    "unused": (["islands.delay=2"], ("islands.delay", "not be used", "islands.every is null")),
    "unused outer": (["islands.outer.rate=0.5"], ("islands.outer.rate", "not be used")),
    "period of 0": (["islands.every=0"], ("islands.every", "at least 1", "0")),
    "no exchange": (["islands.every=11"], ("islands.every", "11", "run.steps (10)")),
    "no delayed exchange": (["islands.every=10", "islands.delay=1"],
     ("islands.every", "10", "islands.delay: 1", "step 11", "run.steps (10)")),
    "fragments": (["islands.every=10", "islands.fragments=5"], ("islands.fragments", "5", "layers of the model (4)")),
    "uneven": (["islands.every=10", "islands.fragments=4"], ("islands.every", "10", "islands.fragments (4)")),
    "delay of a period": (["run.steps=11", "islands.every=10", "islands.delay=10"],
     ("islands.delay", "10", "at most 9")),
    "delay": (["islands.every=8", "islands.fragments=4", "islands.delay=3"], ("islands.delay", "3", "at most 2")),
    "eager with a delay": (["run.steps=11", "islands.every=10", "islands.eager=true", "islands.delay=1"],
     ("islands.delay: 1", "not be used", "islands.eager: true")),
    "eager with a share": (["run.steps=11", "islands.every=10", "islands.eager=true", "islands.mix=0.5"],
     ("islands.mix: 0.5", "not be used", "islands.eager: true")),
    "no eager exchange": (["islands.every=10", "islands.eager=true"],
     ("islands.every", "10", "islands.eager: true", "step 11", "run.steps (10)")),
    "eager jobs": (["islands.every=5", "islands.folder=a", "islands.eager=true"],
     ("islands.eager: true", "not be used", "islands.folder")),
    "jobs with host state": (["islands.every=5", "islands.folder=a", "islands.offload=host"],
     ("islands.offload: host", "not be used", "islands.folder")),
    "unused host state": (["islands.offload=host"], ("islands.offload", "not be used", "islands.every is null")),
    "average": (["islands.every=8", "optimizer.ema=0.9"], ("islands.every", "optimizer.ema: 0.9")),
    "host": (["islands.every=8", "memory.optimizer_offload=host"], ("islands.every", "memory.optimizer_offload: host")),
    "mix of 1": (["islands.every=8", "islands.mix=1"], ("islands.mix", "below 1")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_islands_that_cannot_train_are_refused(case):
    overrides, words = CASES[case]
    with refused(*words):
        validate(with_overrides(Config(), ["run.steps=10", *overrides]))


def test_islands_take_devices_like_each_axis():
    parallel = with_overrides(Config(), ["parallel.islands=2", "islands.every=5"]).parallel
    with refused("parallel", "islands 2", "takes 2 devices", "there is 1"):
        resolve_axes(parallel, 1)
    assert resolve_axes(with_overrides(Config(), ["parallel.islands=2", "parallel.fsdp=-1"]).parallel, 8).fsdp == 4


def test_a_delayed_exchange_takes_a_step_more():
    validate(with_overrides(Config(), ["run.steps=11", "islands.every=10", "islands.delay=1"]))


ISLANDS = ["model.vocab=256", "parallel.islands=2", "islands.every=10"]


def test_a_planner_takes_islands_as_they_are():
    config = with_overrides(Config(), [*ISLANDS, "parallel.auto=true", "run.steps=10"])
    validate(config)
    planned = planned_config(config)
    assert (planned.parallel.islands, planned.islands) == (2, config.islands)


def test_the_layout_of_an_island_that_is_a_job_is_planned():
    planned = planned_config(with_overrides(Config(), ["model.vocab=256", "islands.every=10", "islands.folder=a"]))
    assert planned.islands.folder == "a"


def test_a_run_continues_on_as_many_islands():
    two = with_overrides(Config(), ["parallel.islands=2", "islands.every=5"])
    four = with_overrides(two, ["parallel.islands=4", "parallel.fsdp=2"])
    assert forbidden_changes(two, four) == ["parallel.islands: 2 -> 4"]
