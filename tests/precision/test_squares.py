"""Squares of a matrix that share a scale, whichever part of them a rank stores: scales and codes made once per step."""

from collections import Counter
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.memory.streaming import map_rows, to_host
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import mapped
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.precision.matmul import WEIGHT_SCALES
from jaxpar.precision.quantized_weights import QuantizedMatrix, quantized_weights
from jaxpar.precision.recipe import E4M3
from jaxpar.precision.scale import quantize_tiles
from jaxpar.precision.squares import squares_of
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small
from tests.traced import mesh_of, operations

SIZE = 128


class Case(NamedTuple):
    """A stack of matrices over ranks."""

    shape: tuple[int, ...]
    inputs: int
    """Dims of a matrix that a product sums over."""
    split: tuple[Any, ...]
    """Of the dims of the stack."""
    dim: int
    """Which is cut beyond tensor parallelism."""
    ranks: dict[str, int]


CASES = {
    "16 rows a rank": Case((3, 128, 256), 1, (None, "fsdp", None), 1, {"fsdp": 8}),
    "three quarters of a square": Case((3, 384, 128), 1, (None, "fsdp", None), 1, {"fsdp": 4}),
    "columns": Case((3, 256, 128), 1, (None, "tensor", ("fsdp", "context")), 2, {"fsdp": 2, "context": 2, "tensor": 2}),
    "rows, and heads of tensor ranks": Case((3, 256, 4, 64), 1, (None, "fsdp", "tensor"), 1, {"fsdp": 4, "tensor": 2}),
    "a part of each head": Case((3, 4, 64, 128), 2, (None, "tensor", "fsdp", None), 2, {"fsdp": 4, "tensor": 2}),
    "replicas inside": Case((3, 256, 128), 1, (None, ("fsdp", "replica"), None), 1, {"fsdp": 2, "replica": 4}),
}


def stack_of(shape: tuple[int, ...]) -> np.ndarray:
    """Of magnitudes so far apart that the largest of each square is another."""
    draw = np.random.default_rng(3)
    return (draw.normal(size=shape) * np.exp(4 * draw.normal(size=shape))).astype(np.float32)


def matrix_of(case: Case, quantized: tuple[bool, ...]) -> QuantizedMatrix:
    axes = case.split[case.dim]
    axes = axes if isinstance(axes, tuple) else (axes,)
    local = list(case.shape)
    for dim, own in enumerate(case.split):
        names = own if isinstance(own, tuple) else (own,) if own else ()
        local[dim] //= prod(case.ranks[name] for name in names)
    ranks = prod(case.ranks[axis] for axis in axes)
    squares = squares_of(SIZE, tuple(local), 1, case.inputs, (case.dim, axes), ranks)
    order = LayerOrder.from_chunks([0], [len(quantized)]).stacks["all"]
    return QuantizedMatrix(("w",), 1, quantized, order, "all", "group", squares)


@pytest.mark.parametrize("name", CASES)
def test_codes_and_scales_on_ranks_are_those_of_the_whole_matrix(name: str):
    case = CASES[name]
    stack, matrix, split = stack_of(case.shape), matrix_of(case, (True,) * 3), PartitionSpec(*case.split)
    tensor = [dim for dim, own in enumerate(case.split) if own == "tensor"]
    side = 1 + (bool(tensor) and tensor[0] > case.inputs)

    def function(stack: jax.Array) -> Any:
        found = quantized_weights({"w": stack}, [matrix], (3, 3), None, "float32", map_rows)
        (scales,) = found.shared[WEIGHT_SCALES]["all"].groups["group"]
        return found.weights["w"].quantized, vary(scales)[None], found.observed[None]

    of_scales: list[str | None] = [None, None, None]
    if tensor:
        of_scales[side] = "tensor"
    # Of the ranks that share a matrix all have the same scales: each writes them, and all are compared.
    others = tuple(axis for axis in AXES if axis != "tensor" or not tensor)
    out = split, PartitionSpec(others, *of_scales), PartitionSpec(AXES)
    codes, scales, largest = jax.jit(mapped(function, mesh_of(**case.ranks), "float32", split, out))(stack)
    rows = stack.reshape(len(stack), prod(stack.shape[1 : 1 + case.inputs]), -1)
    wanted = quantize_tiles(jnp.asarray(rows), (SIZE, SIZE), E4M3)
    assert len(np.unique(wanted.scales)) >= 3, "squares differ"
    for own in scales:
        np.testing.assert_array_equal(own, wanted.scales)
    np.testing.assert_array_equal(
        np.asarray(codes, np.float32).reshape(rows.shape), np.asarray(wanted.values, np.float32)
    )
    np.testing.assert_array_equal(largest.max(0)[:, 1], np.abs(rows).max((1, 2)))


