"""Places of rows in an exchange, against plain loops; and how many rounds any routing takes."""

from functools import partial
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.experts.messages import exchange_of, ranks_per_token, room_of, row_room, rows_sent
from jaxpar.layers.experts.rows import (
    collect,
    lists_by_rank,
    places_of_list,
    rounds_of,
    sort_by_expert,
    spread,
    window_of,
    without_list,
)
from jaxpar.memory.layer_shape import LayerShape
from pallas_kernels.grouped_matmul.mosaic import times_weights

RANKS, EACH, ROOM, ROWS = 3, 2, 6, 4
LISTS = jax.jit(partial(lists_by_rank, ranks=RANKS, each=EACH, room=ROOM, rows=ROWS))
WINDOW = jax.jit(window_of, static_argnums=(2, 3))
PLACES = jax.jit(partial(places_of_list, lists=RANKS, rows=ROWS, each=EACH))
HIDE = jax.jit(jax.vmap(partial(without_list, lists=RANKS, rows=ROWS), (0, None)))
ROUTINGS = {
    "even": np.arange(20).reshape(10, 2) % 6,
    "all to one rank": np.tile([4, 5], (10, 1)),
    "drawn": np.argsort(np.random.default_rng(0).random((10, 6)))[:, :2],
    "some count for nothing": np.where(np.arange(10)[:, None] < 6, np.random.default_rng(1).integers(0, 6, (10, 2)), 6),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_the_rounds_have_each_assignment_once_and_each_token_of_a_rank_in_one_row(name: str):
    experts = ROUTINGS[name]
    chosen = experts.shape[1]
    found = LISTS(jnp.asarray(experts), jnp.asarray(experts[:, 0] < 6))
    rounds, seen = int(rounds_of(found, ROWS)), []
    lists = [
        [(t, j) for t in range(10) for j in range(chosen) if experts[t, j] // EACH == rank] for rank in range(RANKS)
    ]
    assert found.lengths.tolist() == [len(own) for own in lists]
    for number in range(rounds):
        room = ROWS if number else ROOM
        window = jax.device_get(WINDOW(found, number, room, ROWS))
        for rank in range(RANKS):
            tokens = window.tokens[rank * ROWS : (rank + 1) * ROWS].tolist()
            slots = [place for place in range(rank * room, (rank + 1) * room) if window.assignments[place] >= 0]
            own = [divmod(int(window.assignments[place]), chosen) for place in slots]
            assert own == lists[rank][: len(own)], "each list in the order of tokens"
            lists[rank] = lists[rank][len(own) :]
            assert [t for t in tokens if t >= 0] == sorted({t for t, _ in own}), "one row of each token"
            assert [tokens[window.row[place]] for place in slots] == [t for t, _ in own]
            assert [rank * EACH + window.expert[place] for place in slots] == [experts[one] for one in own]
            for place, (t, j) in zip(slots, own, strict=True):
                assert window.slots[t * chosen + j, 0] == place
            seen += own
        rows = [place for place, token in enumerate(window.tokens) if token >= 0]
        assert sorted(window.back[window.back >= 0].tolist()) == rows
        assert all(row in window.back[window.tokens[row]] for row in rows)
    assert not any(lists), "nothing is left"
    assert len(seen) == len(set(seen)) == np.sum(experts < 6)


def test_received_slots_are_sorted_by_expert_and_source():
    expert = np.array([[1, 0, 1, -1], [0, 0, 1, 2], [-1, -1, -1, -1]])
    row = np.array([[0, 1, 1, -1], [0, 1, 1, 1], [-1, -1, -1, -1]])
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = jax.device_get(sort_by_expert(jnp.asarray(expert), jnp.asarray(row), jnp.asarray(weights), 3, 3, 3))
    slots = sorted((expert[s, i], s, i) for s in range(3) for i in range(4) if expert[s, i] >= 0)
    assert found.take.tolist()[: len(slots)] == [s * 3 + row[s, i] for _, s, i in slots]
    assert (found.take[len(slots) :] == -1).all() and found.sizes.tolist() == [3, 3, 1]
    assert found.weights.tolist()[: len(slots)] == [weights[s, i] for _, s, i in slots]
    for received in range(9):
        places = [place for place in range(len(slots)) if found.take[place] == received]
        assert sorted(found.back[received][found.back[received] >= 0].tolist()) == places


@pytest.mark.parametrize("name", ROUTINGS)
def test_own_rows_apart_and_those_that_are_sent_have_each_assignment_once(name: str):
    """Of two slices, for each rank: its own list is multiplied in the order of experts, and is not sent."""
    experts = ROUTINGS[name].reshape(2, 5, -1)
    chosen = experts.shape[2]
    lists = [LISTS(jnp.asarray(own), jnp.asarray(own[:, 0] < 6)) for own in experts]
    window = jax.tree.map(lambda *own: jnp.stack(own), *(WINDOW(own, 0, ROOM, ROWS) for own in lists))
    gates = np.random.default_rng(2).random(experts.shape, np.float32)
    taken = 0
    for rank in range(RANKS):
        places = jax.device_get(PLACES(window, jnp.asarray(gates), jnp.int32(rank)))
        sent = jax.device_get(HIDE(window, jnp.int32(rank)))
        mine = [
            (experts[s, t, j] % EACH, 5 * s + t, gates[s, t, j])
            for s in range(2)
            for t, j in (divmod(int(at), chosen) for at in window.assignments[s].reshape(RANKS, -1)[rank] if at >= 0)
        ]
        mine.sort(key=lambda one: one[:2])
        assert places.take.tolist() == [token for _, token, _ in mine] + [-1] * (2 * ROOM - len(mine))
        np.testing.assert_array_equal(places.weights[: len(mine)], [gate for *_, gate in mine])
        assert places.sizes.tolist() == [sum(expert == number for expert, *_ in mine) for number in range(EACH)]
        for token, back in enumerate(places.back):
            assert sorted(back[back >= 0].tolist()) == [at for at, (_, own, _) in enumerate(mine) if own == token]
        for before, after, room in zip(
            (window.tokens, window.expert), (sent.tokens, sent.expert), (ROWS, ROOM), strict=True
        ):
            wanted = np.asarray(before).reshape(2, RANKS, room).copy()
            wanted[:, rank] = -1
            np.testing.assert_array_equal(after.reshape(wanted.shape), wanted)
        assert not np.isin(sent.back, np.arange(rank * ROWS, (rank + 1) * ROWS)).any()
        assert ((sent.back >= 0).sum() + (np.asarray(places.back) >= 0).any(axis=1).sum()) == (window.back >= 0).sum()
        taken += len(mine)
    assert taken == np.sum(np.asarray(window.assignments) >= 0)


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


def test_a_token_meets_as_many_ranks_as_draws_without_replacement_give():
    qwen = ExpertsConfig(count=128, per_token=8)
    assert ranks_per_token(qwen, 8) == pytest.approx(8 * (1 - comb(112, 8) / comb(128, 8)))
    assert ranks_per_token(ExpertsConfig(count=8, per_token=1), 8) == pytest.approx(1)
    assert ranks_per_token(ExpertsConfig(count=8, per_token=8), 4) == pytest.approx(4)
    grouped = ExpertsConfig(count=256, per_token=8, router_options={"groups": 8, "groups_per_token": 4})
    assert ranks_per_token(grouped, 8) == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)))


