"""Places of rows in an exchange, against plain loops; and how many rounds any routing takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.layers.experts.exchange import _sorted, by_expert, exchange_of, room_of, rounds_of, window_of
from jaxpar.layers.experts.rows import collect, spread

LISTS, EACH = 3, 2
ROUTINGS = {
    "even": np.arange(20).reshape(10, 2) % 6,
    "all to one": np.full((10, 2), 4),
    "drawn": np.random.default_rng(0).integers(0, 6, (10, 2)),
    "some count for nothing": np.where(np.arange(10)[:, None] < 6, np.random.default_rng(1).integers(0, 6, (10, 2)), 6),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_the_rounds_have_each_assignment_once_in_the_order_of_experts(name: str):
    experts, room = ROUTINGS[name], 4
    found = _sorted(jnp.asarray(experts), LISTS, EACH)
    seen: list[int] = []
    rounds = int(rounds_of(found, room))
    longest = max(np.sum(experts // EACH == number) for number in range(LISTS))
    assert rounds == max(1, -(-longest // room))
    for number in range(rounds):
        window = jax.device_get(window_of(found, room, jnp.int32(number)))
        for rank in range(LISTS):
            rows = window.assignments[rank * room : (rank + 1) * room]
            own = [experts.ravel()[row] for row in rows if row >= 0]
            assert own == sorted(own) and set(own) <= {rank * EACH, rank * EACH + 1}
            assert [own.count(rank * EACH + e) for e in range(EACH)] == window.sizes[rank].tolist()
        for row, assignment in enumerate(window.assignments):
            if assignment >= 0:
                assert window.back.ravel()[assignment] == row and window.tokens[row] == assignment // 2
        seen += [row for row in window.assignments.tolist() if row >= 0]
        assert np.sum(window.back >= 0) == np.sum(window.assignments >= 0)
    assert sorted(seen) == np.flatnonzero(experts.ravel() < 6).tolist()


def test_received_rows_are_sorted_by_expert_and_source():
    sizes, room = np.array([[2, 0, 1], [0, 3, 1], [0, 0, 0]]), 4
    take, back = jax.device_get(by_expert(jnp.asarray(sizes), room))
    rows = [(e, s, place) for s in range(3) for place, e in enumerate(np.repeat(range(3), sizes[s]))]
    wanted = [s * room + place for e, s, place in sorted(rows)]
    assert take[: len(wanted)].tolist() == wanted and (take[len(wanted) :] == -1).all()
    for row, source in enumerate(wanted):
        assert back[source, 0] == row
    assert np.sum(back >= 0) == len(wanted)


def test_derivatives_are_gathers():
    """Each function is the other's transpose, and no program has a scatter."""
    take, back = jnp.asarray([1, -1, 0, 1]), jnp.asarray([[2, -1], [0, 3]])
    x, y = jnp.float32(np.random.default_rng(0).standard_normal((2, 4, 3)))
    x = x[:2]
    up, pull_up = jax.vjp(lambda x: spread(x, take, back), x)
    down, pull_down = jax.vjp(lambda y: collect(y, take, back), y)
    np.testing.assert_array_equal(up, [x[1], 0 * x[0], x[0], x[1]])
    np.testing.assert_allclose(down, [y[2], y[0] + y[3]])
    np.testing.assert_allclose(pull_up(y)[0], down)
    np.testing.assert_allclose(pull_down(x)[0], up)
    both = lambda x: jnp.sum(collect(jnp.sin(spread(x, take, back)), take, back))
    assert "scatter" not in str(jax.make_jaxpr(jax.grad(both))(x))


def of(per_token: int) -> ExpertsConfig:
    return ExpertsConfig(count=16, per_token=per_token)


def test_room_is_bounded_and_auto_sends_less():
    assert room_of(1000, 8, 2.0) == 250 and room_of(1000, 8, 100.0) == 1000 and room_of(1000, 1, 1.0) == 1000
    assert exchange_of("auto", of(2), 1.0, expert=8, tensor=1)[0] == "all_to_all"
    assert exchange_of("auto", of(8), 2.0, expert=8, tensor=1)[0] == "all_gather"
    assert exchange_of("auto", of(2), 1.0, expert=1, tensor=4)[0] == "all_gather"
    assert exchange_of("all_gather", of(2), 1.0, expert=8, tensor=1)[0] == "all_gather"
