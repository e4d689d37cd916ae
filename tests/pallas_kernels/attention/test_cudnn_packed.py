"""Packed documents as cuDNN takes them: what it is called with, on a machine without it, and when it is allowed."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.attention import attention, comparison, cudnn, cudnn_packed, packed_room
from pallas_kernels.attention.packed_room import FEWEST, SCRATCH, Room, Shape, scratch_bytes
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.attention.request import Request
from pallas_kernels.choice import Unsupported
from pallas_kernels.masks import Mask, allowed
from tests.sentences import refused

HOPPER = Request(
    8, 2, 128, 128, Mask(segmented=True), batch=1, queries=8192, keys=8192, runs=True, compares=True, platform="gpu",
    dtype="bfloat16", compute_capability=9.0, gpu="NVIDIA H200", processors=132,
)  # fmt: skip
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 3, 3, 4, 5, 5, 5, 0, 0], [1] * 7 + [2] * 5, [0] * 12], jnp.int32)


@pytest.fixture(autouse=True)
def nothing_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_differences", {})


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """jax's module with plain formulas in place of cuDNN, which write no number for tokens outside of documents."""
    module: Any = import_module(cudnn_packed.MODULE)
    monkeypatch.setattr(module, "dot_product_attention", _Stand.forward)
    monkeypatch.setattr(module, "_dot_product_attention_bwd_rule", _Stand.backward)
    return module


class _Stand:
    """In float32, from the lengths and offsets that cuDNN would get."""

    @staticmethod
    def documents(lengths: Any, offsets: Any, length: int) -> tuple[Any, Any, Any]:
        """Of the tokens: the document's number among those of all rows, its first place, and whether there is one."""
        number = jnp.cumsum((lengths >= 0).reshape(-1)).reshape(lengths.shape) - 1
        places = jnp.arange(length)
        within = (places >= offsets[:, :-1, None]) & (places < (offsets[:, :-1] + lengths)[..., None])
        within &= (lengths > 0)[..., None] & (offsets[:, :-1, None] >= 0)
        pick = lambda x: (within * x[..., None]).sum(1)
        return pick(number), pick(offsets[:, :-1]), within.any(1)

    @staticmethod
    def formula(q: Any, k: Any, v: Any, keep: Any, scale: Any) -> tuple[Any, Any]:
        group = q.shape[2] // k.shape[2]
        k, v = (jnp.repeat(x, group, 2) for x in (k, v))
        scores = jnp.where(keep[:, None], scale * jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
        lse = jax.nn.logsumexp(scores, -1)
        return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores - lse[..., None]), v), lse

    @classmethod
    def keep(cls, number: Any, there: Any, window: int | None) -> Any:
        slots = jnp.broadcast_to(jnp.arange(number.shape[1]), number.shape)
        segments = jnp.where(there, number + 1, 0)
        return allowed(Mask(window=window, segmented=True), slots, slots, segments, segments)

    @staticmethod
    def forward(q: Any, k: Any, v: Any, *, q_seqlen: Any, kv_seqlen: Any, q_offsets: Any, kv_offsets: Any, scale: float,
                mask_type: Any, sliding_window_length: int | None, return_residual: bool) -> Any:  # fmt: skip
        assert mask_type.name == "PADDING_CAUSAL" and return_residual
        assert q_seqlen.dtype == q_offsets.dtype == jnp.int32 and kv_seqlen is q_seqlen and kv_offsets is q_offsets
        assert q_offsets.shape[1] == q_seqlen.shape[1] + 1
        number, start, there = _Stand.documents(q_seqlen, q_offsets, q.shape[1])
        out, lse = _Stand.formula(q, k, v, _Stand.keep(number, there, sliding_window_length), scale)
        room = q_seqlen.size
        statistics = jnp.full((room, q.shape[2], q.shape[1]), jnp.nan)
        at = jnp.where(there, number, room), slice(None), jnp.arange(q.shape[1]) - start
        statistics = statistics.at[at].set(lse.swapaxes(1, 2), mode="drop")
        return jnp.where(there[:, :, None, None], out, jnp.nan).astype(q.dtype), statistics

    @staticmethod
    def backward(scale: float, seed: int, dropout: float, variadic: Any, mask_type: Any, layout: int,
                 window: int | None, training: bool, return_residual: bool, residuals: tuple,
                 d_out: Any) -> tuple:  # fmt: skip
        q, k, v, _, lengths, _, offsets, _, _, _, statistics, _ = residuals
        number, start, there = _Stand.documents(lengths, offsets, q.shape[1])
        keep = _Stand.keep(number, there, window)
        _, lse = _Stand.formula(q, k, v, keep, scale)
        given = statistics[number, :, jnp.arange(q.shape[1]) - start]
        wrong = jnp.where(there[..., None], jnp.abs(given - lse.swapaxes(1, 2)), 0.0).max() > 1e-4
        _, pull = jax.vjp(lambda q, k, v: _Stand.formula(q, k, v, keep, scale)[0], q, k, v)
        gradients = pull(jnp.where(there[:, :, None, None], d_out, 0.0))
        hidden = lambda x: jnp.where(there[:, :, None, None] & ~wrong, x, jnp.nan)
        return *map(hidden, gradients), *(None,) * 7


