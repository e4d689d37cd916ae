"""Tree attention over keys on 2, 4 and 8 ranks equals dense attention in float64."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jaxpar.attention.balance import sequence_order
from jaxpar.layers.tree_attention import tree_attention
from jaxpar.mesh.axes import AXES
from pallas_kernels.masks import Mask
from tests.pallas_kernels.attention.test_attention import every_equation
from tests.pallas_kernels.dense64 import Tokens, pairs
from tests.pallas_kernels.dense64 import attention as dense_attention
from tests.sentences import refused

TOLERANCE = 1e-5
BF16_TOLERANCE = 1e-2
LENGTH, BLOCK = 48, 3
LENGTHS = np.array([48, 31, 5, 1, 0, 20], np.int32)
"""Tokens of each row, the new one included: full, in part, on the first rank alone, itself alone, none, in part."""

QUERY, KEYS = PartitionSpec("fsdp", "tensor"), PartitionSpec("fsdp", "context", "tensor")
ROW, PLACES = PartitionSpec("fsdp"), PartitionSpec("fsdp", "context")


class Case(NamedTuple):
    """A run: the sizes of the mesh besides 1, what is asked for, and how the cache lies."""

    sizes: dict[str, int]
    mask: Mask = Mask()
    heads: int = 4
    kv_heads: int = 2
    value_width: int = 8
    softcap: float | None = None
    order: str = "contiguous"


CASES = {
    "2-ranks": Case({"context": 2}),
    "4-ranks-mqa": Case({"context": 4}, kv_heads=1, order="striped"),
    "8-ranks-mha": Case({"context": 8}, kv_heads=4),
    "8-ranks-window": Case({"context": 8}, Mask(window=7), heads=6),
    "window-of-one": Case({"context": 4}, Mask(window=1)),
    "softcap-narrow-values": Case({"context": 2}, softcap=1.5, value_width=3),
    "beside-rows-and-heads": Case({"context": 2, "fsdp": 2, "tensor": 2}, order="zigzag"),
    "1-rank": Case({}),
}


def inputs_of(case: Case) -> dict[str, np.ndarray]:
    rng, rows = np.random.default_rng(0), len(LENGTHS)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    order = sequence_order(case.order, LENGTH, case.sizes.get("context", 1))
    return {
        "q": 3.0 * normal(rows, case.heads, 8),
        "k": normal(rows, LENGTH, case.kv_heads, 8),
        "v": normal(rows, LENGTH, case.kv_heads, case.value_width),
        "q_indices": LENGTHS - 1,
        "kv_indices": np.tile(order, (rows, 1)),
    }


def test_a_sink_is_in_the_denominator_alone() -> None:
    case = CASES["4-ranks-mqa"]
    inputs = inputs_of(case)
    sinks = np.array([-1.0, 0.5, 3.0, 200.0], np.float32)
    found = jax.jit(mapped(case, sinks))(*inputs.values())
    q, k, v = (inputs[name].astype(np.float64) for name in ("q", "k", "v"))
    terms = np.exp(np.einsum("bhd,bsd->bhs", q, k[:, :, 0]) * 8**-0.5)
    terms *= (inputs["kv_indices"] <= inputs["q_indices"][:, None])[:, None]
    wanted = (
        np.einsum("bhs,bsd->bhd", terms, v[:, :, 0]) / (terms.sum(-1) + np.exp(sinks.astype(np.float64)))[..., None]
    )
    assert error(found, wanted) <= TOLERANCE
    assert not np.asarray(found)[4].any()


def mapped(case: Case, sinks: np.ndarray | None = None, blocks: Sequence[int] = ()) -> Any:
    """Attention of a case's inputs, with blocks of each part of the rows, or all blocks of all rows."""
    shape = tuple(case.sizes.get(axis, 1) for axis in AXES)
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, q_indices: jax.Array, kv_indices: jax.Array) -> jax.Array:
        def read(part: jax.Array, block: jax.Array) -> Any:
            rows = lambda x: x.reshape(max(1, len(blocks)), -1, *x.shape[1:])[part]
            return tuple(lax.dynamic_slice_in_dim(rows(x), BLOCK * block, BLOCK, axis=1) for x in (k, v, kv_indices))

        return tree_attention(
            q, read, jnp.array(blocks or [k.shape[1] // BLOCK]),
            mask=case.mask, softcap=case.softcap, q_indices=q_indices,
            sinks=None if sinks is None else jnp.asarray(sinks),
        )  # fmt: skip

    return jax.shard_map(attend, mesh=mesh, in_specs=(QUERY, KEYS, KEYS, ROW, PLACES), out_specs=QUERY)


def expected(case: Case, inputs: dict[str, np.ndarray]) -> np.ndarray:
    alike = np.ones_like(inputs["kv_indices"])
    tokens = Tokens(
        inputs["q_indices"][:, None], inputs["kv_indices"], alike[:, :1], alike,
        prefix_lengths=np.zeros(len(LENGTHS), np.int32),
    )  # fmt: skip
    q, kept = inputs["q"][:, None], pairs(case.mask, tokens)
    d_out = np.zeros((*q.shape[:3], case.value_width))
    return dense_attention(q, inputs["k"], inputs["v"], kept, d_out, d_out[..., 0], case.softcap)["out"][:, 0]


def error(found: jax.Array, want: np.ndarray) -> float:
    have = np.asarray(found, np.float64)
    assert np.isfinite(have).all()
    return float(np.abs(have - want).max() / np.abs(want).max())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_equals_dense_attention(case: Case) -> None:
    inputs = inputs_of(case)
    found = jax.jit(mapped(case))(*inputs.values())
    assert error(found, expected(case, inputs)) <= TOLERANCE
    assert not np.asarray(found)[4].any(), "the row without tokens gets zeros"


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_each_part_of_the_rows_reads_the_blocks_that_it_sees(parts: int) -> None:
    """Rows by length, the first of which have no tokens; what lies behind the longest row of a part is not finite."""
    case, by_length = CASES["1-rank"], np.argsort(LENGTHS)
    inputs = {name: values[by_length] for name, values in inputs_of(case).items()}
    blocks = -(-LENGTHS[by_length].reshape(parts, -1).max(axis=1) // BLOCK)
    assert (blocks[0] == 0) == (parts == 6)
    read = np.arange(LENGTH) < blocks.repeat(len(LENGTHS) // parts)[:, None] * BLOCK
    for name in ("k", "v"):
        inputs[name] = np.where(read[:, :, None, None], inputs[name], np.float32(np.nan))
    inputs["k"][0, :BLOCK] = inputs["v"][0, :BLOCK] = 0.0
    found = jax.jit(mapped(case, blocks=blocks.tolist()))(*inputs.values())
    assert error(found, expected(case, inputs_of(case))[by_length]) <= TOLERANCE


def test_bfloat16_is_merged_in_float32() -> None:
    case = Case({"context": 8})
    inputs: dict[str, Any] = inputs_of(case)
    for name in ("q", "k", "v"):
        inputs[name] = inputs[name].astype(jnp.bfloat16)
    found = jax.jit(mapped(case))(*inputs.values())
    assert found.dtype == jnp.bfloat16
    assert error(found, expected(case, inputs)) <= BF16_TOLERANCE
    assert {x.aval.dtype for equation in collectives(case, inputs) for x in equation.invars} == {jnp.dtype("float32")}


def test_scores_in_the_thousands_do_not_overflow() -> None:
    case = Case({"context": 4})
    inputs = inputs_of(case)
    inputs["q"] *= 300.0
    assert error(jax.jit(mapped(case))(*inputs.values()), expected(case, inputs)) <= 100 * TOLERANCE


def collectives(case: Case, inputs: dict[str, np.ndarray]) -> list[Any]:
    """All of the program's."""
    jaxpr = jax.make_jaxpr(mapped(case))(*inputs.values()).jaxpr
    moves = ("psum", "pmax", "pmin", "ppermute", "all_gather", "all_to_all", "reduce_scatter")
    return [equation for equation in every_equation(jaxpr) if equation.primitive.name.startswith(moves)]


def test_it_makes_one_maximum_and_one_sum_of_the_bytes_in_its_docstring() -> None:
    case = Case({"context": 8})
    maximum, total = collectives(case, inputs_of(case))
    assert maximum.primitive.name.startswith("pmax") and total.primitive.name.startswith("psum")
    sent = sum(2 * x.aval.size * 4 * 7 // 8 for equation in (maximum, total) for x in equation.invars)
    assert sent == 8 * 7 * len(LENGTHS) * case.heads * (case.value_width + 2) // 8


def test_keys_that_are_the_same_on_all_ranks_are_refused() -> None:
    mesh = jax.make_mesh((2,), ("context",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    attend = partial(tree_attention, mask=Mask(), q_indices=np.zeros(1, int))
    function = lambda q, k, v: attend(q, lambda *_: (k, v, jnp.zeros((1, 4), int)), None)
    whole = jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    with refused("reduce_sum", "all ranks", "['context']", error=ValueError):
        jax.make_jaxpr(whole)(np.zeros((1, 2, 8)), np.zeros((1, 4, 1, 8)), np.zeros((1, 4, 1, 8)))
