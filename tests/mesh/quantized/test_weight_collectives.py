"""Weights and gradients that travel quantized, or through an hpZ shard: what arrives, and the bytes sent."""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.quantized.blocks import LARGEST, row_bytes
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.mesh.quantized.weight_collectives import (
    gather_hpz,
    gather_shards,
    gather_stored,
    reduce_shards,
    scatter_shards,
)
from tests.sentences import refused
from tests.traced import mesh_of, sent_by_groups

SIZES = {"fsdp": 4, "context": 2}
SHARDS = ("fsdp", "context")
RANKS, NODE = 8, 4
MESH = mesh_of(**SIZES)
SHAPE = (8, 16, 40)
"""The shape of a whole weight; its second dim is sharded."""
WHOLE = np.random.default_rng(0).standard_normal((RANKS, *SHAPE)).astype(np.float32)
"""On each rank."""
ELEMENTS = prod(SHAPE)

HPZ = Transport(hpz=NODE)


def on_ranks(function: Any, out: P) -> Any:
    """`function` of what each rank has of a sharded weight, or of its own whole array."""
    return partial(jax.shard_map, mesh=MESH, in_specs=P(SHARDS), out_specs=out, check_vma=True)(
        lambda x: function(x[0])[None]
    )


def shards(whole: np.ndarray) -> np.ndarray:
    """[rank, ...] of a weight whose second dim is sharded."""
    return np.stack(np.split(whole, RANKS, axis=1))


def stored(x: jax.Array, transport: Transport) -> jax.Array:
    """A gather as a step does it: through the hpZ shard, if there is one."""
    if transport.hpz > 1:
        x = gather_hpz(x, SHARDS, 1, transport)
    return gather_stored(x, SHARDS, 1, transport)


