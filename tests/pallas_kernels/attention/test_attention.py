"""Blockwise attention, held to dense float64 attention in values and gradients."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.attention import CHECKPOINT_NAMES, attention
from pallas_kernels.attention.blocks import Blocks
from pallas_kernels.masks import Mask
from tests.pallas_kernels.dense64 import Tokens, pairs, worst
from tests.pallas_kernels.dense64 import attention as dense_attention
from tests.pallas_kernels.test_masks import packed_rows
from tests.sentences import refused

TOLERANCE = 1e-5
BF16_TOLERANCE = 1.5e-2
"""Of the output, log-sum-exp and gradients under bfloat16, against float64 on the same rounded inputs."""

SEGMENTS = np.array([[1] * 11 + [2] * 20 + [3] * 2 + [0] * 4, [1] * 1 + [2] * 1 + [3] * 35], np.int32)
PACKED = Tokens.whole_rows(SEGMENTS, np.array([9, 20], np.int32))
ZIGZAG = np.r_[0:9, 28:37]
"""Queries of a rank that holds both ends of a row."""


class Case(NamedTuple):
    """One combination; blocks of 64 hold everything, so there is no loop."""

    mask: Mask
    heads: int = 4
    kv_heads: int = 2
    query_block: int = 8
    kv_block: int = 5
    softcap: float | None = None
    tokens: Tokens = PACKED
    value_width: int = 8


CASES = {
    "causal": Case(Mask()),
    "causal-one-block": Case(Mask(), 4, 4, 64, 64),
    "full": Case(Mask(causal=False), 4, 1),
    "full-one-block": Case(Mask(causal=False), query_block=64, kv_block=64),
    "window": Case(Mask(window=6), 4, 1),
    "window-of-one": Case(Mask(window=1), 2, 2),
    "window-both-ways": Case(Mask(causal=False, window=6)),
    "packed": Case(Mask(segmented=True)),
    "packed-one-block": Case(Mask(segmented=True), query_block=37, kv_block=37),
    "packed-queries-whole": Case(Mask(segmented=True), query_block=64, kv_block=16),
    "packed-keys-whole": Case(Mask(segmented=True), query_block=16, kv_block=64),
    "packed-window": Case(Mask(window=4, segmented=True), 6, 2, 16, 8),
    "packed-both-ways": Case(Mask(causal=False, segmented=True)),
    "prefix": Case(Mask(prefix=True)),
    "prefix-window-packed": Case(Mask(window=5, segmented=True, prefix=True)),
    "softcap": Case(Mask(), softcap=1.5),
    "softcap-packed-one-block": Case(Mask(segmented=True), query_block=64, kv_block=64, softcap=1.5),
    "second-half-of-the-queries": Case(Mask(window=9), tokens=PACKED.queries(slice(18, 37))),
    "zigzag-queries-packed": Case(Mask(segmented=True), tokens=PACKED.queries(ZIGZAG)),
    "narrow-values": Case(Mask(), value_width=3),
}


def random_inputs(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    (batch, queries), keys = case.tokens.q_indices.shape, case.tokens.kv_indices.shape[1]
    shapes = {
        "q": (batch, queries, case.heads, 8),
        "k": (batch, keys, case.kv_heads, 8),
        "v": (batch, keys, case.kv_heads, case.value_width),
        "d_out": (batch, queries, case.heads, case.value_width),
        "d_lse": (batch, queries, case.heads),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@partial(jax.jit, static_argnums=(0, 1))
def run(mask: Mask, options: tuple, tokens: dict, inputs: dict) -> dict[str, jax.Array]:
    attend = lambda q, k, v: attention(q, k, v, mask=mask, **tokens, **dict(options), return_lse=True)
    (out, lse), pull = jax.vjp(attend, inputs["q"], inputs["k"], inputs["v"])
    dq, dk, dv = pull((inputs["d_out"].astype(out.dtype), inputs["d_lse"]))
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def test_blocks_stay_inside_runs_of_neighbours_where_that_is_cheap() -> None:
    assert Blocks.at_most(512, 1024, 256) == Blocks(1024, 4, 256)
    assert Blocks.at_most(100, 1024, 256) == Blocks(1024, 16, 64)
    assert Blocks.at_most(100, 26, 13) == Blocks(26, 2, 13)
    assert Blocks.at_most(6, 26, 13) == Blocks(26, 5, 6), "13 is prime: blocks of one token would be too many"
    assert Blocks.at_most(512, 1000, 256) == Blocks(1000, 2, 500), "not made of such runs"


def found_and_expected(case: Case, inputs: dict[str, np.ndarray]) -> tuple[dict, dict]:
    options = tuple((name, getattr(case, name)) for name in ("query_block", "kv_block", "softcap"))
    found = run(case.mask, options, case.tokens.named(), inputs)
    return found, dense_attention(**inputs, kept=pairs(case.mask, case.tokens), softcap=case.softcap)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_lse_and_gradients_equal_dense_attention(case: Case) -> None:
    errors = worst(*found_and_expected(case, random_inputs(case)))
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("name", ["causal-one-block", "packed", "softcap"])
def test_bfloat16_stays_within_its_tolerance(name: str) -> None:
    case = CASES[name]
    inputs: dict[str, Any] = random_inputs(case)
    for tensor in ("q", "k", "v", "d_out"):
        inputs[tensor] = inputs[tensor].astype(jnp.bfloat16)
    found, expected = found_and_expected(case, inputs)
    assert found["out"].dtype == found["dk"].dtype == jnp.bfloat16 and found["lse"].dtype == jnp.float32
    errors = worst(found, expected)
    assert max(errors.values()) <= BF16_TOLERANCE, errors
    assert errors["lse"] <= TOLERANCE, "scores must accumulate in float32"


@settings(max_examples=25, deadline=None)
@given(segments=packed_rows(length=13))
def test_any_packing_of_a_row_equals_dense_attention(segments: np.ndarray) -> None:
    case = Case(Mask(segmented=True), 2, 1, 4, 3, tokens=Tokens.whole_rows(segments))
    errors = worst(*found_and_expected(case, random_inputs(case)))
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("name", ["causal", "causal-one-block"])
def test_scores_in_the_hundreds_do_not_overflow(name: str) -> None:
    inputs = random_inputs(CASES[name])
    inputs["q"] *= 300.0
    found, expected = found_and_expected(CASES[name], inputs)
    assert expected["lse"].max() > 300.0, "exp of the scores must be out of float32's range"
    errors = worst(found, expected)
    assert max(errors.values()) <= 100 * TOLERANCE, errors


@pytest.mark.parametrize("blocks", [64, 4])
def test_a_query_that_sees_nothing_gives_zero_and_harms_no_gradient(blocks: int) -> None:
    tokens = Tokens(
        q_indices=np.tile(np.arange(12), (2, 1)),
        kv_indices=np.tile(np.arange(6, 18), (2, 1)),
        q_segments=np.ones((2, 12)),
        kv_segments=np.ones((2, 12)),
        prefix_lengths=np.zeros(2),
    )
    case = Case(Mask(), query_block=blocks, kv_block=blocks, tokens=tokens)
    inputs = random_inputs(case)
    _, expected = found_and_expected(case, inputs)
    inputs["d_lse"][:, :6] = np.nan  # what merging two log-sum-exps of -inf sends back
    found, _ = found_and_expected(case, inputs)
    assert max(worst(found, expected).values()) <= TOLERANCE
    assert (np.asarray(found["out"])[:, :6] == 0).all() and np.isneginf(found["lse"])[:, :6].all()
    assert (np.asarray(found["dq"])[:, :6] == 0).all() and (np.asarray(found["dq"])[:, 6:] != 0).any()


def every_equation(jaxpr: Any) -> Any:
    """The equations of a jaxpr and of all jaxprs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from every_equation(inner)