def arrays(value_width: int = 8) -> list[jax.Array]:
    rng = np.random.default_rng(1)
    sizes = (4, 8), (2, 8), (2, value_width), (4, value_width)
    return [jnp.asarray(rng.normal(size=(3, 12, heads, width)), jnp.float32) for heads, width in sizes]


def results(attend: Any, *x: jax.Array) -> tuple[jax.Array, ...]:
    out, pull = jax.vjp(attend, *x[:3])
    return out, *pull(x[3])


@pytest.mark.parametrize(
    ("room", "window", "value_width"),
    [
        (Room(2, 2, 3, 2), None, 8), (Room(3, 2, 3, 2), 2, 5), (Room(6, 6, 3, 2), None, 8), (Room(6, 3, 1, 2), 2, 8),
        (Room(6, 2, 1, 1), None, 5), (Room(4, 3, 3, 1), 2, 8),
    ],
)  # fmt: skip
def test_documents_are_those_of_the_mask_in_as_many_calls_as_they_need(
    inside: Any, room: Room, window: int | None, value_width: int
):
    indices = jnp.broadcast_to(jnp.arange(12), (3, 12))
    plain = partial(
        attention, mask=Mask(window=window, segmented=True), q_indices=indices, kv_indices=indices,
        q_segments=SEGMENTS, kv_segments=SEGMENTS, scale=0.3,
    )  # fmt: skip
    packed = partial(cudnn_packed.attend, segments=SEGMENTS, scale=0.3, window=window, room=room)
    found, wanted = (jax.jit(partial(results, attend))(*arrays(value_width)) for attend in (packed, plain))
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-5)


@pytest.mark.parametrize(("divided", "statistics"), [(False, "f32[8,2,64]"), (True, "f32[4,1,64]")])
def test_calls_are_what_jax_lowers_inside_a_checked_map(
    divided: bool, statistics: str, monkeypatch: pytest.MonkeyPatch
):
    """A contract with a private function: its names, the arguments of its backward, and the shape of the statistics."""
    module: Any = import_module(cudnn_packed.MODULE)
    differs = ["is_training"] if jax.__version_info__ < (0, 12) else ["score_mod", "cudnn_version"]
    assert cudnn_packed.missing() is None
    assert list(inspect.signature(module._dot_product_attention_bwd_rule).parameters) == [
        "scale", "seed", "dropout_rate", "variadic_args", "mask_type", "layout", "sliding_window_length",
        *differs, "return_residual", "res", "grad_output",
    ]  # fmt: skip
    monkeypatch.setattr(module, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(module, "is_cuda_compute_capability_equal", lambda capability: False)
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91900)
    if divided:
        monkeypatch.setattr(packed_room, "SCRATCH", FEWEST * Shape(1, 64, 1, 1, 8).scratch)
    mesh = jax.make_mesh((2, 2), ("rows", "heads"), axis_types=(AxisType.Auto,) * 2)
    by_heads, rows = PartitionSpec("rows", None, "heads"), PartitionSpec("rows")

    def local(segments: jax.Array, *x: jax.Array) -> Any:
        tokens = {"q_indices": segments, "kv_indices": segments, "q_segments": segments, "kv_segments": segments}
        attend = partial(cudnn.attend, mask=Mask(window=5, segmented=True), **tokens)
        return results(attend, *x)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(rows,) + (by_heads,) * 4, out_specs=(by_heads,) * 4)
    x = [jax.ShapeDtypeStruct((4, 64, 4, 8), jnp.bfloat16)] * 4
    text = str(jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((4, 64), jnp.int32), *x))
    assert text.count("dot_product_attention_fwd_wrapper[") == text.count("dot_product_attention_bwd_wrapper[") == 1
    assert text.count("MaskType.PADDING_CAUSAL") == 2 and text.count("sliding_window_length=5") == 2
    assert f"{statistics}" in text.split("dot_product_attention_bwd_wrapper[")[0], (
        "the statistics of 4 documents of each row of a call, here of 2 rows and heads of a device or of one"
    )


