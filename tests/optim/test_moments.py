"""Moments in bfloat16 and in 8 bits: how far from float32, in how many bytes, and the same on every layout."""

from dataclasses import replace
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim import make_optimizer, optimizer_arguments
from jaxpar.optim.moments import (
    Blocked,
    Blocks,
    blocks_of,
    decode,
    encode,
    floor_index,
    form_of,
    magnitude_table,
    zeros,
)
from tests.optim.runs import make_trees, run_optimizer, update_every_weight
from tests.sentences import refused
from tests.traced import mesh_of

CONFIG = OptimizerConfig(learning_rate=0.05, warmup_steps=3, schedule="linear", weight_decay=0.2)
SPECS = {
    "tokens": ParamSpec((32, 16), ("vocab", "embed"), decay=True),
    "layers": {
        "query": ParamSpec((4, 16, 2, 64), ("layers", "embed", "heads", "head_dim"), matrix=True, decay=True),
        "down": ParamSpec((4, 256, 16), ("layers", "mlp", "embed"), matrix=True, decay=True),
        "scale": ParamSpec((4, 16), ("layers", "norm")),
    },
}
LAYOUT = {
    "tokens": P("tensor", "fsdp"),
    "layers": {
        "query": P("pipe", "fsdp", "tensor", None),
        "down": P("pipe", "tensor", "fsdp"),
        "scale": P("pipe", None),
    },
}
WHOLE = jax.tree.map(lambda layout: P(*[None] * len(layout)), LAYOUT, is_leaf=lambda x: isinstance(x, P))
BLOCKS = Blocks(dim=1, size=128)


def values(seed: int = 0, decades: float = 1.0) -> jax.Array:
    """A stack of one matrix of 64 blocks, its elements as far apart as `decades`."""
    generator = np.random.default_rng(seed)
    sizes = 10 ** generator.uniform(-decades, 0, (1, 128, 64))
    return jnp.asarray(sizes * generator.standard_normal((1, 128, 64)), jnp.float32)


def rounded(form: Any, moment: jax.Array, step: int, *, signed: bool) -> jax.Array:
    return decode(form, encode(form, moment, jnp.int32(step), signed=signed))


def test_the_tables_are_the_papers():
    """Ends and sizes of the dynamic tree for 8 bits; beside a sign it is symmetric, without its least value."""
    signed, unsigned = magnitude_table(True), magnitude_table(False)
    assert (len(signed), len(unsigned)) == (128, 256)
    for table in (signed, unsigned):
        assert (table[0], table[-1]) == (0.0, 1.0)
        assert (np.diff(table) > 0).all()
    np.testing.assert_allclose(unsigned[1:4], [3.25e-7, 7.75e-7, 2.125e-6], rtol=1e-6)
    np.testing.assert_allclose(signed[-2], 1 - 0.9 / 64 / 2, rtol=1e-6)


@pytest.mark.parametrize("signed", [True, False])
def test_a_value_is_found_in_the_table(signed: bool):
    table = magnitude_table(signed)
    near = [table, np.nextafter(table, 2, dtype=np.float32), np.nextafter(table, -1, dtype=np.float32)]
    powers = np.float32(10.0) ** np.arange(-9, 1, dtype=np.float32)
    values = np.concatenate([*near, powers, 10 ** np.random.default_rng(0).uniform(-9, 0, 100_000)])
    values = values[(values >= 0) & (values <= 1)].astype(np.float32)
    found = jax.jit(lambda values: floor_index(table, values))(values)
    np.testing.assert_array_equal(found, np.searchsorted(table, values, side="right") - 1)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("form", "bound"), [("bfloat16", 2.0**-7), (BLOCKS, 0.14)])
