"""Carried state registered from outside the package: values on one device and a split mesh, and in checkpoints."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.layout.state import CARRIED
from tests.extending import averages
from tests.small_run import SmallRun, small
from tests.training.runs import fit, run_config

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
STEPS = 4
SPLIT: dict[str, Any] = {"fsdp": 2, "context": 2, "tensor": 2}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the registry, for the time of a test."""
    monkeypatch.setattr("jaxpar.layout.state.CARRIED", [*CARRIED, averages.averages])


def expected(values: list[float]) -> list[float]:
    """The average after each step, in float64: older values weigh less by `DECAY` a step."""
    weights = [averages.DECAY ** np.arange(n)[::-1] for n in range(1, len(values) + 1)]
    return [float(np.average(values[: len(each)], weights=each)) for each in weights]


def trained(folder: Path, name: str, steps: int, parallel: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Loss, gradient norm and recorded averages of the steps done by a run that goes on until it has `steps`."""
    sections: dict[str, Any] = {"run": {"name": name}, "model": {"layers": 1}, "parallel": parallel}
    _, recorded = fit(run_config(folder, steps, **sections))
    return [(one.loss, one.grad_norm, one.features) for one in recorded.records]


@pytest.mark.long
@pytest.mark.parametrize("parallel", [{}, SPLIT], ids=["one device", "split"])
def test_averages_are_those_of_all_steps_also_after_a_restore(tmp_path: Path, parallel: dict[str, Any]):
    steps = trained(tmp_path, "run", STEPS // 2, parallel) + trained(tmp_path, "run", STEPS, parallel)
    losses, norms, recorded = map(list, zip(*steps, strict=True))
    assert len(recorded) == STEPS
    assert [one["average_loss"] for one in recorded] == pytest.approx(expected(losses), rel=1e-6)
    assert [one["average_grad_norm"] for one in recorded] == pytest.approx(expected(norms), rel=1e-6)


@pytest.mark.long
def test_the_state_is_the_same_on_every_mesh_and_on_every_device():
    values = []
    for parallel in ({}, SPLIT):
        run = SmallRun(small(model={"layers": 1}, parallel=parallel))
        sums = run.advance(2)[0].carried["averages"]
        assert all(np.array_equal(shard.data, sums) for shard in sums.addressable_shards)
        values.append(np.asarray(sums))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)


def test_a_step_without_a_loss_does_not_enter():
    run = SmallRun(small(model={"layers": 1}))
    state, _ = run.step.train(run.step.residency.initial_state(), run.batch(0), run.step.arguments)
    before = np.asarray(state.carried["averages"])
    empty = run.rows(1)
    empty["mask"] = np.zeros_like(empty["mask"])
    state, metrics = run.step.train(state, run.place(empty), run.step.arguments)
    for after in (state.carried["averages"], metrics.carried["averages"]):
        np.testing.assert_array_equal(after, before)


def test_the_page_has_the_state_as_it_is():
    (block,) = re.findall(r"```python\n(class Averages.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block.rstrip() in Path(averages.__file__).read_text(encoding="utf-8")