def test_codes_of_squares_come_from_the_master_weights():
    """1.0625 and a little is above the middle of two codes; rounded to bfloat16 it is the middle, and another code."""
    stack = np.full((1, 128, 128), 1.0625 + 2.0**-12, np.float32)
    stack[0, 0, 0] = 448.0
    matrix = matrix_of(Case(stack.shape, 1, (None, "fsdp"), 1, {"fsdp": 1}), (True,))
    run = lambda w: quantized_weights({"w": w}, [matrix], (1, 3), None, "bfloat16", map_rows).weights["w"]
    codes = lambda w: run(w).quantized.astype(jnp.float32)
    split = PartitionSpec(None, "fsdp")
    found = jax.jit(mapped(codes, mesh_of(), "float32", split, split))(stack)
    np.testing.assert_array_equal(found[0].ravel(), [448.0] + [1.125] * (128 * 128 - 1))


@pytest.mark.parametrize("quantized", [(False, True, True), (False, True, False)])
def test_a_matrix_with_squares_that_is_read_in_pieces_has_the_codes_of_the_whole(
    quantized: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
):
    """From host memory, a row at a time: codes, other rows, scales, magnitudes and counts."""
    monkeypatch.setattr("jaxpar.memory.streaming.PIECE_BYTES", 128 * 128 * 4)
    stack = stack_of((3, 128, 128))
    matrix = matrix_of(Case(stack.shape, 1, (None, "fsdp"), 1, {"fsdp": 1}), quantized)

    def quantized(stack: jax.Array) -> Any:
        asked = {"w": stack}, [matrix], (3, 3), None, "bfloat16", map_rows
        return jax.tree.map(lambda own: vary(own)[None], quantized_weights(*asked))

    run = lambda own: jax.jit(mapped(own, mesh_of(), "float32", PartitionSpec(), PartitionSpec(AXES)))
    found = [run(own)(stack) for own in (quantized, lambda stack: quantized(to_host(stack)))]
    assert_same_bits(*jax.device_get(found))


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_matrix_with_squares_is_quantized_once_per_step(microbatches: int):
    """Numbers that become codes from float32: of a matrix that is cut into parts once, in the loops none."""
    model = {"layers": 2, "embed": 128, "mlp": 256, "heads": 4, "kv_heads": 4, "head_dim": 64}
    excepted = MatmulOptions(exclude=("head", "router"), first_layers=1, last_layers=0)
    config = small(
        model=model, precision={"compute": "bfloat16", "matmul": "fp8_block", "matmul_options": excepted},
        data={"sequence_length": 128, "batch_size": 8}, parallel={"fsdp": 2, "microbatches": microbatches},
    )  # fmt: skip
    run = SmallRun(config)
    layout, mesh = run.step.layout, run.step.mesh
    inputs = layout.abstract_state(mesh), layout.abstract_batch(mesh), layout.abstract_arguments(mesh)
    found = operations(run.step.train, *inputs)
    quantized: Counter[int] = Counter()
    for equation, times in found:
        if equation.primitive.name == "convert_element_type" and equation.params["new_dtype"] == jnp.float8_e4m3fn:
            shape, dtype = equation.outvars[0].aval.shape, equation.invars[0].aval.dtype
            # Squares, of a gathered matrix or of a part of a stack; a tile of tokens has one row or one column.
            if dtype == jnp.float32 and len(shape) in (4, 5) and 1 not in (shape[-3], shape[-1]):
                quantized[len(shape)] += times * prod(shape)
    assert quantized == {5: (4 * 128 * 256 + 3 * 128 * 256) / 2}