@pytest.mark.parametrize(
    ("expert", "tensor", "exchange"), [(2, 1, "all_to_all"), (1, 1, "all_to_all"), (3, 2, "all_gather")]
)
def test_kernels_for_hopper_take_the_rows_that_there_is_room_for(expert: int, tensor: int, exchange: str):
    """1,001 tokens and room for 1.1 times an even share: no number of them is a multiple of 8 by itself."""
    experts = ExpertsConfig(count=6, per_token=3, width=64)
    model = ModelConfig(layers=1, embed=64, heads=4, mlp=64, vocab=61, experts=experts)
    shape = LayerShape(model, 1, 1001 * tensor, tensor=tensor, expert=expert, capacity=1.1, exchange=exchange)
    room = room_of(1001 * 3, expert, 1.1)
    whole = exchange == "all_gather"
    sources, later = (1, room) if whole else (expert * tensor, row_room(1001, room, experts, expert, 1.1))
    least = 1001 * 3 * tensor * min(1.1, expert)
    assert least <= shape.routed_rows < least + 8 * sources + 1, "the estimate has the room of the exchange"
    array = jax.ShapeDtypeStruct
    weights, sizes = array((2, 64, 64), jnp.bfloat16), array((2,), jnp.int32)
    hopper = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=hopper)):
        for rows in {shape.routed_rows, sources * later}:
            product = partial(times_weights, transposed=False)
            jax.jit(product).trace(array((rows, 64), jnp.bfloat16), weights, sizes).lower(lowering_platforms=("cuda",))


def test_room_is_bounded_and_auto_sends_less():
    assert room_of(1000, 8, 2.0) == 256 and room_of(1000, 8, 100.0) == 1000 and room_of(1000, 1, 1.0) == 1000
    qwen, mixtral = ExpertsConfig(count=128, per_token=8), ExpertsConfig(count=8, per_token=2)
    assert row_room(4096, room_of(8 * 4096, 8, 1.0), qwen, 8, 1.0) == 2736 < 4096, "2,734 rounded up"
    assert row_room(4096, room_of(8 * 4096, 8, 2.0), qwen, 8, 2.0) == 4096, "a rank gets no token twice"
    assert rows_sent("all_to_all", qwen, 1.0, 8, 1) == pytest.approx(7 / 8 * ranks_per_token(qwen, 8))
    assert exchange_of("auto", mixtral, 1.0, expert=8, tensor=1)[0] == "all_to_all"
    assert exchange_of("auto", qwen, 1.0, expert=8, tensor=1)[0] == "all_to_all"
    assert exchange_of("auto", qwen, 2.0, expert=8, tensor=1)[0] == "all_gather"
    assert exchange_of("auto", mixtral, 1.0, expert=1, tensor=4)[0] == "all_gather"
    assert exchange_of("all_gather", mixtral, 1.0, expert=8, tensor=1)[0] == "all_gather"
