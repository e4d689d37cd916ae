"""Shards exchanged into whole matrices and back."""

import re
from collections.abc import Mapping
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.axes import AXES
from jaxpar.mesh.matrices import gather_matrices, scatter_matrices
from jaxpar.mesh.rules import axes_of_dim

SIZES = dict.fromkeys(AXES, 1) | {"fsdp": 2, "expert": 2, "tensor": 2}
CASES = {
    "one_axis": ((4, 8, 6), P(None, "fsdp")),
    "two_axes_on_one_dim": ((4, 8, 6), P(None, ("fsdp", "expert"))),
    "two_axes_in_the_other_order": ((4, 8, 6), P(None, ("expert", "fsdp"))),
    "inner_axis_first": ((4, 4, 8), P(None, "tensor", "fsdp")),
    "three_axes": ((8, 8, 4, 3), P(None, ("fsdp", "expert"), "tensor", None)),
    "padded": ((5, 8, 4, 3), P(None, ("fsdp", "expert"), "tensor", None)),
    "layers_split_too": ((6, 8, 6), P("expert", "fsdp", "tensor")),
    "no_group": ((4, 8, 6), P("fsdp")),
}


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:8]).reshape(tuple(SIZES.values())), AXES, axis_types=(AxisType.Auto,) * 6)


def weight(shape):
    return jnp.arange(1, 1 + prod(shape), dtype=jnp.float32).reshape(shape)


@pytest.fixture(scope="module")
def exchanged(mesh):
    """Per case the gathered matrices, joined along the layers in the group's order, and the weight reassembled."""
    weights = {name: weight(shape) for name, (shape, _) in CASES.items()}
    layouts = {name: layout for name, (_, layout) in CASES.items()}
    joined = {}
    for name, layout in layouts.items():
        axes = [axis for entry in layout if entry for axis in ((entry,) if isinstance(entry, str) else entry)]
        joined[name] = P(tuple(axes))

    def there_and_back(shards):
        gathered = {name: gather_matrices(x, layouts[name]) for name, x in shards.items()}
        back = {name: scatter_matrices(x, layouts[name], shards[name].shape[:1]) for name, x in gathered.items()}
        return gathered, back

    run = jax.shard_map(there_and_back, mesh=mesh, in_specs=(layouts,), out_specs=(joined, layouts))
    return jax.device_get(jax.jit(run)(weights))


@pytest.mark.parametrize("name", CASES)
def test_each_rank_gets_whole_matrices_for_its_share_of_the_layers(name, exchanged):
    shape, layout = CASES[name]
    gathered = exchanged[0][name]
    stages = SIZES[layout[0]] if layout[0] else 1
    layers = gathered.reshape(stages, -1, *shape[1:])
    np.testing.assert_array_equal(layers[:, : shape[0] // stages].reshape(shape), weight(shape))
    assert not layers[:, shape[0] // stages :].any()


@pytest.mark.parametrize("name", CASES)
def test_the_way_back_restores_the_shards(name, exchanged):
    np.testing.assert_array_equal(exchanged[1][name], weight(CASES[name][0]))


def matrix_exchange_bytes(shape: tuple[int, ...], layout: P, axis_sizes: Mapping[str, int], itemsize: int) -> int:
    """Bytes that one device sends in one `gather_matrices` (or `scatter_matrices`) of a weight of global `shape`."""
    parts = [prod(axis_sizes[axis] for axis in axes_of_dim(layout, dim)) for dim in range(len(shape))]
    group = prod(parts[1:])
    share = -(-shape[0] // (parts[0] * group))
    return share * prod(shape[1:]) * itemsize * (group - 1) // group


@pytest.mark.parametrize("name", CASES)
def test_the_program_moves_the_bytes_of_the_formula(name, mesh):
    shape, layout = CASES[name]

    def there_and_back(x):
        return scatter_matrices(gather_matrices(x, layout), layout, x.shape[:1])

    exchange = jax.jit(jax.shard_map(there_and_back, mesh=mesh, in_specs=layout, out_specs=layout))
    program = exchange.lower(weight(shape)).as_text()
    # an all-to-all of [ranks, ...] keeps one of its rows at home
    operands = re.findall(r"stablehlo.all_to_all.*?: \(tensor<([\dx]+)xf32>\)", program, flags=re.DOTALL)
    shapes = [tuple(map(int, operand.split("x"))) for operand in operands]
    sent = matrix_exchange_bytes(shape, layout, SIZES, itemsize=4)
    assert [(ranks - 1) * prod(rest) * 4 for ranks, *rest in shapes] == ([sent, sent] if sent else [])
