"""Arrays in pinned host memory that pass through the device in pieces of rows, one fetched ahead.

While a piece is processed, the next one is fetched and the one before is written back. The arrays are changed in place.
XLA copies a whole array if it cannot see that a slice is read before another one is written, so each write waits for
the read of the next piece of the same array, and for no other: the write of one array overlaps the read of another.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Int, Num, PyTree

from jaxpar.mesh.layer_order import Index
from pallas_kernels.varying import vary_over

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device

PIECE_BYTES = 2**27
"""Bytes of a piece, all its arrays together, unless one row is larger: enough for a link's full speed."""


PIECES = 3
"""Pieces on the device at the same time: one is fetched, one processed and one written back."""


def is_on_host(a: Array) -> bool:
    """Whether `a` is in pinned host memory."""
    return jax.typeof(a).memory_space == HOST


def to_host[Tree](tree: Tree) -> Tree:
    """`tree` with its arrays in pinned host memory."""
    return jax.tree.map(lambda a: jax.device_put(a, HOST), tree)


def rows_of_piece(tree: PyTree[Array], least: int = 1) -> int:
    """Rows (of the first dim, which all arrays share) in a piece, at least `least` unless there are fewer.

    A number that divides the rows is taken where it makes pieces at least half as large as they may be.
    """
    arrays = jax.tree.leaves(tree)
    rows = arrays[0].shape[0]
    assert all(a.shape[0] == rows for a in arrays), f"rows of {[a.shape for a in arrays]}"
    return piece_rows(rows, sum(a.size * a.dtype.itemsize for a in arrays) // rows, least)


def piece_rows(rows: int, row_bytes: int, least: int = 1) -> int:
    """`rows_of_piece` from a number of rows and the bytes of each."""
    most = min(rows, max(least, PIECE_BYTES // max(1, row_bytes), 1))
    if most == rows:
        return rows
    divides = max((n for n in range(least, most + 1) if rows % n == 0), default=most)
    return divides if 2 * divides > most else most


def streamed[State, Along](
    function: Callable[[State, Along], State], state: State, along: Along, rows: int | None
) -> State:
    """`state` (a tree of arrays in host memory) after `function` of each of its pieces, which has the same shapes.

    Args:
        function: a piece of `state` and the same rows of `along`, on the device, to the new piece.
        state: arrays with the same first dim.
        along: a tree of arrays with that first dim too, on the device or in host memory.
        rows: rows of a piece, the last of which has what remains; None takes all at once, whatever the first dims.

    Bytes to and from the device: all of `state`, once each, and of what `along` has in host memory.
    """
    if rows is None:
        return to_host(function(jax.tree.map(lambda a: jax.device_put(a, DEVICE), state), along))
    total = jax.tree.leaves(along)[0].shape[0]
    rows = min(rows, total)
    pieces, rest = divmod(total, rows)

    def fetch(state: State, offset: Index, count: int) -> tuple[State, PyTree[Array | None]]:
        there = jax.tree.map(lambda a: _fetch(a, offset, count) if is_on_host(a) else None, along)
        return _fetch(state, offset, count), there

    def apply(piece: tuple[State, PyTree[Array | None]], offset: Index, count: int) -> State:
        slice_of = lambda a, there: _slice(a, offset, count) if there is None else there
        return function(piece[0], jax.tree.map(slice_of, along, piece[1]))

    def turn(index: Index, carry: tuple[State, PyTree]) -> tuple[State, PyTree]:
        state, piece = carry
        following = fetch(state, (index + 1) * rows, rows)
        new = apply(piece, index * rows, rows)
        state, arrived = _after(state, following[0])
        return write_rows(state, new, index * rows), (arrived, following[1])

    state, piece = lax.fori_loop(0, pieces - 1, turn, (state, fetch(state, 0, rows)))
    first = (pieces - 1) * rows
    following = fetch(state, pieces * rows, rest) if rest else None
    new = apply(piece, first, rows)
    if following is not None:
        state, arrived = _after(state, following[0])
        following = arrived, following[1]
    state = write_rows(state, new, first)
    if following is not None:
        state = write_rows(state, apply(following, pieces * rows, rest), first + rows)
    return state


def map_taken_rows(
    function: Callable[[Array, Array], Array], a: Num[Array, "..."], rows: Int[Array, " taken"], along: Array
) -> Num[Array, "..."]:
    """`function` of some rows of `a`, which is in host memory, and of the rows `along` them, one after the other; zeros
    in place of rows of `a` beyond the last."""
    last = a.shape[0] - 1
    fetch = lambda row: jnp.where(row <= last, _fetch(a, jnp.minimum(row, last), 1)[0], 0)
    return lax.map(lambda each: function(fetch(each[0]), each[1]), (rows, along))


def replaced_rows[State, Along](
    function: Callable[[State, Along], State], state: State, along: Along, rows: Int[Array, " replaced"]
) -> State:
    """`state` (a tree of arrays in host memory) with some of its rows replaced, one after the other.

    Args:
        function: a row of `state` and one of `along`, on the device, to the new row.
        state: arrays with the same first dim.
        along: arrays on the device with a row for each of `rows`.
        rows: their indices; those beyond the last row are none.
    """
    last = jax.tree.leaves(state)[0].shape[0] - 1

    def turn(index: Index, state: State) -> State:
        row = jnp.minimum(rows[index], last)
        old = _fetch(state, row, 1)
        new = function(old, _slice(along, index, 1))
        new = jax.tree.map(lambda new, old: jnp.where(rows[index] <= last, new, old), new, old)
        return write_rows(state, new, row)

    return lax.fori_loop(0, rows.shape[0], turn, state)


def fetched_rows(a: Num[Array, "..."], dtype: DTypeLike, rows: int) -> Num[Array, "..."]:
    """`a`, which is in host memory, on the device as `dtype`, without a whole copy in its own dtype there."""
    if a.ndim == 0 or rows >= a.shape[0]:
        return jax.device_put(a, DEVICE).astype(dtype)
    return map_row_pieces(lambda piece: piece.astype(dtype), a, rows)


def map_rows(function: Callable[..., Array], a: Num[Array, "..."], along: tuple[Array, ...], rows: range) -> Array:
    """`function` of some rows of `a` and of the same rows of the arrays `along` it: in pieces where `a` is in host
    memory, else at once."""
    if is_on_host(a):
        return map_row_pieces(function, a, rows_of_piece(a), rows.start, rows.stop, along)
    return function(*(array[rows.start : rows.stop] for array in (a, *along)))


def map_row_pieces(
    function: Callable[..., Array],
    a: Num[Array, "..."],
    rows: int,
    first: int = 0,
    end: int | None = None,
    along: tuple[Array, ...] = (),
) -> Num[Array, "..."]:
    """`function` of pieces of so many rows of `a`, which is in host memory, from row `first` on, or to before `end`: an
    array of as many rows, on the device. It also has the same rows of the arrays `along` it, which are on the
    device."""
    total = (a.shape[0] if end is None else end) - first
    rows = min(rows, total)
    pieces, rest = divmod(total, rows)
    of = lambda piece, offset: function(piece, *_slice(along, first + offset, piece.shape[0]))
    like = jax.eval_shape(lambda a: of(_fetch(a, 0, 1), 0), a)
    made = vary_over(jnp.zeros((total, *like.shape[1:]), like.dtype), like.manual_axis_type.varying)

    def turn(piece_index: Index, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        made, piece = carry
        following = _fetch(a, first + (piece_index + 1) * rows, rows)
        return lax.dynamic_update_slice_in_dim(made, of(piece, piece_index * rows), piece_index * rows, 0), following

    made, piece = lax.fori_loop(0, pieces - 1, turn, (made, _fetch(a, first, rows)))
    last = [(piece, (pieces - 1) * rows), *([(_fetch(a, first + pieces * rows, rest), pieces * rows)] if rest else [])]
    for piece, offset in last:
        made = lax.dynamic_update_slice_in_dim(made, of(piece, offset), offset, 0)
    return made


def write_rows[State](state: State, new: State, first: Index) -> State:
    """`state` (in host memory) with rows from `first` on replaced by those of `new`, from the device."""
    return jax.tree.map(lambda a, b: lax.dynamic_update_slice_in_dim(a, jax.device_put(b, HOST), first, 0), state, new)


def _slice[Tree](tree: Tree, first: Index, rows: int) -> Tree:
    return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, rows), tree)


def _fetch[Tree](tree: Tree, first: Index, rows: int) -> Tree:
    in_order = lambda a: with_layout_constraint(a, Layout(tuple(range(a.ndim))))
    return jax.tree.map(lambda a: jax.device_put(in_order(a), DEVICE), _slice(tree, first, rows))


def _after[State](state: State, fetched: State) -> tuple[State, State]:
    """Both, with each array of `state` held until what was fetched from it has arrived."""
    leaves, structure = jax.tree.flatten(state)
    pairs = [lax.optimization_barrier(pair) for pair in zip(leaves, jax.tree.leaves(fetched), strict=True)]
    states, arrived = zip(*pairs, strict=True)
    return structure.unflatten(states), structure.unflatten(arrived)
