"""Every context strategy equals dense attention in float64: output and gradients, on 2 to 8 ranks."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

from jaxpar.attention import ContextLayout, RowTokens, attend
from jaxpar.attention.balance import sequence_order
from jaxpar.attention.ring import merge, ring_steps
from jaxpar.mesh.axes import AXES
from jaxpar.mesh.collectives import gather_context
from pallas_kernels.attention import CHECKPOINT_NAMES, Settings
from pallas_kernels.masks import Mask
from tests.covering import covering_rows
from tests.pallas_kernels.dense64 import Tokens, attention, pairs, worst

TOLERANCE = 1e-5
HEADS = 8
PART = PartitionSpec(None, "context")

FACTORS: dict[str, tuple[Any, ...]] = {
    "strategy": ("allgather", "ring", "ulysses", "usp"),
    "ranks": (2, 4, 8),
    "order": ("contiguous", "zigzag", "striped"),
    "mask": (
        Mask(),
        Mask(segmented=True),
        Mask(window=7, segmented=True),
        Mask(window=21),
        Mask(causal=False),
        Mask(causal=False, window=9),
    ),
    "kv_heads": (8, 2, 1),
    "width": (8, 16),
    "part": (8, 14),
    "softcap": (None, 2.0),
}
"""Blocks are of 5 queries and 6 keys, so that both lengths of a part leave a remainder."""


def _fits(row: dict[str, Any]) -> bool:
    if row.get("strategy") == "ulysses" and row.get("order", "contiguous") != "contiguous":
        return False
    return not (row.get("strategy") == "usp" and row.get("ranks", 4) == 2)


ROWS = covering_rows(FACTORS, _fits, seed=1)


def segments_of(length: int) -> np.ndarray:
    """Three rows: documents that cross the borders of ranks, whole ranks of padding, and a single document."""
    rows = np.zeros((3, length), np.int32)
    rows[0] = 1 + np.searchsorted([3, 4, length // 2 + 3, length - 5], np.arange(length), side="right")
    rows[1, : length // 3] = 1
    rows[2] = 1
    return rows


@cache
def program(strategy: str, ranks: int, order: str, settings: Settings) -> Any:
    """Compiled (q, k, v, cotangent, indices, segments), each in the order of the ranks -> (out, dq, dk, dv)."""
    mesh = jax.make_mesh(
        (1, 1, 1, 1, ranks, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=jax.devices()[:ranks]
    )
    function = attend("xla", strategy, layout_of(strategy, ranks, order))

    def local(q, k, v, d_out, indices, segments):
        row = RowTokens(indices, segments, gather_context(indices), gather_context(segments))
        out, pull = jax.vjp(lambda q, k, v: function(settings, q, k, v, row), q, k, v)
        return out, *pull(d_out)

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(PART,) * 6, out_specs=(PART,) * 4))


def layout_of(strategy: str, ranks: int, order: Any) -> ContextLayout:
    return ContextLayout(order, {"ulysses": ranks, "usp": ranks // 2}.get(strategy, 1))


def found_and_expected(row: dict[str, Any], segments: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Output and gradients of the strategy, and of dense attention in float64."""
    strategy, ranks, width = row["strategy"], row["ranks"], row["width"]
    options = Settings(row["mask"], width**-0.5, row["softcap"], query_block=5, kv_block=6)
    rng, (batch, length) = np.random.default_rng(0), segments.shape
    heads, dtype = {"q": HEADS, "k": row["kv_heads"], "v": row["kv_heads"], "d_out": HEADS}, row.get("dtype", "float32")
    inputs = {name: rng.normal(size=(batch, length, n, width)).astype(dtype) for name, n in heads.items()}
    order = sequence_order(row["order"], length, ranks // layout_of(strategy, ranks, row["order"]).ulysses)
    indices = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    placed = [array[:, order] for array in (*inputs.values(), indices, segments)]
    found = dict(zip(("out", "dq", "dk", "dv"), program(strategy, ranks, row["order"], options)(*placed), strict=True))

    kept = pairs(row["mask"], Tokens.whole_rows(segments))
    d_lse = np.zeros((batch, length, HEADS))
    expected = attention(**inputs, kept=kept, d_lse=d_lse, softcap=row["softcap"])
    return found, {name: expected[name][:, order] for name in found}


def _name(row: dict[str, Any]) -> str:
    return "-".join(str(row[name]) for name in ("strategy", "ranks", "order", "kv_heads", "part"))


@pytest.mark.matrix(quick=6, ci=8)
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_output_and_gradients_equal_dense_attention(row: dict[str, Any]):
    errors = worst(*found_and_expected(row, segments_of(row["ranks"] * row["part"])))
    assert max(errors.values()) <= TOLERANCE, errors


SINKS = np.linspace(-1.0, 2.0, HEADS).astype(np.float32)
STRATEGIES = {
    "none": ("allgather", 1, "contiguous"), "allgather": ("allgather", 2, "contiguous"), "ring": ("ring", 4, "zigzag"),
    "ulysses": ("ulysses", 4, "contiguous"), "usp": ("usp", 4, "striped"),
}  # fmt: skip
"""(strategy, ranks, order)."""


def with_sinks(q: Any, k: Any, v: Any, sinks: Any, kept: np.ndarray) -> Any:
    """Attention to one more key, with the logit of the sink and a value of 0."""
    scores = jnp.einsum("bqhd,bshd->bhqs", q, k) * q.shape[-1] ** -0.5
    last = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
    scores = jnp.concatenate([jnp.where(kept[:, None], scores, -jnp.inf), last], axis=-1)
    return jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(scores)[..., :-1], v)


