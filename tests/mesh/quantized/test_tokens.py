"""The exchange of tokens in two levels, and in codes: bits, gradients, and bytes by link."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.collectives import exchange_tokens
from jaxpar.mesh.quantized.blocks import decode, encode, row_bytes
from jaxpar.mesh.quantized.tokens import exchange_tokens_by_node, sent
from tests.traced import mesh_of, sent_by_groups


def test_an_exchange_in_two_levels_has_the_bits_of_one_and_sends_between_nodes_in_fewer_messages():
    rows = np.random.default_rng(2).standard_normal((8, 16, 3)).astype(np.float32)
    mesh = mesh_of(expert=8)

    def program(exchange: Any) -> Any:
        step = lambda x: jax.vjp(exchange, x[0])
        both = lambda x: jnp.stack([(y := step(x))[0], y[1](jnp.square(y[0]))[0]])[None]
        return jax.shard_map(both, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))

    levels = partial(exchange_tokens_by_node, node_devices=4)
    plain, found = (np.asarray(jax.jit(program(one))(rows)) for one in (exchange_tokens, levels))
    np.testing.assert_array_equal(found, plain)
    np.testing.assert_array_equal(plain[:, 0], rows.reshape(8, 8, 2, 3).transpose(1, 0, 2, 3).reshape(rows.shape))
    np.testing.assert_array_equal(plain[:, 1], np.square(rows))
    x = rows[0].nbytes
    assert sent_by_groups(mesh, program(levels), 4, rows) == {False: 2 * x * 3 // 4, True: 2 * x // 2}


def test_rows_travel_as_codes_and_their_gradient_as_it_is():
    width, wire = 300, "float8_e4m3fn"
    rows = np.random.default_rng(3).standard_normal((4, 8, width)).astype(np.float32)
    mesh = mesh_of(expert=4)

    def program(exchange: Any) -> Any:
        def step(x: jax.Array) -> jax.Array:
            y, pullback = jax.vjp(exchange, x[0])
            return jnp.stack([y, pullback(jnp.square(x[0]))[0]])[None]

        return jax.shard_map(step, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))

    in_codes = program(partial(sent, wire, exchange_tokens))
    plain, found = (np.asarray(jax.jit(one)(rows)) for one in (program(exchange_tokens), in_codes))
    exact = plain[:, 0].reshape(-1, width)
    np.testing.assert_array_equal(found[:, 0].reshape(-1, width), decode(encode(jnp.asarray(exact), wire), width, wire))
    assert 0.01 < np.abs(found[:, 0] - plain[:, 0]).max() / np.abs(plain[:, 0]).max() < 2**-4
    np.testing.assert_array_equal(found[:, 1], plain[:, 1])
    out, back = 8 * row_bytes(width, wire), rows[0].nbytes
    assert sent_by_groups(mesh, in_codes, 4, rows) == {False: (out + back) * 3 // 4, True: 0}