def test_rounding_errs_by_less_than_a_step_and_by_nothing_over_many_updates(form: Any, bound: float, signed: bool):
    moment = values() if signed else jnp.square(values())
    large = jnp.abs(moment) > 0.1 * jnp.abs(moment).max(axis=1, keepdims=True)
    every = jnp.stack([rounded(form, moment, step, signed=signed) for step in range(64)])
    once = jnp.where(large, jnp.abs(every / moment - 1), 0).max()
    mean = jnp.where(large, jnp.abs(every.mean(axis=0) / moment - 1), 0).max()
    assert 0 < mean < once / 10 < once <= bound


@pytest.mark.parametrize("form", ["bfloat16", BLOCKS])
def test_what_can_be_stored_exactly_stays(form: Any):
    for signed in (True, False):
        stored = encode(form, values() if signed else jnp.square(values()), jnp.int32(0), signed=signed)
        again = encode(form, decode(form, stored), jnp.int32(5), signed=signed)
        for one, other in zip(jax.tree.leaves(stored), jax.tree.leaves(again), strict=True):
            close = np.isclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=1e-6, atol=1)
            assert close.all()


def test_a_second_moment_never_becomes_zero_and_a_block_of_zeros_stays_zero():
    square = jnp.zeros((1, 256, 1)).at[0, :2, 0].set(jnp.asarray([1.0, 1e-30]))
    found = rounded(BLOCKS, square, 0, signed=False)
    assert found[0, 0, 0] == 1.0
    assert 0 < found[0, 1, 0] < 1e-12
    assert not found[0, 2:].any()


@pytest.mark.parametrize(("beta", "form"), [(0.999, "bfloat16"), (0.95, BLOCKS), (0.999, BLOCKS)])
def test_a_second_moment_follows_gradients_that_become_small(beta: float, form: Any):
    """Rounded to the nearest it would stay where it was: a step of the dtype is more than it moves by."""
    shape = (1, 128, 1)
    first = jnp.arange(128).reshape(shape) == 0

    def update(square, step):
        gradient = jnp.where((step < 100) | first, 1.0, 0.01)
        square = beta * decode(form, square) + (1 - beta) * gradient**2
        return encode(form, square, step, signed=False), None

    steps = 100 + round(4 / (1 - beta))
    found, _ = jax.lax.scan(update, zeros(form, jnp.zeros(shape), signed=False), jnp.arange(steps))
    before = 1 - beta**100
    expected = before * beta ** (steps - 100) + 1e-4
    np.testing.assert_allclose(decode(form, found)[0, 1:].mean(), expected, rtol=0.25)


def test_blocks_run_along_what_fsdp_splits_last_and_fit_the_parts_of_tensor_ranks():
    query = ParamSpec((2, 4096, 32, 128), ("layers", "embed", "heads", "head_dim"), matrix=True)
    gate = ParamSpec((2, 4096, 14336), ("layers", "embed", "mlp"), matrix=True)
    odd = ParamSpec((2, 11008, 4096), ("layers", "mlp", "embed"), matrix=True)
    assert [blocks_of(spec) for spec in (query, gate, odd)] == [Blocks(3, 128), Blocks(2, 128), Blocks(1, 32)]


def test_what_is_stored_in_8_bits():
    """Matrices with blocks of 16 or more; tables rest in bfloat16, vectors in float32, and all of them under others."""
    narrow = ParamSpec((2, 16, 8, 4), ("layers", "embed", "heads", "head_dim"), matrix=True, decay=True)
    found = {name: form_of("int8", spec) for name, spec in (SPECS["layers"] | {"narrow": narrow}).items()}
    assert found == {"query": Blocks(3, 64), "down": Blocks(1, 32), "scale": "float32", "narrow": "bfloat16"}
    assert form_of("int8", SPECS["tokens"]) == "bfloat16"
    assert form_of("bfloat16", SPECS["layers"]["scale"]) == "bfloat16"


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("moments", "expected"), [("float32", 8.0), ("bfloat16", 4.0), ("int8", 2.0 + 8 / 128)])
def test_bytes_a_parameter(moments: str, expected: float):
    spec = {"gate": ParamSpec((2, 64, 1024), ("layers", "embed", "mlp"), matrix=True, decay=True)}
    optimizer = make_optimizer(CONFIG, moments=moments, specs=spec, layout={"gate": P()})
    state = jax.eval_shape(optimizer.init, {"gate": jax.ShapeDtypeStruct((2, 64, 1024), jnp.float32)})
    assert bytes_of(state) / spec["gate"].size == expected


