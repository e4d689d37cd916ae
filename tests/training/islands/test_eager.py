"""Eager updates: an island applies its outer gradient at once, and those of the others a round later."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.layout.islands import ISLAND_WEIGHTS, OUTER_MOMENTUM, ROUND_START
from tests.same_bits import assert_same_bits, worst_difference
from tests.training.islands.test_steps import OUTER, assert_close, made, outer64, put_rows, rows_of, trained

EAGER: dict[str, Any] = {"every": 2, "outer": OUTER, "eager": True}


def states_of(run: Any, steps: int) -> list[Any]:
    """The states before the first step and after each one, on the host."""
    return [jax.device_get(run.step.residency.initial_state()), *trained(run, steps)[0]]


class Paper:
    """Algorithm 3 of arXiv:2502.12996 in float64: outer steps of each island from its weights at the start of a round.

    Its outer gradient of the round that ended counts at once, those of the others a round later.
    """

    def __init__(self, first: Any, islands: int):
        self.starts = [jax.tree.map(np.float64, first) for _ in range(islands)]
        self.momenta = [jax.tree.map(np.zeros_like, self.starts[0]) for _ in range(islands)]
        self.before = [jax.tree.map(np.zeros_like, self.starts[0]) for _ in range(islands)]

    def step(self, ends: list[Any]) -> None:
        """The next starts, from the weights of each island at the end of a round."""
        sub, islands = lambda a, b: jax.tree.map(np.subtract, a, b), len(ends)
        now = [sub(start, jax.tree.map(np.float64, end)) for start, end in zip(self.starts, ends, strict=True)]
        for i in range(islands):
            others = [self.before[j] for j in range(islands) if j != i]
            gradient = jax.tree.map(lambda *each: sum(each) / islands, now[i], *others)
            self.momenta[i] = jax.tree.map(lambda m, g: 0.9 * m + g, self.momenta[i], gradient)
            move = jax.tree.map(lambda m, g: 0.7 * (g + 0.9 * m), self.momenta[i], gradient)
            self.starts[i] = sub(self.starts[i], move)
        self.before = now


def of_island(tree: Any, island: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[island], tree)


@pytest.mark.long
@pytest.mark.parametrize("parallel", [{}, {"fsdp": 2, "tensor": 2}], ids=["one", "fsdp2-tensor2"])
def test_an_island_starts_a_round_where_the_papers_algorithm_does(parallel):
    """In float64, from the weights that the islands have at the ends of rounds; the messages are one round late."""
    states = states_of(made(EAGER, parallel=parallel), 9)
    paper = Paper(states[0].master, 2)
    for taken in (2, 4, 6, 8):
        ends = states[taken].optimizer[ISLAND_WEIGHTS]
        assert worst_difference(of_island(ends, 0), of_island(ends, 1))[0] > 1e-6, "islands have separate rows"
        shared, momentum = outer64(states[taken], ends, states[taken].optimizer[ROUND_START])
        paper.step([of_island(ends, island) for island in range(2)])
        after = states[taken + 1]
        for island in range(2):
            assert_close(of_island(after.optimizer[ROUND_START], island), paper.starts[island])
        assert_close(after.master, shared)
        assert_close(after.optimizer[OUTER_MOMENTUM], momentum)
        assert_same_bits(states[taken].master, states[taken - 1].master)


@pytest.mark.long
def test_with_one_island_nothing_is_late():
    """Each round starts where look-ahead without a delay starts, and so do the losses."""
    states, losses = trained(made(EAGER, 1), 7)
    wanted, without = trained(made({"every": 2, "outer": OUTER}, 1), 7)
    np.testing.assert_allclose(losses, without, rtol=1e-5)
    for taken in (2, 4, 6):  # the message is applied in the step after
        worst, leaf = worst_difference(states[taken].master, wanted[taken - 1].master)
        assert worst <= 1e-5, leaf


@pytest.mark.long
def test_each_fragment_has_rounds_of_its_own():
    states = states_of(made(EAGER | {"every": 4, "fragments": 2}), 9)
    for taken in (2, 4, 6, 8):
        before, after = states[taken], states[taken + 1]
        fragment = (taken // 2 - 1) % 2
        starts, ends = before.optimizer[ROUND_START], before.optimizer[ISLAND_WEIGHTS]
        shared, momentum = outer64(before, ends, starts)
        rows = partial(rows_of, fragment=fragment, fragments=2)
        put, others = partial(put_rows, rows), lambda new, old, rows=rows: put_rows(rows, old, new)
        assert_close(after.master, jax.tree.map(put, shared, before.master))
        assert_close(after.optimizer[OUTER_MOMENTUM], jax.tree.map(put, momentum, before.optimizer[OUTER_MOMENTUM]))
        for island in range(2):
            was, now = (of_island(state.optimizer[ROUND_START], island) for state in (before, after))
            assert_same_bits(jax.tree.map(others, now, was), was)
            for leaf, old in zip(jax.tree.leaves(now), jax.tree.leaves(was), strict=True):
                assert not (leaf[rows(leaf)] == old[rows(leaf)]).all()
