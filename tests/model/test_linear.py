"""A backward in two halves gives the gradients of the whole one, and runs no matmul that the whole one does not."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import mapped
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.layer_order import Chunk
from jaxpar.mesh.materialize import to_optimizer, to_storage, zero_accumulators
from jaxpar.runtime.batch import SEED
from jaxpar.runtime.passes import Accumulator, Cotangents, Saved
from jaxpar.runtime.taps import recording, tapping
from tests.nonzero_gradients import FAMILIES
from tests.small_run import SmallRun, small
from tests.traced import operations

MATRICES = {"llama": 7, "gpt2": 6, "qwen3": 8, "olmo2": 7, "gemma": 7, "cohere": 7}
"""Matmuls of a layer besides attention: query, key, value, output, and up, down and perhaps gate; qwen3
has here a gate of attention too."""


def group(name: str, x: jax.Array) -> tuple[jax.Array, ...]:
    return {"double": (2 * x,), "both": (3 * x, -x)}[name]


def plain(name: str, group: Any, x: jax.Array) -> Any:
    return group(name, x)


def test_a_tap_changes_nothing_forward_and_keeps_the_input_and_the_gradient_of_the_output():
    def function(tap: Any, x: jax.Array) -> jax.Array:
        (h,) = tap("double", group, jnp.sin(x))
        a, b = tap("both", group, h)
        return jnp.sum(a * b)

    x, found = jnp.array([0.5, 2.0]), {}
    shapes = jax.eval_shape(lambda x: (function(recording(found), x), found)[1], x)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    assert set(zeros) == {"double", "both"}
    value, pullback = jax.vjp(lambda taps, x: function(tapping(taps), x), zeros, x)
    assert value == function(plain, x)
    taps, dx = pullback(jnp.float32(1))
    np.testing.assert_allclose(dx, jax.grad(lambda x: function(plain, x))(x), rtol=1e-6)
    h = 2 * np.sin(x)
    wanted = {"double": (np.sin(x), (-6 * h,)), "both": (h, (-h, 3 * h))}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), taps, wanted)


def test_two_groups_of_one_name_are_noticed():
    tap = recording({})
    tap("double", group, jnp.ones(2))
    with pytest.raises(AssertionError, match="two groups of matmuls named 'double'"):
        tap("double", group, jnp.ones(2))


@cache
def run_of(family: str, remat: str) -> SmallRun:
    model = {"layers": 2, "dropout": 0.1} | FAMILIES[family]
    return SmallRun(small(model=model, parallel={"fsdp": 2, "tensor": 2, "zero": 3}, memory={"remat": remat}))


def halves(run: SmallRun, *, split: bool, backward: bool = True, weights: bool = True) -> Any:
    """(master, batch) -> gradients of the layers in optimizer placement, of the sum of all outputs squared; and that of
    their input, summed."""
    step = run.step

    def function(master: Any, batch: Any) -> Any:
        loop = replace(stages_of(step.layout, train=True), split_backward=split).loop
        stages, storage = stages_of(step.layout, train=True), to_storage(master, step.layout.placements)
        data = jax.tree.map(lambda a: a[0], batch) | {SEED: jnp.uint32(0)}
        x, tokens = stages.embed(storage, data), stages.token_context(data)
        chunk = Chunk(storage["layers"], 0, 0)
        accumulators = {part: zero_accumulators(w, step.layout.placements, part=part) for part, w in storage.items()}
        saved, side = Saved(loop.stash(chunk.stack, x, tokens, 1), 0), loop.side(chunk.stack, x, tokens, int(split))
        y, stash, side = loop.forward(chunk, x, tokens, saved, side)
        if not backward:
            return jax.tree.map(lambda a: reduce_sum(vary(jnp.sum(a)), AXES), (y, stash))
        into, saved = Accumulator(Chunk(accumulators["layers"], 0, 0)), Saved(stash, 0)
        dx, gradients, side = loop.backward(chunk, Cotangents(2 * y), tokens, saved, into, side)
        if split and weights:
            gradients = loop.weight_gradients(chunk.stack, tokens, Accumulator(Chunk(gradients, 0, 0)), side)
        total = reduce_sum(vary(jnp.sum(dx)), AXES)
        return to_optimizer(accumulators | {"layers": gradients}, step.layout.placements), total

    layout = (step.layout.master, PartitionSpec()) if backward else PartitionSpec()
    return mapped(
        function, step.mesh, step.layout.plan.dtypes.compute, (step.layout.master, step.layout.batch.partitions), layout
    )


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    ("family", "remat"),
    [("gpt2", "none"), ("qwen3", "full"), ("llama", "gemm_last"), ("olmo2", "gemm_last"), ("gemma", "full")],
)
def test_gradients_in_two_halves_equal_those_of_the_whole_backward(family: str, remat: str):
    run = run_of(family, remat)
    arguments = run.step.residency.initial_state().master, run.batch(0)
    whole, both, first = (
        jax.device_get(jax.jit(halves(run, **options))(*arguments))[0]["layers"]
        for options in ({"split": False}, {"split": True}, {"split": True, "weights": False})
    )
    for (path, a), b, c in zip(
        jax.tree_util.tree_leaves_with_path(whole), jax.tree.leaves(both), jax.tree.leaves(first), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert np.abs(a - b).max() <= 2e-6 * np.abs(a).max(), name
        matrix = a.ndim > 2 and "bias" not in name and "norm" not in name
        np.testing.assert_array_equal(c, np.zeros_like(c) if matrix else b, name)


@pytest.mark.matrix(quick=1, ci=2)
@pytest.mark.parametrize("family", MATRICES)
@pytest.mark.parametrize("remat", ["none", "full"])
def test_both_halves_multiply_what_the_whole_backward_multiplies(family: str, remat: str):
    """The second half is one matmul for each matrix; the first is all others, those that run again among them."""
    run = run_of(family, remat)
    arguments = run.step.layout.abstract_state(run.step.mesh).master, run.step.layout.abstract_batch(run.step.mesh)

    def multiplied(**options: bool) -> int:
        counts: Counter[str] = Counter()
        for equation, times in operations(halves(run, **options), *arguments):
            counts[equation.primitive.name] += times
        return counts["dot_general"]

    layers, forward = 2, multiplied(split=True, backward=False)
    whole, first, both = multiplied(split=False), multiplied(split=True, weights=False), multiplied(split=True)
    assert forward == multiplied(split=False, backward=False)
    assert both == whole
    assert both - first == layers * MATRICES[family]
    # Of attention, which makes its scores again: five. All of forward runs again but `down`, which no gradient
    # needs unless a norm is behind it, and of parallel blocks the output of attention.
    placement = FAMILIES[family].get("norm_placement", "pre")
    ends = layers * {"pre": 1, "parallel": 2}.get(placement, 0)
    again = {"none": 0, "full": forward - ends}[remat]
    assert whole - forward == layers * (2 * MATRICES[family] + 5) + again