MASTER, *GRADIENTS = make_trees(SPECS, 6)


def distance(one: Any, other: Any) -> float:
    """Euclidean, of whole trees."""
    squares = jax.tree.map(lambda a, b: np.square(a - b).sum(), one, other)
    return float(np.sqrt(sum(jax.tree.leaves(squares))))


RULES = {
    "adamw": CONFIG,
    "lion": replace(CONFIG, name="lion", learning_rate=0.01),
    "muon": replace(CONFIG, name="muon"),
}


@pytest.mark.parametrize(
    ("name", "moments", "bound"),
    [
        ("adamw", "bfloat16", 0.005), ("adamw", "int8", 0.05), ("muon", "bfloat16", 0.005), ("muon", "int8", 0.05),
        ("lion", "bfloat16", 0.03), ("lion", "int8", 0.12),
    ],
)  # fmt: skip
def test_five_updates_stay_near_those_in_float32(name: str, moments: str, bound: float):
    """The distance that weights move apart, as a share of the distance that they move. Lion takes signs: they flip."""
    found, state = run_optimizer(RULES[name], SPECS, WHOLE, GRADIENTS, MASTER, moments=moments)
    wanted, _ = run_optimizer(RULES[name], SPECS, WHOLE, GRADIENTS, MASTER)
    assert 0 < distance(found, wanted) < bound * distance(wanted, MASTER)
    assert isinstance(state["mu"]["layers"]["down"], Blocked) == (moments == "int8")


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_a_split_mesh_updates_as_one_device(moments: str):
    mesh = mesh_of(pipe=2, fsdp=2, tensor=2)
    split, split_state = run_optimizer(CONFIG, SPECS, LAYOUT, GRADIENTS, MASTER, mesh=mesh, moments=moments)
    whole, whole_state = run_optimizer(CONFIG, SPECS, WHOLE, GRADIENTS, MASTER, moments=moments)
    chex.assert_trees_all_equal_dtypes((split, split_state), (whole, whole_state))
    found, wanted = jax.tree.map(lambda leaf: leaf.astype(np.float32), ((split, split_state), (whole, whole_state)))
    chex.assert_trees_all_close(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_a_slice_of_the_layers_is_updated_as_in_the_whole(moments: str):
    specs = {"layers": SPECS["layers"]}
    master, gradients = ({"layers": tree["layers"]} for tree in (MASTER, GRADIENTS[0]))
    layout = jax.tree.map(lambda spec: P(), specs)
    optimizer = make_optimizer(CONFIG, moments=moments, specs=specs, layout=layout)
    update = jax.jit(partial(update_every_weight, optimizer, optimizer_arguments(CONFIG, 9)))
    whole = update(gradients, optimizer.init(master), master, jnp.int32(4))
    part = lambda tree: jax.tree.map(lambda leaf: leaf[1:3], tree)
    sliced = update(part(gradients), part(optimizer.init(master)), part(master), jnp.int32(4))
    chex.assert_trees_all_equal(part(whole), sliced, strict=True)


def test_a_part_that_ends_inside_a_block_is_one_sentence():
    specs, layout = ({"layers": {"down": tree["layers"]["down"]}} for tree in (SPECS, LAYOUT))
    of = lambda moments: make_optimizer(CONFIG, moments=moments, specs=specs, layout=layout)
    of("int8").check_layout("adamw", layout, AxisSizes(tensor=8))
    of("bfloat16").check_layout("adamw", layout, AxisSizes(tensor=16))
    with refused("adamw keeps mu of layers.down", "256 in blocks of 32 elements", "tensor 16", "than int8"):
        of("int8").check_layout("adamw", layout, AxisSizes(tensor=16))
