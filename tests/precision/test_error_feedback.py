"""What quantised messages lose of a gradient: all of it comes back in later steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.plan import AxisSizes, Dtypes
from jaxpar.mesh.axes import vary
from jaxpar.mesh.mapped import mapped
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import place
from jaxpar.mesh.wire.travel import reduce_codes, scatter_codes
from jaxpar.mesh.wire.wire import Wire
from jaxpar.precision.error_feedback import no_residual, residual_layout, to_optimizer_with_feedback
from tests.same_bits import assert_same_bits
from tests.traced import mesh_of

RANKS, STEPS, SHAPE = 8, 12, (4, 16, 40)
AXES = ("fsdp", "context")
MESH = mesh_of(fsdp=4, context=2)


def gradients() -> np.ndarray:
    """[step, rank, ...] whose elements differ by far, with a mean that does not vanish."""
    draw = np.random.default_rng(0)
    scale = 10.0 ** draw.uniform(-4, 0, SHAPE)
    return ((draw.standard_normal((STEPS, RANKS, *SHAPE)) + 0.3) * scale).astype(np.float32)


def exchange(wire: Wire, collective: str) -> Any:
    """Compiled (gradient [rank, ...], residual [rank, ...]) -> (the whole sum, residual)."""

    def function(x: jax.Array, residual: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x[0] + residual[0]
        if collective == "scatter":
            shard, lost = scatter_codes(x, AXES, 1, wire)
            return shard, lost[None]
        summed, lost = reduce_codes(x, AXES, wire)
        return vary(summed, AXES)[None], lost[None]

    out = P(None, AXES) if collective == "scatter" else P(AXES)
    mapped = partial(jax.shard_map, mesh=MESH, in_specs=(P(AXES), P(AXES)), check_vma=True)
    return jax.jit(mapped(function, out_specs=(out, P(AXES))))


@pytest.mark.parametrize("collective", ["scatter", "reduce"])
@pytest.mark.parametrize(("codes", "node"), [("int4", 4), ("int4", None), ("int8", 2), ("bfloat16", 4)])
def test_the_sum_over_steps_lacks_no_more_than_one_residual(codes: Any, node: int | None, collective: str):
    """In float64: what was applied, and the residuals of all ranks, add up to the gradients of all ranks and steps."""
    run = exchange(Wire(gradient=codes, feedback=True, node_devices=node), collective)
    given = gradients()
    residual, applied, true = np.zeros((RANKS, *SHAPE), np.float32), np.zeros(SHAPE), np.zeros(SHAPE)
    sizes = []
    for step in given:
        summed, residual = run(step, residual)
        if collective == "reduce":
            assert (np.asarray(summed) == np.asarray(summed)[:1]).all(), "the ranks hold the same sum"
            summed = summed[0]
        applied += np.asarray(summed, np.float64)
        true += step.astype(np.float64).sum(axis=0)
        left = np.asarray(residual, np.float64).sum(axis=0)
        assert np.abs(applied + left - true).max() <= 1e-5 * np.abs(true).max()
        sizes.append(np.linalg.norm(left) / np.linalg.norm(step.astype(np.float64).sum(axis=0)))
    assert sizes[0] > 0 and max(sizes) < 3 * sizes[0] + 0.01, "the residual does not grow with the steps"


def test_without_feedback_what_is_lost_adds_up():
    """Twelve steps lose more than a residual of the same codes, whose errors have no bias."""
    lost = {}
    for feedback in (True, False):
        run = exchange(Wire(gradient="int4", feedback=feedback, node_devices=4), "scatter")
        total, residual = np.zeros(SHAPE), np.zeros((RANKS, *SHAPE), np.float32)
        for step in gradients():
            summed, new = run(step, residual)
            residual = new if feedback else residual
            total += np.asarray(summed, np.float64) - step.astype(np.float64).sum(axis=0)
        lost[feedback] = np.linalg.norm(total)
    assert lost[True] < lost[False] / 2


def test_the_residual_is_without_the_loss_scale():
    """Codes of blocks do not depend on a power of two: two steps under different scales have the bits of two under
    none, and of gradients that were not quantised there is no residual."""
    specs = {"table": ParamSpec((16, 64), ("vocab", "embed"), decay=True), "norm": ParamSpec((64,), ("norm",))}
    sizes = AxisSizes(replica=2, fsdp=4)
    wire = Wire(gradient="int4", feedback=True, node_devices=4)
    placements = place(specs, sizes, 1, Dtypes(*["float32"] * 5), 1, wire=wire)
    layout, ranks = residual_layout(specs, placements), P(("replica", "fsdp"))
    assert layout["norm"] is None

    def function(grads: Any, residual: Any, scale: jax.Array) -> Any:
        own = {name: vary(grad[0] * scale) for name, grad in grads.items()}
        return to_optimizer_with_feedback(own, residual, placements, scale)

    given, mesh = {"table": ranks, "norm": ranks}, mesh_of(replica=2, fsdp=4)
    step = jax.jit(mapped(function, mesh, "float32", (given, layout, P()), (placements.optimizer.layout, layout)))
    grads = {"table": gradients()[:2, :, 0, :, :1] * np.linspace(0.1, 3, 64), "norm": gradients()[:2, :, 0, 0, :1]}
    grads["norm"] = np.repeat(grads["norm"], 64, axis=-1)
    found = []
    for scales in ((1.0, 1.0), (1024.0, 64.0)):
        residual, summed = no_residual(specs, layout, sizes, "float32"), []
        for number, scale in enumerate(scales):
            own = {name: jnp.asarray(grad[number], jnp.float32) for name, grad in grads.items()}
            gradient, residual = step(own, residual, jnp.float32(scale))
            summed.append(gradient)
        found.append(jax.device_get((summed, residual)))
    assert_same_bits(*found)
    assert np.abs(found[0][1]["table"]).max() > 0
