"""Arrays in files go to a checkpoint and come back a piece at a time, bit for bit, and fit those that are no files."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.checkpoint import Checkpointer, CheckpointError
from jaxpar.config.kinds import ALL
from jaxpar.memory import streaming
from jaxpar.memory.disk_array import DiskArray
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.training.residency.saved_state import SavedState
from tests.same_bits import assert_same_bits
from tests.sentences import refused

ORDERS = {
    "in order": LayerOrder.from_chunks([0], [8]),
    "two chunks a rank, uneven": LayerOrder.from_chunks([0, 1, 1, 0], [2, 3, 1, 2]),
}
LAYERS = 8


def sharding(**axes: int) -> NamedSharding:
    """Rows over the first axis, columns over the second."""
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(list(axes.values())))]).reshape(list(axes.values())), tuple(axes))
    return NamedSharding(mesh, PartitionSpec(*axes))


def state_like(order: LayerOrder, where: NamedSharding, kind: str | None, dtype: Any = jnp.bfloat16) -> dict[str, Any]:
    """One stack of layers, a table that is no stack, and a counter on the device."""
    stored = where if kind is None else where.with_memory_kind(kind)
    whole = NamedSharding(where.mesh, PartitionSpec())
    return {
        "layers": {ALL: {"up": jax.ShapeDtypeStruct((order.stacks[ALL].rows, 6, 4), dtype, sharding=stored)}},
        "tokens": jax.ShapeDtypeStruct((24, 6), jnp.float32, sharding=stored),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
    }


def values() -> dict[str, Any]:
    """What lies in a checkpoint: layers in order."""
    random = np.random.default_rng(0)
    layers = jnp.asarray(random.normal(size=(LAYERS, 6, 4)), jnp.bfloat16)
    return {
        "layers": {ALL: {"up": np.asarray(layers)}},
        "tokens": random.normal(size=(24, 6)).astype(np.float32),
        "step": np.int32(7),
    }


@pytest.fixture
def checkpointer(tmp_path: Path) -> Checkpointer:
    return Checkpointer(tmp_path / "saved", keep_last=1, keep_every=None, report=print)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("piece_bytes", [1, 100, 2**20])
def test_files_are_saved_and_restored_bit_for_bit_by_any_other_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointer: Checkpointer, order: LayerOrder, piece_bytes: int
):
    monkeypatch.setattr(streaming, "PIECE_BYTES", piece_bytes)
    plain = LayerOrder.from_chunks([0], [LAYERS])
    on_devices = SavedState(state_like(plain, where := sharding(pipe=4, fsdp=2), None), plain)
    in_files = SavedState(state_like(order, sharding(pipe=2, fsdp=3), "pinned_host"), order, tmp_path)
    again = SavedState(state_like(plain, sharding(pipe=8), "pinned_host"), plain, tmp_path)
    state = jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), values(), on_devices.abstract)

    checkpointer.save(1, on_devices.outgoing(state), {})
    on_disk = in_files.incoming(checkpointer.restore(1, in_files.abstract))
    assert (
        isinstance(on_disk["layers"][ALL]["up"], DiskArray)
        and on_disk["layers"][ALL]["up"].shape[0] == order.stacks[ALL].rows
    )
    checkpointer.save(2, in_files.outgoing(on_disk), {})
    moved = again.incoming(checkpointer.restore(2, again.abstract))
    checkpointer.save(3, again.outgoing(moved), {})
    restored = on_devices.incoming(checkpointer.restore(3, on_devices.abstract))
    checkpointer.close()
    assert restored["layers"][ALL]["up"].sharding == where
    assert_same_bits(restored, values())


def test_a_piece_that_is_missing_or_changed_is_noticed(tmp_path: Path, checkpointer: Checkpointer):
    order = ORDERS["in order"]
    saved = SavedState(state_like(order, sharding(pipe=2), "pinned_host"), order, tmp_path)
    state = jax.tree.map(lambda leaf: DiskArray(tmp_path, leaf), saved._abstract) | {"step": jnp.int32(1)}
    checkpointer.save(1, saved.outgoing(state), {})
    assert checkpointer.latest() == 1
    pieces = sorted((tmp_path / "saved" / "00000001" / "pieces" / "tokens").glob("[0-9]*"))
    assert len(pieces) == 2, "zeros are written like anything else"
    pieces[0].write_bytes(b"\1" + pieces[0].read_bytes()[1:])
    assert checkpointer.latest() is None
    pieces[0].unlink()
    with refused("tokens/0.0", "missing", error=CheckpointError):
        checkpointer.restore(1, saved.abstract)
    checkpointer.close()


def anonymous_bytes() -> int:
    """What this process holds in memory that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def growth(work: Callable[[], Any]) -> tuple[int, Any]:
    """By how much the memory of this process grows meanwhile at most, looked at every millisecond; and the result."""
    begin, most, over = anonymous_bytes(), [0], threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], anonymous_bytes() - begin)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        result = work()
    finally:
        over.set()
        thread.join()
    return most[0], result


def test_a_save_and_a_restore_take_a_few_pieces_of_memory_and_not_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointer: Checkpointer
):
    monkeypatch.setattr(streaming, "PIECE_BYTES", 2**20)
    order, whole, where = ORDERS["in order"], 64 * 2**20, sharding(pipe=1)
    like = {
        "tokens": jax.ShapeDtypeStruct(
            (2**8, whole // 2**10), jnp.float32, sharding=where.with_memory_kind("pinned_host")
        ),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(where.mesh, PartitionSpec())),
    }
    saved = SavedState(like, order, tmp_path)
    state = {"tokens": DiskArray(tmp_path, like["tokens"]), "step": jnp.int32(1)}
    took, _ = growth(lambda: checkpointer.save(1, saved.outgoing(state), {}))
    assert took < whole / 4
    checkpointer.wait()
    took, restored = growth(lambda: checkpointer.restore(1, saved.abstract))
    assert took < whole / 4
    took, _ = growth(restored["tokens"].to_pinned_host)
    assert took > 0.9 * whole, "a copy in memory is seen"
    checkpointer.close()
