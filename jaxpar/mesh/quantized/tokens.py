"""The exchange of tokens between the ranks of routed matrices: in two levels, and as codes of 8 bits."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxpar.mesh.axes import ROUTED_AXIS
from jaxpar.mesh.collectives import exchange_tokens, require_varying
from jaxpar.mesh.quantized.blocks import decode, encode
from jaxpar.mesh.quantized.transport import levels_of
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp


def exchange_tokens_by_node(x: Shaped[Array, "rows ..."], node_devices: int) -> Shaped[Array, "rows ..."]:
    """`exchange_tokens` in two steps, with the same bits: inside each node to the rank with the same place in its node
    as the receiver, then between nodes (HetuMoE, arXiv:2203.14685). It is its own inverse and derivative.

    Of n = nodes * ranks, with `ranks` in each node, a device sends between nodes as many bytes as in one step,
    `x * (nodes - 1) / nodes`, in `nodes - 1` messages and not in `(nodes - 1) * ranks`. Inside the node it sends
    `x * (ranks - 1) / ranks` in `ranks - 1` messages; in one step these are `x * (ranks - 1) / n`.
    """
    require_varying(x, (ROUTED_AXIS,), "exchange_tokens")
    levels = levels_of((ROUTED_AXIS,), node_devices)
    if 1 in levels:
        return exchange_tokens(x)
    with jax.named_scope("exchange_tokens"):
        parts = x.reshape(levels.nodes, levels.ranks, -1, *x.shape[1:])
        # [node of the receiver, its place, ...] to [node of the receiver, place of the sender, ...]
        inside = lax.all_to_all(parts, ROUTED_AXIS, 1, 1, axis_index_groups=levels.inside, tiled=True)
        return lax.all_to_all(inside, ROUTED_AXIS, 0, 0, axis_index_groups=levels.between, tiled=True).reshape(x.shape)


def sent(
    dtype: str | None, send: Callable[..., jax.Array], x: Float[Array, "tokens embed"], *places: jax.Array
) -> Float[Array, "rows embed"]:
    """`send(x, *places)`, which moves rows as they are, with each row as block codes on its way.

    A token is rounded to the nearest code once, however many copies are sent. Its gradient is that of `send`, in the
    dtype of `x`. A row of n numbers has `row_bytes(n, dtype)` bytes; None sends `x` itself.
    """
    if dtype is None:
        return send(x, *places)
    x, places = vary_alike((x, places))
    return _send_quantized(dtype, send, len(x), x, *places)


@custom_vjp(0, 1, 2)
def _send_quantized(
    dtype: str, send: Callable[..., jax.Array], tokens: int, x: jax.Array, *places: jax.Array
) -> jax.Array:
    del tokens
    return decode(send(encode(x, dtype), *places), x.shape[1], dtype).astype(x.dtype)


def _forward(
    dtype: str, send: Callable[..., jax.Array], tokens: int, x: jax.Array, *places: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _send_quantized(dtype, send, tokens, x, *places), places


def _backward(
    dtype: str, send: Callable[..., jax.Array], tokens: int, places: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array | None, ...]:
    del dtype
    anywhere = vary_alike((jnp.zeros((tokens, dy.shape[1]), dy.dtype), dy))[0]  # linear in `x`
    return *jax.vjp(lambda x: send(x, *places), anywhere)[1](dy), *[None for _ in places]


_send_quantized.defvjp(_forward, _backward)
