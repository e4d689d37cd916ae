"""Carried state is registered from outside the package: the step, its metrics and checkpoints follow."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpar.checkpoint import Checkpointer
from jaxpar.layout.state import CARRIED
from jaxpar.runtime.carried import Carried, Outcome
from jaxpar.training.run_folder.saves import read_state
from tests.small_run import SmallRun, small


class AppliedSteps(Carried[jax.Array]):
    """The number of applied steps, and a scale of the loss that changes with it."""

    name = "applied_steps"
    title = "number of applied steps"

    def __init__(self, saved_as: str = ""):
        self.saved_as = saved_as

    def init(self) -> jax.Array:
        return jnp.float32(0)

    def loss_scale(self, state: jax.Array) -> jax.Array:
        return 2.0 ** (state + 3)

    def next(self, state: jax.Array, outcome: Outcome) -> jax.Array:
        return state + outcome.finite

    def metrics(self, state: jax.Array, outcome: Outcome) -> jax.Array:
        return state * 10


def two_steps() -> tuple[SmallRun, Any, list[Any]]:
    run = SmallRun(small(model={"layers": 1}, parallel={"fsdp": 2, "microbatches": 2}))
    state, metrics = run.advance(2)
    return run, state, jax.device_get(metrics)


def test_registered_state_moves_with_the_step_and_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _, plain, without = two_steps()
    monkeypatch.setattr("jaxpar.layout.state.CARRIED", [*CARRIED, lambda request: AppliedSteps()])
    run, state, metrics = two_steps()
    assert float(state.carried["applied_steps"]) == 2
    assert [float(own.carried["applied_steps"]) for own in metrics] == [0, 10]
    assert [float(own.loss_scale) for own in metrics] == [8, 16]
    # Powers of two scale the loss, and gradients are divided by them: not a bit of the update changes.
    assert [own.loss for own in metrics] == [own.loss for own in without]
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), state.master, plain.master)))

    saves = Checkpointer(tmp_path, keep_last=1, keep_every=None, report=print)
    facts = {"data": "", "shuffle": None, "mixture": None, "left_out": [], "tokens": 2, "skipped": 0, "empty": 0}
    facts |= {"loss": 1.0, "eval_step": None, "eval_loss": None, "skipped_in_row": 0, "config": {}}
    saves.save(2, state, facts | {"carried": {"applied_steps": ""}})
    like = run.step.layout.abstract_state(run.step.mesh)
    for described, wanted in (("", 2), ("something else", 0)):
        messages: list[str] = []
        restored, _ = read_state(saves, 2, like, {"applied_steps": AppliedSteps(described)}, messages.append)
        assert float(restored.carried["applied_steps"]) == wanted
        assert any("number of applied steps" in text for text in messages) == (wanted == 0)
    saves.close()