def test_memory_is_linear_in_the_sequence_forward_and_backward() -> None:
    length, heads, width, block = 512, 2, 8, 32
    x = jnp.ones((1, length, heads, width))
    indices = jnp.arange(length)[None]
    attend = partial(attention, mask=Mask(), q_indices=indices, kv_indices=indices, query_block=block, kv_block=block)
    gradient = jax.make_jaxpr(jax.grad(lambda q, k, v: attend(q, k, v).sum(), (0, 1, 2)))(x, x, x)
    sizes = [int(np.prod(v.aval.shape)) for e in every_equation(gradient.jaxpr) for v in e.outvars]
    assert max(sizes) == length * heads * width < heads * length * length


@pytest.mark.parametrize("blocks", [64, 8])
def test_a_policy_that_saves_the_named_results_does_not_run_the_forward_again(blocks: int) -> None:
    indices = np.arange(24)[None]

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        q, k, v = (checkpoint_name(x @ w[i], "projection") for i in range(3))
        out = attention(
            q, k, v, mask=Mask(), q_indices=indices, kv_indices=indices, query_block=blocks, kv_block=blocks
        )
        return (out**2).sum()

    def work(*saved: str, remat: bool = True) -> dict[str, int]:
        policy = jax.checkpoint_policies.save_only_these_names(*saved)
        function = jax.checkpoint(layer, policy=policy) if remat else layer
        gradient = jax.make_jaxpr(jax.grad(function, (0, 1)))(jnp.ones((1, 24, 2, 8)), jnp.ones((3, 8, 8)))
        names = [equation.primitive.name for equation in every_equation(gradient.jaxpr)]
        return {name: names.count(name) for name in ("exp", "dot_general")}

    once = work(remat=False)
    assert work("projection", *CHECKPOINT_NAMES) == once
    for kept in CHECKPOINT_NAMES:
        assert work("projection", kept)["exp"] > once["exp"], "the count does not see a second forward"


