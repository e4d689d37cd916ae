"""Rows times the matrix of their group: numbers, gradients, work, and which implementation runs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul.blocks import most_blocks, row_blocks
from pallas_kernels.grouped_matmul.mosaic.tiles import columns
from tests.pallas_kernels.grouped_matmul.grouped64 import arrays, by, expected, worst
from tests.sentences import refused

ROWS, GROUPS = 70, 4
SIZES = [
    [20, 20, 20, 10], [70, 0, 0, 0], [0, 0, 0, 70], [0, 35, 0, 35], [1, 1, 1, 67], [3, 0, 9, 1], [0, 0, 0, 0],
    [60, 60, 60, 60],
]  # fmt: skip
"""Even, empty, single rows, room that is left, nothing at all, and more than there is room for."""

plain = jax.jit(partial(by, "xla"))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_and_gradients_are_those_of_float64(sizes: list[int], dtype: str) -> None:
    given_arrays = arrays(ROWS, GROUPS, 24, 40, dtype)
    found = plain(*given_arrays, jnp.asarray(sizes))
    assert {str(x.dtype) for x in found} == {dtype}
    assert worst(found, expected(*given_arrays, sizes)) < {"float32": 1e-6, "bfloat16": 8e-3}[dtype]


def test_rows_behind_the_last_group_count_for_nothing_even_if_they_are_no_numbers() -> None:
    rows, weights, d_out = arrays(ROWS, GROUPS, 24, 40, "float32")
    rows, d_out = (x.at[30:].set(jnp.nan) for x in (rows, d_out))
    sizes = [10, 0, 20, 0]
    assert worst(plain(rows, weights, d_out, jnp.asarray(sizes)), expected(rows, weights, d_out, sizes)) < 1e-6


blocks_of = jax.jit(row_blocks, static_argnums=(1, 2, 3))


@given(
    sizes=st.lists(st.integers(0, 40), min_size=5, max_size=5), rows=st.sampled_from([1, 100]),
    block=st.sampled_from([8, 16]), align=st.sampled_from([1, 8]),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_row_of_a_group_is_in_one_block_of_that_group(
    sizes: list[int], rows: int, block: int, align: int
) -> None:
    found = blocks_of(jnp.asarray(sizes, jnp.int32), rows, block, align)
    wanted = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    covered = np.full(rows, -1)
    assert len(found.group) == most_blocks(rows, len(sizes), block, align)
    for group, start, low, high in np.stack(found, 1):
        assert start % align == 0 and 0 <= low < align and high <= block
        own = slice(start + low, max(start + low, start + high))
        assert (covered[own] == -1).all()
        covered[own] = group
    assert (covered[: len(wanted)] == wanted).all() and (covered[len(wanted) :] == -1).all()


@pytest.mark.parametrize("sizes", [[256] * 16, [0] * 15 + [4096], [1] * 16, [0] * 16, [700, 3, *[0] * 14]], ids=str)
def test_the_work_of_the_plain_form_is_that_of_the_groups(sizes: list[int]) -> None:
    """Not that of a dense product, which is `groups` times as much; and nothing for rows behind the last group."""
    m, groups, k, n, block = 4096, 16, 64, 128, 256
    shapes = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((m, k), (groups, k, n), (m, n))]
    traced = jax.make_jaxpr(partial(by, "xla"))(*shapes, jax.ShapeDtypeStruct((groups,), jnp.int32))
    assert _multiplies(traced.jaxpr) == 3 * block * k * n, "each loop multiplies one block"
    times = int((row_blocks(jnp.asarray(sizes, jnp.int32), m, block).high > 0).sum())
    assert times == sum(-(-size // block) for size in sizes)


def _multiplies(jaxpr: Any) -> int:
    """Multiplications of the matmuls of a program, those of loops once."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += int(np.prod(equation.outvars[0].aval.shape)) * int(np.prod([left[i] for i in contracted]))
        for parameter in equation.params.values():
            for each in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(each, "jaxpr", each)
                total += _multiplies(inner) if hasattr(inner, "eqns") else 0
    return total


def test_it_works_where_rows_and_groups_are_split_over_devices() -> None:
    mesh = jax.make_mesh((2,), ("expert",), axis_types=(AxisType.Auto,))
    rows, weights, d_out = arrays(2 * ROWS, 2 * GROUPS, 24, 40, "float32")
    sizes = jnp.asarray(SIZES[0] + SIZES[5], jnp.int32)
    spec = PartitionSpec("expert")
    split = jax.shard_map(partial(by, "xla"), mesh=mesh, in_specs=(spec,) * 4, out_specs=spec)
    found = jax.jit(split)(rows, weights, d_out, sizes)
    for rank in range(2):
        of_rank = [np.split(np.asarray(x), 2)[rank] for x in (rows, weights, d_out)]
        wanted = expected(*of_rank, np.split(np.asarray(sizes), 2)[rank].tolist())
        assert worst(type(wanted)(*(np.split(np.asarray(x), 2)[rank] for x in found)), wanted) < 1e-6


@pytest.mark.parametrize(("wide", "tile"), [(1536, 256), (1408, 128), (2880, 192), (64, 128), (2048, 256), (960, 192)])
def test_a_tile_is_the_widest_that_leaves_the_fewest_columns_unused(wide: int, tile: int) -> None:
    assert columns(wide) == tile


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"rows": (8, 16, 1)}, ("[m, k]", "(8, 16, 1)")),
        ({"rows": (8, 12)}, ("width of rows", "(8, 12)", "(2, 16, 4)")),
        ({"sizes": (3,)}, ("number of groups", "(3,)")),
        ({"rows": (0, 16)}, ("of nothing", "(0, 16)")),
        ({"dtype": "int32"}, ("bfloat16, float16, float32", "int32")),
        ({"of_sizes": "float32"}, ("integers", "float32")),
        ({"implementation": "cublas"}, ("'cublas'", "auto, mosaic, triton, xla")),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    dtype = change.get("dtype", "float32")
    rows, weights = jnp.zeros(change.get("rows", (8, 16)), dtype), jnp.zeros((2, 16, 4), dtype)
    sizes = jnp.zeros(change.get("sizes", (2,)), change.get("of_sizes", "int32"))
    with refused(*parts, error=ValueError):
        grouped_matmul(rows, weights, sizes, implementation=change.get("implementation", "auto"))
