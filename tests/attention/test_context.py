"""Context parallelism by gathering keys and values equals attention on one device."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

from jaxpar.attention import attend
from jaxpar.mesh.axes import AXES
from pallas_kernels.attention import SAVED_NAMES, attention
from pallas_kernels.masks import Mask

SEQUENCE = 32
ROWS = ("pipe", "replica", "fsdp", "expert")
LAYOUT, TOKENS = PartitionSpec(ROWS, "context", "tensor"), PartitionSpec(ROWS, "context")


def random_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(2, SEQUENCE, heads, 8)) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    return {name: x.astype(np.float32) for name, x in inputs.items()}


def whole_rows() -> tuple[np.ndarray, np.ndarray]:
    slots = np.tile(np.arange(SEQUENCE, dtype=np.int32), (2, 1))
    segments = np.array([[1] * 13 + [2] * 15 + [0] * 4, [1] * 3 + [2] * 29], np.int32)
    return slots, segments


@pytest.mark.parametrize(("mask", "order"), [(Mask(), "contiguous"), (Mask(window=7, segmented=True), "zigzag")])
@pytest.mark.parametrize("sizes", [{"context": 4, "tensor": 2}, {"context": 2, "fsdp": 2, "expert": 1}, {}], ids=str)
def test_output_and_gradients_equal_one_device(sizes: dict[str, int], mask: Mask, order: str) -> None:
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)
    inputs, (slots, segments) = random_inputs(), whole_rows()
    if order == "zigzag":
        zigzag = np.arange(SEQUENCE).reshape(8, 4)[[0, 7, 1, 6, 2, 5, 3, 4]].reshape(-1)
        slots, segments = slots[:, zigzag], segments[:, zigzag]
    function = partial(attend("blockwise", "allgather"), mask=mask, softcap=2.0, query_block=3, kv_block=5)

    def local(q, k, v, slots, segments):
        out, pull = jax.vjp(lambda q, k, v: function(q, k, v, slots=slots, segments=segments), q, k, v)
        return out, *pull(out)

    specs = (LAYOUT, LAYOUT, LAYOUT, TOKENS, TOKENS)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(LAYOUT,) * 4)
    found = jax.jit(mapped)(*inputs.values(), slots, segments)
    tokens = {"q_slots": slots, "kv_slots": slots, "q_segments": segments, "kv_segments": segments}
    whole = jax.jit(partial(attention, mask=mask, softcap=2.0, **tokens))
    out, pull = jax.vjp(whole, *inputs.values())
    for name, have, want in zip(("out", "dq", "dk", "dv"), found, (out, *pull(out)), strict=True):
        error = np.abs(have - want).max() / np.abs(want).max()
        assert error <= 1e-5, f"{name}: {error}"


def test_a_layer_that_keeps_its_own_keys_and_values_gathers_them_again_but_does_not_attend_again() -> None:
    mesh = jax.make_mesh((1, 1, 1, 1, 8, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    slots, segments = whole_rows()
    function = partial(attend("blockwise", "allgather"), mask=Mask())

    def layer(q, k, v, slots, segments):
        k, v = checkpoint_name(2.0 * k, "kv"), checkpoint_name(2.0 * v, "kv")
        return (function(q, k, v, slots=slots, segments=segments) ** 2).sum()

    def counts(*saved: str) -> tuple[int, int]:
        step = jax.grad(jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(*saved)), (0, 1, 2))
        specs = (LAYOUT, LAYOUT, LAYOUT, TOKENS, TOKENS)
        mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=(LAYOUT,) * 3)
        text = str(jax.make_jaxpr(mapped)(*random_inputs().values(), slots, segments))
        return text.count(" all_gather["), text.count(" exp ")

    gathers, exps = counts("kv", *SAVED_NAMES)
    assert gathers == 2 * 3, "keys, values and slots, in the forward and in the backward"
    assert counts("kv")[1] == exps + 2