@pytest.mark.parametrize(
    ("shape", "parts", "documents"),
    [
        (Shape(1, 8192, 32, 8, 128), (1, 1), 7),
        (Shape(2, 8192, 32, 8, 128), (2, 1), 7),
        (Shape(1, 16384, 32, 8, 128), (1, 2), 7),
        (Shape(4, 4096, 32, 8, 128), (2, 1), 7),
        (Shape(1, 8192, 64, 8, 128), (1, 2), 7),
        (Shape(1, 4096, 128, 128, 192), (1, 2), 5),
        (Shape(3, 32768, 32, 8, 128), (3, 4), 7),
    ],
)
def test_backward_calls_that_would_take_too_much_memory_are_of_some_rows_or_of_some_heads(
    shape: Shape, parts: tuple[int, int], documents: int
):
    room = Room.of(shape)
    assert (room.parts(shape), room.backward) == (parts, documents)
    heads = shape.heads // parts[1]
    one = 4 * (shape.batch // parts[0]) * shape.queries * heads * (shape.width + 2)
    assert documents * one <= SCRATCH < (documents + 1) * one
    widths = {"width": shape.width, "value_width": shape.width}
    asked = replace(
        HOPPER, batch=shape.batch, queries=shape.queries, keys=shape.queries, heads=shape.heads, **widths,
        kv_heads=shape.kv_heads,
    )  # fmt: skip
    chosen = REGISTRY.choose("auto", asked)
    assert chosen.name == "cudnn" and f"{documents} in a backward call" in chosen.reason
    of = f"over {shape.batch // parts[0]} of {shape.batch} rows and {heads} of {shape.heads} heads"
    assert (of in chosen.reason) == (parts != (1, 1))


def test_the_memory_of_a_divided_backward_counts_what_a_part_reads_and_writes():
    whole, halved = Shape(1, 8192, 32, 8, 128), Shape(2, 8192, 32, 8, 128)
    scratch, elements = 7 * 4 * 8192 * 32 * 130, 8192 * 128
    assert scratch_bytes(whole) == scratch
    assert scratch_bytes(halved) == scratch + 2 * elements * (4 * 32 + 4 * 8), "q, k, v, out and 4 gradients"


def test_plans_take_the_packed_layout_where_the_run_compares_it_and_state_what_it_costs():
    chosen = REGISTRY.choose("auto", HOPPER)
    assert chosen.name == "cudnn" and "up to 32 of a row in a forward call and 31 in a backward call;" in chosen.reason
    assert "compared with plain XLA" in chosen.reason and "1.0 GiB of scratch memory" in chosen.reason
    assert REGISTRY.choose("auto", replace(HOPPER, compares=False)).rejected["cudnn"] == comparison.NOT_COMPARED


@pytest.mark.parametrize(
    "change", [{"compute_capability": 8.0}, {"softcap": 30.0}, {"full_rows": False}, {"lse": True}], ids=str
)
def test_plans_that_take_plain_xla_for_packed_rows_on_a_gpu_have_a_note_on_it(change: dict[str, Any]):
    request = replace(HOPPER, **change)
    chosen = REGISTRY.choose("auto", request)
    [note] = REGISTRY["xla"].remarks(request)
    assert chosen.name == "xla" and note in chosen.reason
    for other in ({"mask": Mask()}, {"platform": "cpu", "compute_capability": None}):
        assert not REGISTRY["xla"].remarks(replace(request, **other))


def test_a_comparison_decides(inside: Any, monkeypatch: pytest.MonkeyPatch):
    small = replace(HOPPER, queries=36, keys=36, width=8, value_width=8, heads=4, dtype="float32")
    assert comparison.compare(small) is None
    assert comparison.compare(replace(small, value_width=5)) is None
    comparison.settle(HOPPER, comparison.compare(small))
    assert comparison.verdict(replace(HOPPER, compares=False)) is None
    assert REGISTRY.choose("auto", replace(HOPPER, compares=False)).name == "cudnn"

    def of_rows_without_documents(q: Any, k: Any, v: Any, **options: Any) -> Any:
        lengths, offsets = (jnp.full_like(options[name], -1) for name in ("q_seqlen", "q_offsets"))
        whole = lengths.at[:, 0].set(q.shape[1]), offsets.at[:, 0].set(0)
        options |= {"q_seqlen": whole[0], "kv_seqlen": whole[0], "q_offsets": whole[1], "kv_offsets": whole[1]}
        return _Stand.forward(q, k, v, **options)

    monkeypatch.setattr(inside, "dot_product_attention", of_rows_without_documents)
    comparison.settle(HOPPER, comparison.compare(small))
    chosen = REGISTRY.choose("auto", HOPPER)
    assert chosen.name == "xla" and "output errs by" in chosen.rejected["cudnn"]
    with refused("cudnn", "differs from plain XLA", error=Unsupported):
        REGISTRY.choose("cudnn", HOPPER)


def test_a_call_that_cannot_be_made_is_a_reason():
    assert "its packed layout does not run on this device: cuDNN" in (comparison.compare(HOPPER) or "")
