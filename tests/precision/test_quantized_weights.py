"""Matrices as codes of 8 bits: made once per step, from the master weights, and gathered as they are."""

from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layout.choices.matmul import matmul_rows, quantizes_once
from jaxpar.layout.once_quantized import once_quantized_matrices
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.streaming import map_rows, to_host
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import mapped
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.quantized.blocks import decode, encode
from jaxpar.mesh.quantized_stack import QuantizedStack
from jaxpar.precision.matmul import WEIGHT_SCALES
from jaxpar.precision.quantized_weights import QuantizedMatrix, quantized_weights
from jaxpar.precision.recipe import E4M3
from jaxpar.precision.scale import largest_of, quantize, scale_of
from jaxpar.precision.squares import full_rows
from jaxpar.training.step.train_step import TrainStep
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small
from tests.traced import group_size, mesh_of, operations

EXCEPT = MatmulOptions(exclude=("head", "router", "attention_out"), first_layers=1, last_layers=0)
MODEL = {"layers": 3, "embed": 64, "mlp": 112, "kv_heads": 4, "heads": 4, "head_dim": 16}
MATRICES = {(64, 4, 16): 3, (64, 112): 2, (112, 64): 1}
"""Shapes of the matrices of a layer that are quantized, and how many there are."""


def run_of(matmul: str = "fp8_current", compute: str = "bfloat16", **sections: dict[str, Any]) -> SmallRun:
    precision = {"compute": compute, "matmul": matmul, "matmul_options": EXCEPT} | sections.pop("precision", {})
    return SmallRun(small(model=MODEL, precision=precision, **sections))


@cache
def traced(microbatches: int, fsdp: int = 1) -> tuple[SmallRun, list[tuple[Any, int]]]:
    run = run_of(parallel={"fsdp": fsdp, "microbatches": microbatches})
    layout, mesh = run.step.layout, run.step.mesh
    inputs = layout.abstract_state(mesh), layout.abstract_batch(mesh), layout.abstract_arguments(mesh)
    return run, operations(run.step.train, *inputs)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_matrix_is_quantized_once_per_step(microbatches: int):
    """Numbers of a matrix that are cut off at the largest code; in the loops, codes are only read."""
    _, found = traced(microbatches)
    wanted: Counter[int] = Counter()
    for matrix, count in MATRICES.items():
        wanted[prod(matrix)] += count
    quantized: Counter[int] = Counter()
    for equation, times in found:
        if equation.primitive.name != "min":
            continue
        shape = equation.outvars[0].aval.shape
        assert not any(shape[-len(matrix) :] == matrix for matrix in MATRICES), "a matrix by itself, in a loop"
        if len(shape) == 5:  # rows of a stack, each as one square
            quantized[prod(shape[1:])] += times
    assert quantized == wanted