@pytest.mark.matrix(quick=("usp",), ci=2)
@pytest.mark.parametrize("name", STRATEGIES)
def test_sinks_are_keys_without_values(name: str):
    strategy, ranks, order = STRATEGIES[name]
    segments = segments_of(32)
    rng, mask = np.random.default_rng(1), Mask(window=9, segmented=True)
    settings = Settings(mask, 8**-0.5, None, query_block=5, kv_block=6)
    q, k, v, d_out = (rng.normal(size=(3, 32, HEADS, 8)).astype(np.float32) for _ in range(4))
    layout = layout_of(strategy, ranks, order)
    moved = sequence_order(order, 32, ranks // layout.ulysses)
    mesh = jax.make_mesh(
        (1, 1, 1, 1, ranks, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=jax.devices()[:ranks]
    )
    function = attend("xla", strategy, layout)

    def local(q, k, v, d_out, indices, segments, sinks):
        row = RowTokens(indices, segments, gather_context(indices), gather_context(segments))
        out, pull = jax.vjp(lambda q, k, v, sinks: function(settings, q, k, v, row, sinks), q, k, v, sinks)
        return out, *pull(d_out)

    specs: Any = {"in_specs": (*(PART,) * 6, PartitionSpec()), "out_specs": (*(PART,) * 4, PartitionSpec())}
    indices = np.tile(np.arange(32, dtype=np.int32), (3, 1))
    placed = [array[:, moved] for array in (q, k, v, d_out, indices, segments)]
    found = jax.jit(jax.shard_map(local, mesh=mesh, **specs))(*placed, SINKS)
    kept = pairs(mask, Tokens.whole_rows(segments))
    with jax.enable_x64(True):
        doubles: Any = [jnp.asarray(x, jnp.float64) for x in (q, k, v, SINKS)]
        dense: Any = jax.vjp(lambda q, k, v, sinks: with_sinks(q, k, v, sinks, kept), *doubles)
        out, gradients = dense[0], dense[1](jnp.asarray(d_out, jnp.float64))
        wanted = [np.asarray(x) for x in (out, *gradients)]
    for one, other in zip(found, (*(x[:, moved] for x in wanted[:4]), wanted[4]), strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * np.abs(other).max()


LONGER = segments_of(128)
ANY = {"ranks": 4, "kv_heads": 2, "width": 8, "softcap": None, "mask": Mask(segmented=True)}


@pytest.mark.parametrize(("strategy", "order"), [("allgather", "zigzag"), ("ring", "zigzag"), ("usp", "striped")])
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), max_size=12), padding=st.integers(0, 32))
def test_documents_of_any_length_are_kept_apart(strategy: str, order: str, lengths: list[int], padding: int):
    documents = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), np.array(lengths, int))[: 32 - padding]
    segments = np.pad(documents, (0, 32 - len(documents)))[None]
    found, expected = found_and_expected({"strategy": strategy, "order": order, **ANY}, segments)
    for name, want in expected.items():  # of a document of one token the gradients are exactly 0
        np.testing.assert_allclose(found[name], want, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize(
    ("strategy", "order", "dtype"),
    [
        ("allgather", "zigzag", "bfloat16"),
        ("ring", "zigzag", "bfloat16"),
        ("ring", "contiguous", "float16"),
        ("ulysses", "contiguous", "bfloat16"),
        ("usp", "zigzag", "bfloat16"),
    ],
)
def test_in_16_bits_a_strategy_is_as_near_to_float64_as_one_device(strategy: str, order: str, dtype: str):
    row = ANY | {"ranks": 8, "width": 16, "dtype": dtype}
    alone = worst(*found_and_expected(row | {"strategy": "allgather", "order": "contiguous", "ranks": 1}, LONGER))
    errors = worst(*found_and_expected(row | {"strategy": strategy, "order": order}, LONGER))
    worse = 1.5 if strategy == "ring" else 3  # others sum gradients of keys in 16 bits: of ranks, or of repeated heads
    assert all(errors[name] <= worse * alone[name] for name in errors), (errors, alone)


@pytest.mark.parametrize(
    ("mask", "order", "steps"),
    [
        (Mask(), "contiguous", 8),
        (Mask(window=1), "contiguous", 1),
        (Mask(window=2), "contiguous", 2),
        (Mask(window=17), "contiguous", 2),
        (Mask(window=18), "contiguous", 3),
        (Mask(window=500), "contiguous", 8),
        (Mask(window=2), "zigzag", 8),
        (Mask(window=2, causal=False), "contiguous", 8),
    ],
    ids=str,
)
def test_a_ring_goes_as_far_as_a_window_reaches(mask: Mask, order: str, steps: int):
    assert ring_steps(mask, order, 16, 8) == steps


def test_ranks_outside_a_window_are_sent_nothing():
    text = _traced("ring", "contiguous", Mask(window=3))
    assert text.count(" ppermute[") == 3, "k and v in the forward and the backward, and their gradients home"
    forward = [(rank, rank + 1) for rank in range(3)]
    assert text.count(f"perm={tuple(forward)}") == 2, "the first rank hears from nobody"


@pytest.mark.parametrize(("strategy", "collective"), [("allgather", "all_gather"), ("ring", "ppermute")])
def test_a_layer_attends_once_and_keeps_nothing_of_other_ranks(strategy: str, collective: str):
    saved = ("q", "kv", *CHECKPOINT_NAMES)
    text, everything = _traced(strategy, "zigzag", Mask(), saved), _traced(strategy, "zigzag", Mask(), None)
    assert text.count(f" {collective}[") == everything.count(f" {collective}[")
    assert text.count(" exp ") == everything.count(" exp ")
    assert _traced(strategy, "zigzag", Mask(), ("q", "kv")).count(" exp ") > text.count(" exp ")


def test_the_merge_of_nothing_with_nothing_is_nothing():
    nothing = np.zeros((1, 2, 1, 4), np.float32), np.full((1, 2, 1), -np.inf, np.float32)
    out, lse = merge(nothing, nothing)
    assert not np.asarray(out).any() and (np.asarray(lse) == -np.inf).all()
    some = np.ones((1, 2, 1, 4), np.float32), np.full((1, 2, 1), 300.0, np.float32)
    for found in (merge(some, nothing), merge(nothing, some)):
        np.testing.assert_array_equal(found[0], some[0])
        np.testing.assert_array_equal(found[1], some[1])


def _traced(strategy: str, order: str, mask: Mask, saved: tuple[str, ...] | None = None) -> str:
    """The program of a layer's gradients on four ranks; `saved` are the names that it keeps, None everything."""
    mesh = jax.make_mesh((1, 1, 1, 1, 4, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=jax.devices()[:4])
    function = attend("xla", strategy, layout_of(strategy, 4, order))

    def layer(q, k, v, indices, segments):
        q, k, v = checkpoint_name(2.0 * q, "q"), checkpoint_name(2.0 * k, "kv"), checkpoint_name(2.0 * v, "kv")
        row = RowTokens(indices, segments, jnp.tile(indices, 4), jnp.tile(segments, 4))  # only traced, so any will do
        return (function(Settings(mask, 1.0), q, k, v, row) ** 2).sum()

    if saved is not None:
        layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(*saved))
    q, tokens = np.zeros((1, 32, 4, 8), np.float32), np.zeros((1, 8), np.int32)
    mapped = jax.shard_map(
        lambda q, k, v: jax.grad(layer, (0, 1, 2))(q, k, v, tokens, tokens),
        mesh=mesh, in_specs=(PART,) * 3, out_specs=(PART,) * 3,
    )  # fmt: skip
    return str(jax.make_jaxpr(mapped)(q, q, q))
