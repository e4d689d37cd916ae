"""The exchange of tokens in two levels: the bits of one level, and its bytes by link."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.collectives import exchange_tokens
from jaxpar.mesh.wire.tokens import exchange_tokens_by_node
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
