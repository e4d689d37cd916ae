"""State of some weights on the device while that of the others is in host memory: the same bits, and fewer copies."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import Config
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.state_bytes import offloaded_state_bytes, state_bytes
from jaxpar.layout.memory.state_storage import offload_rows, streamed_bytes
from jaxpar.layout.state import weight_states
from jaxpar.layout.step_layout import StepLayout
from jaxpar.observe.events import Summary
from jaxpar.pages.units import size
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.step.train_step import TrainStep
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small
from tests.traced import operations
from tests.training.runs import run_config, saved_state

STEPS = 3
STAYS = ("embedding.tokens", "final_norm.scale", "layers.all.attention.query", "layers.all.mlp.up")
HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


pytestmark = pytest.mark.usefixtures("in_pieces")


def run_of(stays: tuple[str, ...] | None, **sections: Any) -> SmallRun:
    """With the state of these weights on the device and the rest on the host; None leaves all on the device."""
    run = SmallRun(small(memory={"optimizer_offload": "none" if stays is None else "host"}, **sections))
    if stays is not None:
        plan = replace(run.step.layout.plan, resident_weights=stays)
        run.step = TrainStep(StepLayout(run.config, plan), run.step.mesh)
    return run


def trained(run: SmallRun) -> tuple[list[tuple[float, float]], float, Any]:
    """Loss and gradient norm of some steps, the validation loss after them, and the state."""
    state, metrics = run.advance(STEPS)
    losses_and_norms = [(float(of_step.loss), float(of_step.grad_norm)) for of_step in metrics]
    return losses_and_norms, float(run.step.evaluate(state.master, run.batch(0))[0]["loss"]), state


CASES: dict[str, dict[str, Any]] = {
    "adamw with an average, one device, microbatches": {"optimizer": {"ema": 0.9}, "parallel": {"microbatches": 2}},
    "muon, fsdp, zero 3, microbatches": {
        "parallel": {"fsdp": 4, "zero": 3, "microbatches": 2},
        "optimizer": {"name": "muon"},
    },
    "adamw, padded pipeline, zero 1": {"parallel": {"pipe": 2, "fsdp": 2, "zero": 1, "microbatches": 4}},
}


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", CASES)
def test_the_state_is_the_same_bits_as_all_on_the_device_and_all_on_the_host(name: str):
    steps, loss, state = trained(run_of(None, **CASES[name]))
    for stays in ((), STAYS):
        run = run_of(stays, **CASES[name])
        other_steps, other_loss, other = trained(run)
        assert (other_steps, other_loss) == (steps, loss)
        assert_same_bits(jax.device_get(other), jax.device_get(state))
        each = zip(run.step.layout.weight_names, weight_states(other.master, other.optimizer), strict=True)
        stored = {name: {leaf.sharding.memory_kind for leaf in jax.tree.leaves(weight)} for name, weight in each}
        assert stored == {name: {"device"} if name in stays else {"pinned_host"} for name in stored}


def copies(run: SmallRun) -> Counter[Any]:
    """Bytes of a traced step that are copied, by the memory that they arrive in."""
    step, moved = run.step, Counter()
    layout = step.layout
    inputs = layout.abstract_state(step.mesh), layout.abstract_batch(step.mesh), layout.abstract_arguments(step.mesh)
    for equation, times in operations(step.train, *inputs):
        if equation.primitive.name == "device_put":
            for before, after in zip(equation.invars, equation.outvars, strict=True):
                if before.aval.memory_space != after.aval.memory_space:
                    moved[after.aval.memory_space] += times * after.aval.size * after.aval.dtype.itemsize
    return moved


def test_copies_of_a_step_fall_by_the_state_that_stays():
    """One copy in each direction, and one more of master weights to the device: with AdamW a third of the state."""
    every, some = run_of(()), run_of(STAYS)
    before, after = copies(every), copies(some)
    for run, moved in ((every, before), (some, after)):
        there, back = streamed_bytes(run.step.layout)
        assert moved == {DEVICE: there, HOST: back}
    full = offloaded_state_bytes(every.step.layout)
    stay = full - offloaded_state_bytes(some.step.layout)
    assert 0.2 * full < stay < 0.8 * full
    assert before[HOST] - after[HOST] == stay and before[DEVICE] - after[DEVICE] == stay * 4 // 3
    assert copies(run_of(every.step.layout.weight_names)) == {}


def test_the_plan_states_how_much_stays():
    layout = run_of(STAYS).step.layout
    (row,) = offload_rows(layout, "cpu")
    stays = state_bytes(layout) - offloaded_state_bytes(layout)
    assert row[1] == size(offloaded_state_bytes(layout)) and f"and {size(stays)} on the device; a step moves" in row[2]


UNEVEN = {"pipe": 2, "fsdp": 2, "microbatches": 4, "stage_layers": (1, 3), "zero": 1}


@pytest.mark.long
def test_a_run_may_change_where_its_state_is_stored_at_every_start(tmp_path: Path):
    """Checkpoints do not depend on where it was, nor on which weights stay on the device; layers are moved to their
    order in them, and back."""
    devices = jax.devices()[:4]

    def run(name: str, steps: int, offload: str, stays: tuple[str, ...] = ()) -> tuple[Config, Summary]:
        sections = {"model": {"layers": 4}, "parallel": UNEVEN, "memory": {"optimizer_offload": offload}}
        evaluation = {"batches": 1, "sample_tokens": 2}
        config = run_config(tmp_path, steps, run={"name": name}, evaluation=evaluation, **sections)
        plan = make_plan(resolve_config(config, len(devices)), devices[0])
        trainer = Trainer(config, devices=devices, plan=replace(plan, resident_weights=stays))
        return config, trainer.fit([])

    whole, summary = run("whole", 6, "none")
    places = [("none", ()), ("host", ()), ("host", STAYS), ("host", STAYS[:1]), ("file", ()), ("host", ())]
    for steps, (offload, stays) in enumerate(places, start=1):
        parts, found = run("parts", steps, offload, stays)
    assert found.loss == summary.loss and found.eval_loss == summary.eval_loss
    assert_same_bits(saved_state(parts, 6), saved_state(whole, 6))