def test_what_is_gathered_is_the_codes():
    """Under ZeRO-3 every matrix of a quantized layer travels as one byte a number, in forward and in backward."""
    run, found = traced(2, fsdp=2)
    sent: Counter[str] = Counter()
    for equation, times in found:
        if equation.primitive.name == "all_gather" and equation.params["axis_name"] == ("fsdp",):
            [value] = equation.invars
            ranks = group_size(run.step.mesh, equation)
            sent[value.aval.dtype.name] += times * value.aval.size * value.aval.dtype.itemsize * (ranks - 1)
    numbers = sum(np.prod(shape) * count for shape, count in MATRICES.items())
    assert sent["float8_e4m3fn"] == 2 * 2 * 2 * numbers / 2, "2 layers, 2 passes, 2 microbatches, half of each"


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", ["current", "padded pipeline with delayed scales"])
def test_the_numbers_are_those_of_quantizing_with_each_use(name: str, monkeypatch: pytest.MonkeyPatch):
    """In float32, where a stored weight is the master weight: bit for bit."""
    options: dict[str, Any] = {"parallel": {"microbatches": 2}}
    if name != "current":
        options = {"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2}, "matmul": "fp8_delayed"}
    run = run_of(compute="float32", **options)
    assert quantizes_once(run.step.layout.plan)
    losses, weights = run.train(2)
    for module in ("layout.quantized_matmuls", "layout.memory.state_storage"):
        monkeypatch.setattr(f"jaxpar.{module}.quantizes_once", lambda plan: False)
    again_losses, again = run_of(compute="float32", **options).train(2)
    assert losses == again_losses
    jax.tree.map(np.testing.assert_array_equal, weights, again)


@pytest.mark.long
def test_beside_quantized_messages_no_matrix_is_rounded_twice():
    """A step has the bits of one that sends exactly, of weights whose shards were rounded before: those that are no
    codes and no norms, which travel exactly."""
    dtype, parallel = "float8_e4m3fn", {"fsdp": 2, "microbatches": 2}
    plain = run_of(compute="float32", parallel=parallel)
    both = run_of(compute="float32", parallel=parallel | {"quantized": {"weights": dtype}})
    assert quantizes_once(both.step.layout.plan)
    state = plain.step.residency.initial_state()
    wanted = plain.step.gradients(_as_sent(state, plain, dtype), plain.batch(0))
    found = both.step.gradients(both.step.residency.initial_state(), both.batch(0))
    assert_same_bits(jax.device_get(found), jax.device_get(wanted))
    exact = plain.step.gradients(plain.step.residency.initial_state(), plain.batch(0))
    assert float(found[0]) != float(exact[0]), "something was rounded"


def _as_sent(state: Any, run: SmallRun, dtype: str) -> Any:
    """A state whose weights have the values of their shards' block codes, but for rows that are codes already."""
    rows_of = {matrix.path: matrix.is_quantized for matrix in once_quantized_matrices(*run.step.layout.carried_request)}

    def rounded(shard: jax.Array) -> jax.Array:
        flat = shard.reshape(1, -1)
        return decode(encode(flat, dtype), flat.size, dtype).reshape(shard.shape)

    def one(path: Any, leaf: jax.Array) -> jax.Array:
        names = tuple(key.key for key in path)
        if leaf.sharding.is_fully_replicated or leaf.ndim - ("layers" in names) < 2:
            return leaf
        quantized = rows_of.get(names, (False,) * len(leaf))

        def of_shard(shard: jax.Array) -> jax.Array:
            if "layers" not in names:
                return rounded(shard)
            return jnp.stack([row if own else rounded(row) for row, own in zip(shard, quantized, strict=True)])

        parts = [jax.device_put(of_shard(shard.data), shard.device) for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)

    return state._replace(master=jax.tree_util.tree_map_with_path(one, state.master))


def matrix_of(shape: tuple[int, ...], quantized: tuple[bool, ...]) -> QuantizedMatrix:
    order = LayerOrder.from_chunks([0], [len(quantized)]).stacks["all"]
    return QuantizedMatrix(("w",), 1, quantized, order, "all", "group", full_rows(shape))


def code(stack: Any, quantized: tuple[bool, ...]) -> Any:
    matrix = matrix_of(stack.shape, quantized)
    return quantized_weights({"w": stack}, [matrix], (len(quantized), 3), None, "float32", map_rows)


@pytest.mark.parametrize(("axes", "split"), [
    ({"fsdp": 2, "tensor": 2}, PartitionSpec(None, "fsdp", "tensor")),
    ({"expert": 2, "context": 4}, PartitionSpec(None, ("expert", "context"))),
])  # fmt: skip
def test_codes_and_scales_of_a_split_matrix_are_those_of_the_whole(axes: dict[str, int], split: PartitionSpec):
    stack = np.random.default_rng(3).normal(size=(3, 16, 32)).astype(np.float32)
    stack[1, 15, 31], stack[2, 0, 0] = -300.0, 0.001

    def function(stack: jax.Array) -> Any:
        found = code(stack, (False, True, True))
        assert isinstance(found.weights["w"], QuantizedStack)
        return (
            found.weights["w"].quantized.astype(jnp.float32),
            found.shared[WEIGHT_SCALES]["all"].groups["group"][0][None],
            found.observed[None],
        )

    out = split, PartitionSpec(AXES), PartitionSpec(AXES)
    codes, scales, largest = jax.jit(mapped(function, mesh_of(**axes), "float32", split, out))(stack)
    for layer in (1, 2):
        scale = scale_of(largest_of(jnp.asarray(stack[layer])), E4M3)
        np.testing.assert_array_equal(scales[:, layer].ravel(), np.broadcast_to(scale, scales.shape[0]))
        whole = quantize(jnp.asarray(stack[layer]), scale, E4M3).astype(jnp.float32)
        np.testing.assert_array_equal(codes[layer - 1], whole)
    wanted = np.abs(stack).max((1, 2)) * [0, 1, 1]
    np.testing.assert_array_equal(largest[:, :, 1], np.broadcast_to(wanted, largest.shape[:2]))


def test_codes_come_from_the_master_weights():
    """1.0625 and a little is above the middle of two codes; rounded to bfloat16 it is the middle, and another code."""
    row = np.full((1, 1, 16), 1.0625 + 2.0**-12, np.float32)
    row[..., 0] = 448.0
    run = lambda w: code(w, (True,)).weights["w"].quantized.astype(jnp.float32)
    found = mapped(run, mesh_of(), "float32", PartitionSpec(), PartitionSpec())(row)
    np.testing.assert_array_equal(found[0, 0], [448.0] + [1.125] * 15)


@pytest.mark.parametrize("quantized", [(False, True, True, False, True), (False, False, True, True, False)])
@pytest.mark.parametrize("delayed", [False, True])
def test_a_matrix_that_is_read_in_pieces_has_the_codes_of_the_whole(
    quantized: tuple[bool, ...], delayed: bool, monkeypatch: pytest.MonkeyPatch
):
    """From host memory, two rows at a time: codes, other rows, scales, magnitudes and counts."""
    monkeypatch.setattr("jaxpar.memory.streaming.PIECE_BYTES", 2 * 8 * 16 * 4)
    stack = np.random.default_rng(5).normal(size=(5, 8, 16)).astype(np.float32)
    matrix = matrix_of(stack.shape, quantized)
    scales = jnp.exp2(jnp.arange(-10.0, 5.0)).reshape(5, 3) if delayed else None

    def quantized(stack: jax.Array) -> Any:
        asked = {"w": stack}, [matrix], (5, 3), scales, "bfloat16", map_rows
        return jax.tree.map(lambda own: vary(own)[None], quantized_weights(*asked))

    run = lambda own: jax.jit(mapped(own, mesh_of(), "float32", PartitionSpec(), PartitionSpec(AXES)))
    found = [run(own)(stack) for own in (quantized, lambda stack: quantized(to_host(stack)))]
    assert_same_bits(*jax.device_get(found))


@pytest.mark.long
def test_master_weights_on_the_host_become_the_codes_that_they_become_on_the_device():
    """In bfloat16, where codes of stored copies would be others: gradients and validation loss, bit for bit, also with
    some matrices on the device."""
    found, some = [], ("layers.all.attention.query", "layers.all.mlp.up")
    for memory, stays in (({}, ()), ({"optimizer_offload": "host"}, ()), ({"optimizer_offload": "host"}, some)):
        run = run_of(memory=memory)
        layout = StepLayout(run.config, replace(run.step.layout.plan, resident_weights=stays))
        assert quantizes_once(layout.plan)
        run.step = TrainStep(layout, run.step.mesh)
        state = run.step.residency.initial_state()
        validation = run.step.evaluate(state.master, run.batch(1))
        found.append(jax.device_get((run.step.gradients(state, run.batch(0)), validation)))
    for other in found[1:]:
        assert_same_bits(other, found[0])


@pytest.mark.parametrize(("memory", "key"), [
    ({"optimizer_offload": "file"}, "memory.optimizer_offload"),
    ({"optimizer_offload": "host", "weights_offload": "host"}, "memory.weights_offload"),
])  # fmt: skip
def test_the_plan_states_why_a_matrix_is_quantized_with_each_use(memory: dict[str, str], key: str):
    stays = run_of(compute="float32", memory=memory, parallel={"microbatches": 2})
    assert not quantizes_once(stays.step.layout.plan)
    (_, value, why) = matmul_rows(stays.config, None, stays.step.layout.plan)[1]
    assert "each use" in value and key in why
