"""Steps on islands against the runs that they are by definition: data parallelism, one run, a replay in NumPy."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.parts import OPTIMIZERS, Optimizer
from jaxpar.layout.islands import ISLAND_WEIGHTS
from jaxpar.optim.outer import decode_message, encode_message
from jaxpar.optim.rule import Rule, RuleRequest
from tests.same_bits import assert_same_bits, worst_difference
from tests.small_run import SmallRun, small

TOLERANCE = 1e-6
AVERAGING = {"rate": 1.0, "momentum": 0.0}
SGD = {
    "name": "sgd", "learning_rate": 0.3, "weight_decay": 0.0, "clip_norm": None, "schedule": "constant",
    "warmup_steps": 0,
}  # fmt: skip


def sgd(request: RuleRequest) -> Rule:
    """Plain SGD, which has no state."""
    del request
    return Rule({}, lambda gradient, weight, state, step, arguments: (gradient, {}))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "sgd", Optimizer("tests.training.islands.test_steps:sgd"))


def made(islands: dict[str, Any] | None = None, count: int = 2, **sections: dict[str, Any]) -> SmallRun:
    """The step of two layers, unless `sections` say otherwise, on `count` islands."""
    parallel = {"islands": count, **sections.pop("parallel", {})}
    model = {"layers": 2} | sections.pop("model", {})
    return SmallRun(small(model=model, islands=islands or {}, parallel=parallel, **sections))


def trained(run: SmallRun, steps: int, alike: bool = False) -> tuple[list[Any], list[float]]:
    """The states after each step, on the host, and its losses; `alike` gives all islands the rows of the first."""
    state, states, losses = run.step.residency.initial_state(), [], []
    for step in range(steps):
        rows = run.rows(step)
        rows["mask"] = np.ones_like(rows["mask"])  # as many tokens on each island
        if alike:
            rows = {name: np.concatenate([part[: len(part) // 2]] * 2) for name, part in rows.items()}
        state, metrics = run.step.residency.advance(run.step.train, state, run.place(rows), run.step.arguments)
        states.append(jax.device_get(state))
        losses.append(float(metrics.loss))
    return states, losses


def assert_close(found: Any, wanted: Any) -> None:
    worst, leaf = worst_difference(found, wanted)
    assert worst <= TOLERANCE, f"{leaf} differs by {worst:.1e}"


@pytest.mark.long
def test_sgd_exchanged_each_step_is_data_parallelism():
    states, losses = trained(made({"every": 1, "outer": AVERAGING}, optimizer=SGD), 3)
    wanted, of_replicas = trained(made(count=1, parallel={"replica": 2}, optimizer=SGD), 3)
    assert_close(states[-1].master, wanted[-1].master)
    np.testing.assert_allclose(losses, of_replicas, rtol=TOLERANCE)


@pytest.mark.long
def test_islands_with_the_same_rows_are_one_run():
    """Whatever the optimizer, at exchanges and between them."""
    states, losses = trained(made({"every": 3, "outer": AVERAGING}), 6, alike=True)
    wanted, of_one = trained(made(count=1), 6, alike=True)
    assert_close(states[-1].master, wanted[-1].master)
    np.testing.assert_allclose(losses, of_one, rtol=TOLERANCE)


OUTER = {"rate": 0.7, "momentum": 0.9, "nesterov": True}


def outer64(state: Any, weights: Any, starts: Any = None) -> tuple[Any, Any]:
    """(global weights, momentum) after the islands exchanged `weights`, in float64; they began their round with the
    global ones, unless `starts` has others."""
    shared, momentum = (jax.tree.map(np.float64, tree) for tree in (state.master, state.optimizer["outer_momentum"]))
    starts = jax.tree.map(lambda w: w[None], shared) if starts is None else starts
    gradient = jax.tree.map(lambda w, own: (np.float64(w) - np.float64(own)).mean(axis=0), starts, weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda w, m, g: w - 0.7 * (g + 0.9 * m), shared, momentum, gradient), momentum


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_exchanges_are_updates_with_nesterov_momentum(count):
    """With one island this is look-ahead; the weights of islands just before an exchange are those of a run without."""
    run, apart = made({"every": 2, "outer": OUTER}, count), made({"every": 20}, count)
    state = run.step.residency.initial_state()
    advance = lambda run, state, step: run.step.residency.advance(
        run.step.train, state, run.place(run.rows(step)), run.step.arguments
    )[0]
    for step in range(4):
        before = jax.device_get(state)
        own = jax.device_get(advance(apart, jax.tree.map(lambda a: a.copy(), state), step)).optimizer[ISLAND_WEIGHTS]
        state = advance(run, state, step)
        after = jax.device_get(state)
        if step % 2 == 0:
            first, last = (jax.tree.map(lambda leaf, i=i: leaf[i], own) for i in (0, -1))
            assert count == 1 or worst_difference(first, last)[0] > TOLERANCE, "islands have separate rows"
            assert_same_bits((after.master, after.optimizer[ISLAND_WEIGHTS]), (before.master, own))
            continue
        shared, momentum = outer64(before, own)
        assert_close(after.master, shared)
        assert_close(after.optimizer["outer_momentum"], momentum)
        assert_same_bits(after.optimizer[ISLAND_WEIGHTS], jax.tree.map(lambda a: np.stack([a] * count), after.master))


def rows_of(leaf: np.ndarray, fragment: int, fragments: int) -> np.ndarray:
    return np.arange(len(leaf)) % fragments == fragment


def put_rows(rows: Any, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(rows(old).reshape(-1, *[1] * (old.ndim - 1)), new, old)


def count_rows(rows: Any, times: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    return times + rows(leaf)


@pytest.mark.long
@pytest.mark.parametrize(("every", "fragments", "delay", "mix"), [(2, 2, 1, 0.0), (4, 2, 1, 0.25), (4, 1, 3, 0.0)])
def test_a_fragment_is_sent_beside_a_step_and_reaches_the_islands_after_the_delay(every, fragments, delay, mix):
    """Each row of each weight is updated once in a period, from the weights before the step with its message."""
    run = made({"every": every, "outer": OUTER, "fragments": fragments, "delay": delay, "mix": mix})
    states = [jax.device_get(run.step.residency.initial_state()), *trained(run, 3 * every)[0]]
    interval, seen = every // fragments, jax.tree.map(lambda leaf: np.zeros(len(leaf), int), states[0].master)
    for taken in range(interval, 2 * every + 1, interval):
        rows = partial(rows_of, fragment=(taken // interval - 1) % fragments, fragments=fragments)
        before, after, mixed = states[taken], states[taken + 1], states[taken + delay]
        shared, momentum = outer64(before, before.optimizer[ISLAND_WEIGHTS])
        put = partial(put_rows, rows)
        assert_close(after.master, jax.tree.map(put, shared, before.master))
        assert_close(after.optimizer["outer_momentum"], jax.tree.map(put, momentum, before.optimizer["outer_momentum"]))
        for own, shared in zip(*map(jax.tree.leaves, (mixed.optimizer[ISLAND_WEIGHTS], mixed.master)), strict=True):
            own, shared = own[:, rows(shared)], shared[rows(shared)]
            assert (own == shared).all() if mix == 0 else not (own == shared).all()
        if taken <= every:
            seen = jax.tree.map(partial(count_rows, rows), seen, states[0].master)
    assert all((times == 1).all() for times in jax.tree.leaves(seen)), "fragments together are all weights"


@pytest.mark.long
@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_messages_of_few_bits_have_the_outer_gradient_of_each_island(wire):
    """The error of a message is that of `encode_message`."""
    run = made({"every": 20})
    first = jax.device_get(run.step.residency.initial_state()).master
    islands = trained(run, 2)[0][-1].optimizer[ISLAND_WEIGHTS]
    quantized = trained(made({"every": 2, "outer": AVERAGING, "wire": wire}), 2)[0][-1].master

    def averaged(shared: np.ndarray, each: np.ndarray) -> np.ndarray:
        rows = [(shared - own).reshape(1 if shared.ndim == 1 else len(shared), -1) for own in each]
        received = [np.asarray(decode_message(encode_message(sent, wire), sent.shape[1], wire)) for sent in rows]
        return shared - np.mean(received, axis=0).reshape(shared.shape)

    assert_close(quantized, jax.tree.map(averaged, first, islands))


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "fragments"),
    [
        ({"fsdp": 2, "tensor": 2}, 2),
        ({"microbatches": 2}, 2),
        ({"pipe": 2, "fsdp": 2, "microbatches": 2}, 2),
        ({"fsdp": 2}, 3),
    ],
    ids=["fsdp2-tensor2", "accumulating", "pipe2", "fsdp2-uneven"],
)
def test_islands_have_the_numbers_of_islands_of_one_device_on_other_layouts(layout: dict[str, int], fragments: int):
    """Also where a device has a number of rows that fragments do not divide."""
    islands = {"every": fragments, "outer": OUTER, "fragments": fragments, "delay": 1}
    model = {"layers": fragments}
    states, losses = trained(made(islands, model=model), 5)
    wide, of_wide = trained(made(islands, model=model, parallel=layout), 5)
    np.testing.assert_allclose(losses, of_wide, rtol=1e-5)
    worst, leaf = worst_difference(wide[-1].master, states[-1].master)
    assert worst <= 2e-5, leaf
