"""Layers that are not in order on the device are moved for a save, and back, with room for one stack."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.config.kinds import ALL
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.training.residency.saved_state import SavedState, _taken
from tests.training.run.test_loop import Compilations

ORDER = LayerOrder.from_chunks([0, 1, 1, 0], [2, 3, 1, 2])
STACKS = ("up", "gate", "down")


def made() -> tuple[SavedState, dict[str, Any]]:
    """Three stacks and a table over two pipeline ranks: how they are saved, and their values."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("pipe",))
    where, everywhere = NamedSharding(mesh, PartitionSpec("pipe")), NamedSharding(mesh, PartitionSpec())
    rows = ORDER.stacks[ALL].rows
    value = lambda n: jax.device_put(jnp.arange(rows * 24.0).reshape(rows, 6, 4) + n, where)
    state = {"layers": {ALL: {name: value(n) for n, name in enumerate(STACKS)}}}
    state |= {"tokens": jax.device_put(jnp.ones((4, 6)), everywhere)}
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    return SavedState(like, ORDER), state


def on_device() -> int:
    """Bytes of the arrays in device memory."""
    return sum(array.nbytes for array in jax.live_arrays() if array.sharding.memory_kind != "pinned_host")


def test_moved_stacks_wait_for_a_save_on_the_host():
    saved, state = made()
    before = on_device()
    found = saved.outgoing(state)
    assert on_device() == before
    for n, name in enumerate(STACKS):
        wanted = np.asarray(state["layers"][ALL][name])[ORDER.stacks[ALL].row_of_layer]
        np.testing.assert_array_equal(found["layers"][ALL][name], wanted, err_msg=str(n))
    assert found["tokens"] is state["tokens"]


def test_a_restored_stack_is_freed_once_it_is_moved():
    saved, state = made()
    like = saved.abstract
    restored = jax.tree.map(lambda leaf, to: jax.device_put(leaf, to.sharding), saved.outgoing(state), like)
    before, size = on_device(), state["layers"][ALL]["up"].nbytes
    padding = size * (1 - ORDER.stacks[ALL].layers.size / ORDER.stacks[ALL].rows)
    moved = saved.incoming(restored)
    assert on_device() == before + len(STACKS) * padding
    np.testing.assert_array_equal(
        saved.outgoing(moved)["layers"][ALL]["up"], saved.outgoing(state)["layers"][ALL]["up"]
    )


def test_stacks_of_one_shape_are_moved_by_one_program_in_every_save():
    saved, state = made()
    _taken.clear_cache()
    compilations = Compilations()
    saved.outgoing(state)
    first = compilations.count
    saved.outgoing(state)
    compilations.close()
    assert first > 0, "the counter hears nothing"
    assert compilations.count == first