BATCH, SEQUENCE, HEADS = "batch", "sequence", "heads"


@pytest.mark.parametrize(
    ("q_axes", "kv_axes", "slot_axes"),
    [
        ((BATCH, SEQUENCE, HEADS), (BATCH, None, HEADS), (BATCH, SEQUENCE)),
        ((BATCH, None, HEADS), (BATCH, None, None), (BATCH, None)),
        ((None, SEQUENCE, None), (None, None, None), (None, SEQUENCE)),
        ((None, None, None), (None, None, None), (None, None)),
    ],
    ids=["keys-of-whole-rows", "keys-shared-by-heads", "only-queries-vary", "none-vary"],
)
def test_inside_a_checked_shard_map_it_equals_the_whole(q_axes: tuple, kv_axes: tuple, slot_axes: tuple) -> None:
    mesh = jax.make_mesh((2, 2, 2), (BATCH, SEQUENCE, HEADS), axis_types=(AxisType.Auto,) * 3)
    kv_heads = 2 if HEADS in kv_axes else 1
    case = Case(Mask(window=9, segmented=True), 4, kv_heads, 5, 4, tokens=Tokens.whole_rows(SEGMENTS[:, 8:34]))
    inputs, tokens = random_inputs(case), case.tokens
    q_spec, kv_spec, of_rows = PartitionSpec(*q_axes), PartitionSpec(*kv_axes), PartitionSpec(kv_axes[0], None)
    token_spec = PartitionSpec(*slot_axes)

    def gradients(q, k, v, d_out, q_indices, q_segments, kv_indices, kv_segments):
        def objective(q, k, v):
            out = attention(
                q, k, v, mask=case.mask, q_indices=q_indices, q_segments=q_segments, kv_indices=kv_indices,
                kv_segments=kv_segments, query_block=case.query_block, kv_block=case.kv_block,
            )  # fmt: skip
            return (out * d_out).sum(), out

        (_, out), found = jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(q, k, v)
        return out, *found

    specs = (q_spec, kv_spec, kv_spec, q_spec, token_spec, token_spec, of_rows, of_rows)
    mapped = jax.shard_map(gradients, mesh=mesh, in_specs=specs, out_specs=(q_spec, q_spec, kv_spec, kv_spec))
    found = jax.jit(mapped)(
        *(inputs[name] for name in ("q", "k", "v", "d_out")),
        tokens.q_indices, tokens.q_segments, tokens.kv_indices, tokens.kv_segments,
    )  # fmt: skip
    inputs["d_lse"][:] = 0.0
    expected = dense_attention(**inputs, kept=pairs(case.mask, tokens))
    del expected["lse"]
    errors = worst(dict(zip(("out", "dq", "dk", "dv"), found, strict=True)), expected)
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 4, 3, 8), (1, 4, 2, 8), (1, 4, 2, 8)),
        ((1, 4, 2, 8), (1, 4, 2, 4), (1, 4, 2, 8)),
        ((1, 4, 2, 8), (1, 4, 2, 8), (1, 5, 2, 8)),
    ],
    ids=["heads", "width", "keys"],
)
def test_shapes_that_do_not_fit_are_refused(q: tuple, k: tuple, v: tuple) -> None:
    indices = np.arange(4)[None]
    with refused(f"query {q}", f"key {k}", f"value {v}", error=ValueError):
        attention(jnp.ones(q), jnp.ones(k), jnp.ones(v), mask=Mask(), q_indices=indices, kv_indices=indices)
