"""Largest magnitudes of the tensors of quantized matmuls: against float64, and on layouts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import mapped
from jaxpar.mesh.collectives import reduce_max
from jaxpar.precision.dense import products
from jaxpar.precision.history import MatmulStatistics, ScaleHistory
from jaxpar.precision.matmul import GroupScaling, Scales
from jaxpar.precision.recipe import E4M3, E5M2, LARGEST, Recipe
from jaxpar.runtime.observed import for_each_use
from tests.traced import mesh_of


def test_of_several_uses_the_largest_magnitude_is_observed():
    _, pull = jax.vjp(lambda zeros: for_each_use(zeros, 3), jnp.zeros(2))
    (found,) = pull(tuple(jnp.array(largest) for largest in ([1.0, 0.0], [3.0, 5.0], [2.0, 4.0])))
    assert found.tolist() == [3.0, 5.0]


# ---- the products of a layer on ranks

ROWS, TOKENS, EMBED, HIDDEN = 4, 16, 8, 16
SPLIT = P(("replica", "fsdp"), ("context", "tensor"))
GIVEN = np.float32([2.0**-6, 2.0**-7, 2.0**-5, 2.0**-6, 2.0**-7, 2.0**-6])


def tensors() -> dict[str, np.ndarray]:
    """Those of two products, over many powers of two; the hidden activation is not that of the first product, so that
    no tensor depends on the order of a sum."""
    draw = np.random.default_rng(0)
    wide = lambda *shape: (draw.normal(size=shape) * np.exp2(draw.integers(-16, 3, shape))).astype(np.float32)
    tokens, hidden = (ROWS, TOKENS, EMBED), (ROWS, TOKENS, HIDDEN)
    shapes = dict(x=tokens, up=(EMBED, HIDDEN), y=hidden, hidden=hidden, down=(HIDDEN, EMBED), z=tokens)
    return {name: wide(*shape) for name, shape in shapes.items()}


def known(scales: jax.Array) -> Scales:
    """Those of a group of one matrix."""
    return Scales(scales[0], scales[1:2], scales[2:])


def amax_on(axes: dict[str, int], ring: bool) -> Any:
    """The magnitudes that the backward of both products observes of all tensors on a mesh."""

    def function(*given: jax.Array) -> jax.Array:
        x, up, y, hidden, down, z = vary(given)

        def both(x: jax.Array, up: jax.Array, hidden: jax.Array, down: jax.Array, zeros: jax.Array) -> Any:
            scaling = lambda own: GroupScaling(
                Recipe(from_history=True), scales=known(jnp.asarray(GIVEN)[own]), zeros=zeros[own]
            )
            inward, outward = scaling(slice(0, 3)), scaling(slice(3, 6))
            chunks = 1 if ring else None
            (made,) = products(x, [up], inward, gathers=True, chunks=chunks)
            return made, *products(hidden, [down], outward, gathers=False, scatters=True, chunks=chunks)

        _, pullback = jax.vjp(both, x, up, hidden, down, vary(jnp.zeros(6)))
        return reduce_max(pullback((y, z))[-1], AXES)

    hidden, parts = P(("replica", "fsdp"), "context", "tensor"), SPLIT
    layouts = parts, P(None, "tensor"), hidden, hidden, P("tensor"), parts
    program = mapped(function, mesh_of(**axes), "float32", layouts, P())
    return jax.device_get(jax.jit(program)(*tensors().values()))


@pytest.mark.parametrize(
    ("axes", "ring"), [({}, False), ({"fsdp": 2, "context": 2, "tensor": 2}, True), ({"fsdp": 2, "tensor": 4}, False)]
)
def test_magnitudes_of_a_groups_tensors_are_those_of_the_whole_tensors(axes: dict[str, int], ring: bool):
    np.testing.assert_array_equal(amax_on(axes, ring), [np.abs(x).max() for x in tensors().values()])


def test_a_step_records_magnitudes_scales_and_what_codes_do_not_reach():
    delayed = ScaleHistory(None, Recipe(from_history=True), ("up", "up.gradient"), layers=3, steps=2, tokens=1)
    magnitudes = np.float32([[0, 0], [448.0, 1.0], [900.0, 57344.0]])
    scales = np.float32([[1, 1], [2, 1], [1, 4]])
    found = delayed.record(MatmulStatistics(magnitudes, scales))
    assert found["matmul_magnitudes"] == {"up": [0, 448, 900], "up.gradient": [0, 1, 57344]}
    assert found["matmul_scales"]["up.gradient"] == [1, 1, 4]
    assert found["matmul_reach"] == {"1": 0.5, "2": 900 / LARGEST[E4M3]} and LARGEST[E5M2] == 57344
    infinite = np.full_like(magnitudes, np.inf)
    assert delayed.record(MatmulStatistics(infinite, scales)) == {}, "of a step that is skipped"