@pytest.mark.parametrize("transport", [HPZ, Transport(hpz=2), Transport(node_devices=NODE)], ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exact_gather_has_every_bit_on_every_rank(transport: Transport, dtype: str):
    whole = WHOLE[0].astype(jnp.dtype(dtype))
    found = np.asarray(jax.jit(on_ranks(lambda x: stored(x, transport), P(SHARDS)))(shards(whole)))
    assert found.dtype == whole.dtype
    for rank in range(RANKS):
        np.testing.assert_array_equal(found[rank], whole)


@pytest.mark.parametrize("transport", [Transport(), HPZ, Transport(hpz=2)], ids=repr)
@pytest.mark.parametrize("weight", ["int8", "float8_e4m3fn"])
def test_a_quantized_gather_is_the_same_on_every_rank_and_within_half_a_step(weight: Any, transport: Transport):
    found = np.asarray(
        jax.jit(on_ranks(lambda x: stored(x, replace(transport, weight=weight)), P(SHARDS)))(shards(WHOLE[0]))
    )
    assert (found == found[:1]).all(), "ranks with other weights would compute with another model"
    largest = np.abs(WHOLE[0]).max()
    limit = largest / LARGEST["int8"] / 2 if weight == "int8" else np.abs(WHOLE[0]) * 2.0**-4 + largest * 2.0**-18
    error = np.abs(found[0] - WHOLE[0])
    assert (error <= limit * 1.01).all() and error.any()


BOUNDS = {"bfloat16": 2.0**-8, "int8": 1 / 127, "int4": 1.0}
"""The largest error of an element at each exchange, as a share of the largest in its block (of itself in bfloat16)."""


@pytest.mark.parametrize("node_devices", [None, NODE])
@pytest.mark.parametrize("gradient", BOUNDS)
def test_a_quantized_sum_is_within_its_bound_and_in_float32(gradient: Any, node_devices: int | None):
    """Each of n contributions is off by a step at most; in two levels, also each node's sum."""
    transport = Transport(gradient=gradient, node_devices=node_devices)
    wanted = WHOLE.sum(0)
    own, nodes = np.abs(WHOLE).max(), np.abs(WHOLE.reshape(2, NODE, *SHAPE).sum(1)).max()
    limit = BOUNDS[gradient] * 1.01 * (RANKS * own + (2 * nodes if node_devices else 0))
    shard = np.asarray(jax.jit(on_ranks(lambda x: scatter_shards(x, SHARDS, 1, transport), P(SHARDS)))(WHOLE))
    assert np.abs(shard - shards(wanted)).max() <= limit
    relative = np.linalg.norm(shard - shards(wanted)) / np.linalg.norm(wanted)
    typical = {"bfloat16": 0.003, "int8": 0.02, "int4": 0.35}
    assert typical[gradient] / 10 < relative < typical[gradient], "as docs/zeropp.md states it"
    everywhere = np.asarray(jax.jit(on_ranks(lambda x: reduce_shards(x, SHARDS, transport), P()))(WHOLE))[0]
    assert np.abs(everywhere - wanted).max() <= limit + BOUNDS[gradient] * 1.01 * (np.abs(wanted).max() + limit)


@pytest.mark.parametrize("gradient", ["int8", "int4"])
def test_quantized_sums_of_many_gradients_have_no_bias(gradient: Any):
    """The error of the mean of n draws falls with n; what is left is far below one step."""
    draws = np.random.default_rng(2).standard_normal((64, RANKS, 8, 64)).astype(np.float32) + 0.05
    transport = Transport(gradient=gradient, node_devices=NODE)
    function = jax.jit(on_ranks(lambda x: scatter_shards(x, SHARDS, 1, transport), P(SHARDS)))
    errors = [np.asarray(function(x)) - np.stack(np.split(x.sum(0), RANKS, axis=1)) for x in draws]
    spread = np.std(errors) / np.sqrt(np.size(errors))
    assert abs(np.mean(errors)) < 4 * spread


@pytest.mark.parametrize(
    ("transport", "inside", "between"),
    [
        (Transport(), 0, ELEMENTS // 8 * 4 * 7),
        (Transport(weight="int8"), 0, row_bytes(ELEMENTS // 8, "int8") * 7),
        (HPZ, ELEMENTS // 4 * 4 * 3, ELEMENTS // 8 * 4),
        (Transport(hpz=NODE, weight="float8_e4m3fn"), ELEMENTS // 4 * 4 * 3, row_bytes(ELEMENTS // 8, "int8")),
    ],
    ids=repr,
)
def test_a_gather_sends_the_bytes_of_its_formula_by_link(transport: Transport, inside: float, between: float):
    sent = sent_by_groups(MESH, on_ranks(lambda x: stored(x, transport), P(SHARDS)), NODE, shards(WHOLE[0]))
    assert (sent[False], sent[True]) == (inside, between)


@pytest.mark.parametrize(
    ("transport", "inside", "between"),
    [
        (Transport(), 0, ELEMENTS * 4 * 7 // 8),
        (Transport(gradient="bfloat16"), 0, ELEMENTS * 2 * 7 // 8),
        (Transport(gradient="int8"), 0, row_bytes(ELEMENTS // 8, "int8") * 7),
        (
            Transport(gradient="int4", node_devices=NODE),
            row_bytes(ELEMENTS // 4, "int8") * 3,
            row_bytes(ELEMENTS // 8, "int4"),
        ),
    ],
    ids=repr,
)
def test_a_reduce_scatter_sends_the_bytes_of_its_formula_by_link(transport: Transport, inside: float, between: float):
    sent = sent_by_groups(MESH, on_ranks(lambda x: scatter_shards(x, SHARDS, 1, transport), P(SHARDS)), NODE, WHOLE)
    assert (sent[False], sent[True]) == (inside, between)
    whole = sent_by_groups(MESH, on_ranks(lambda x: reduce_shards(x, SHARDS, transport), P()), NODE, WHOLE)
    last = row_bytes(ELEMENTS // 8, transport.gradient) if transport.gradient in ("int8", "int4") else None
    back = ELEMENTS // 8 * (2 if transport.gradient else 4) if last is None else last
    more = (2 * 3 * back, back) if transport.node_devices else (0, 7 * back)
    assert (whole[False], whole[True]) == (inside + more[0], between + more[1]), "an all-reduce gathers what it reduced"


@pytest.mark.parametrize("function", [scatter_shards, reduce_shards, gather_shards])
def test_a_value_that_all_ranks_hold_alike_is_refused(function: Any):
    transport = Transport(gradient="int8", weight="int8")
    own = partial(function, axes=("fsdp",), transport=transport, **({} if function is reduce_shards else {"dim": 1}))
    program = jax.shard_map(own, mesh=MESH, in_specs=P("context"), out_specs=P("context"))
    with refused("same on all ranks", "fsdp", error=ValueError):
        jax.eval_shape(program, jax.ShapeDtypeStruct((8, 16, 4), jnp.float32))
