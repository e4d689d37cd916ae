"""How many numbers FP8 codes cut off and flush to zero: against ml_dtypes in float64, and on layouts."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema.layout import MatmulExcept
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.mesh.axes import vary
from jaxpar.mesh.mapped import mapped
from jaxpar.precision.history import MatmulStatistics
from jaxpar.precision.matmul import GroupScaling, products
from jaxpar.precision.recipe import E4M3, E5M2, LARGEST, Recipe, Tiles
from jaxpar.precision.ring import ring_in, ring_out
from jaxpar.precision.scale import quantise
from jaxpar.precision.seen import COUNTS, Seen, counts_of, nothing_seen, seeing_gradients
from jaxpar.runtime.observed import for_each_use
from jaxpar.training.run.matmul_metrics import matmul_metrics
from tests.gpu_compile import in_child
from tests.precision.test_matmul import reference_scale
from tests.precision.test_tiles import reference_scales
from tests.small_run import SmallRun, small
from tests.traced import mesh_of

FORMATS = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def reference(x: Any, scale: Any, form: str) -> list[int]:
    """`COUNTS` of a tensor, by ml_dtypes of quotients in float64."""
    exact = np.asarray(x, np.float64) / np.asarray(scale, np.float64)
    codes = np.clip(exact, -LARGEST[form], LARGEST[form]).astype(FORMATS[form])
    return [exact.size, int((np.abs(exact) > LARGEST[form]).sum()), int(((exact != 0) & (codes == 0)).sum())]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-7, 2.0**40])
def test_counts_are_those_of_the_codes(form: str, scale: float):
    """All normal numbers of bfloat16, ties and the neighbours of both borders."""
    least = 2.0 ** {E4M3: -10, E5M2: -17}[form]
    edges = np.float32([least, 3 * least, LARGEST[form], 0, 1.0625 * LARGEST[form]])
    near = np.concatenate([np.nextafter(edges, np.float32(end)) for end in (-np.inf, np.inf)])
    halves = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    normal = halves[np.isfinite(halves) & ((np.abs(halves) > 2.0**-80) | (halves == 0)) & (np.abs(halves) < 2.0**80)]
    x = np.concatenate([normal, edges * np.float32(scale), np.where(np.abs(near) > 1e-30, near, 1) * np.float32(scale)])
    found = np.asarray(counts_of(jnp.asarray(x), jnp.float32(scale), form))
    assert found.tolist() == reference(x, scale, form)
    codes = np.asarray(quantise(jnp.asarray(x), jnp.float32(scale), form).astype(jnp.float32))
    assert found[2] == ((codes == 0) & (x != 0)).sum() > 0


def test_of_several_uses_the_largest_magnitude_and_all_counts_are_seen():
    _, pull = jax.vjp(lambda zeros: for_each_use(zeros, 3), nothing_seen(2, counts=True))
    each = [([1.0, 0.0], [4.0, 0.0, 1.0]), ([3.0, 5.0], [8.0, 2.0, 0.0]), ([2.0, 4.0], [4.0, 1.0, 3.0])]
    (found,) = pull(tuple(Seen(jnp.array(largest), jnp.array([counts, counts])) for largest, counts in each))
    assert found.largest.tolist() == [3.0, 5.0] and found.counts.tolist() == [[16.0, 3.0, 4.0]] * 2


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 2.0**-8), ("float32", 2.0**-20)])
def test_magnitudes_of_gradients_that_elementwise_work_makes_are_those_of_float64(dtype: str, limit: float):
    """Of SwiGLU; its value and its gradients have the bits that they have without."""
    draw = np.random.default_rng(0)
    up, gate, d_out = (jnp.asarray(4 * draw.standard_normal((3, 7, 11)), dtype) for _ in range(3))
    swiglu = lambda up, gate: jax.nn.silu(gate) * up
    seeing = lambda unseen, *inputs: seeing_gradients(swiglu, unseen, *inputs)
    value, pull = jax.vjp(jax.jit(seeing), jnp.zeros(2), up, gate)
    largest, *gradients = pull(d_out)
    plain, plain_pull = jax.vjp(jax.jit(swiglu), up, gate)
    for found, wanted in zip((value, *gradients), (plain, *plain_pull(d_out)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    wide_up, wide_gate, wide_d = (np.asarray(x, np.float64) for x in (up, gate, d_out))
    sigmoid = 1 / (1 + np.exp(-wide_gate))
    of_up, of_gate = wide_d * wide_gate * sigmoid, wide_d * wide_up * sigmoid * (1 + wide_gate * (1 - sigmoid))
    wanted = [np.abs(of_up).max(), np.abs(of_gate).max()]
    assert abs(wanted[0] / wanted[1] - 1) > 0.05, "not the same one twice"
    np.testing.assert_allclose(largest, wanted, rtol=limit)


# ---- the products of a layer on ranks

ROWS, TOKENS, EMBED, HIDDEN = 4, 16, 8, 16
NAMES = ("x", "up", "y", "hidden", "down", "z")
SPLIT = P(("replica", "fsdp"), ("context", "tensor"))
RECIPES = {
    "current": Recipe(delayed=False, gradient=E4M3),
    "delayed": Recipe(delayed=True, gradient=E4M3),
    "block": Recipe(delayed=False, gradient=E4M3, tiles=Tiles(4, square=True)),
    "rows": Recipe(delayed=False, gradient=E4M3, tiles=Tiles(4, square=False)),
}
GIVEN = np.float32([2.0**-6, 2.0**-7, 2.0**-5, 2.0**-6, 2.0**-7, 2.0**-6])


def tensors() -> dict[str, np.ndarray]:
    """Those of two products, over many powers of two; the hidden activation is not that of the first product, so that
    no tensor depends on the order of a sum."""
    draw = np.random.default_rng(0)
    wide = lambda *shape: (draw.normal(size=shape) * np.exp2(draw.integers(-16, 3, shape))).astype(np.float32)
    tokens, hidden = (ROWS, TOKENS, EMBED), (ROWS, TOKENS, HIDDEN)
    shapes = dict(x=tokens, up=(EMBED, HIDDEN), y=hidden, hidden=hidden, down=(HIDDEN, EMBED), z=tokens)
    return {name: wide(*shape) for name, shape in shapes.items()}


def seen_on(axes: dict[str, int], recipe: Recipe, ring: bool = False) -> Seen:
    """What the backward of both products sees of all tensors on a mesh."""

    def function(*given: jax.Array) -> Seen:
        x, up, y, hidden, down, z = vary(given)
        unseen = vary(nothing_seen(6, counts=True))

        def both(x: jax.Array, up: jax.Array, hidden: jax.Array, down: jax.Array, unseen: Seen) -> Any:
            scaling = lambda own: GroupScaling(
                recipe, scales=jnp.asarray(GIVEN)[own] if recipe.delayed else None,
                observed=unseen.largest[own], counted=unseen.counts[own],
            )  # fmt: skip
            inward, outward = scaling(slice(0, 3)), scaling(slice(3, 6))
            if ring:
                return *ring_in(x, [up], inward, 1), ring_out(hidden, down, outward, 1)
            (made,) = products(x, [up], inward, gathers=True)
            return made, *products(hidden, [down], outward, gathers=False, scatters=True)

        _, pullback = jax.vjp(both, x, up, hidden, down, unseen)
        seen = pullback((y, z))[-1]
        return seen.over_ranks(Seen())

    hidden, parts = P(("replica", "fsdp"), "context", "tensor"), SPLIT
    layouts = parts, P(None, "tensor"), hidden, hidden, P("tensor"), parts
    program = mapped(function, mesh_of(**axes), "float32", layouts, Seen(P(), P()))
    return jax.device_get(jax.jit(program)(*tensors().values()))


def wanted(name: str) -> list[list[int]]:
    found = []
    for own, x, scale in zip(NAMES, tensors().values(), GIVEN, strict=True):
        flat, tiles = x.reshape(-1, x.shape[-1]), RECIPES[name].tiles
        if name == "delayed":
            found.append(reference(x, scale, E4M3))
        elif tiles is None:
            found.append(reference(x, 2.0 ** np.ceil(np.log2(np.abs(x).max() / LARGEST[E4M3])), E4M3))
        else:
            size = tiles.size
            both = [(size, size)] if own in ("up", "down") and tiles.square else [(1, size), (size, 1)]
            each = [reference(flat, reference_scales(flat, tile, E4M3), E4M3) for tile in both]
            found.append(np.sum(each, axis=0).tolist())
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_counts_of_a_groups_tensors_are_those_of_float64(name: str):
    found = seen_on({}, RECIPES[name])
    assert found.counts.tolist() == wanted(name)
    assert (found.counts[:, 2] > 0).all() and found.counts[:, 1].any() == (name == "delayed")
    np.testing.assert_array_equal(found.largest, [np.abs(x).max() for x in tensors().values()])


@pytest.mark.parametrize(("name", "ring"), [("current", False), ("delayed", True), ("block", False)])
def test_counts_on_ranks_are_those_of_one_device(name: str, ring: bool):
    """Of what ranks split, to the last number. What they hold whole counts as often as it is quantised: matrices once
    for each part of the tokens, and with scales of tiles the gradient of what is scattered once for each rank."""
    found = seen_on({"fsdp": 2, "context": 2, "tensor": 2}, RECIPES[name], ring).counts
    whole = np.asarray(wanted(name))
    whole[[NAMES.index("up"), NAMES.index("down")]] *= 4
    if name == "block":
        whole[NAMES.index("z")] *= 2
    assert found.tolist() == whole.tolist()


# ---- whole steps

ALL = MatmulExcept(parts=("head", "router", "attention_out"), first_layers=0, last_layers=1)
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor and context, recomputed": {
        "parallel": {"fsdp": 2, "tensor": 2, "context": 2, "microbatches": 2}, "memory": {"remat": "full"},
    },
    "padded pipeline with delayed scales": {"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 4}},
    "split backward": {"parallel": {"pipe": 2, "tensor": 2, "microbatches": 2, "schedule": "zb-h1"}},
}  # fmt: skip


def steps_of(matmul: str, layout: str | None, counts: bool, steps: int) -> tuple[SmallRun, Any, list[Any]]:
    """(run, its first weights, metrics of its first steps). A margin makes room for small numbers to be flushed."""
    sections = {"parallel": {"microbatches": 2}} if layout is None else LAYOUTS[layout]
    precision = {"matmul": matmul, "matmul_except": ALL, "matmul_gradient": "e4m3", "matmul_margin": 7}
    config = small(
        model={"layers": 3, "embed": 64, "mlp": 96, "kv_heads": 8}, precision=precision | {"matmul_counts": counts},
        **sections,
    )  # fmt: skip
    run = SmallRun(config)
    state = run.step.residency.initial_state()
    weights, metrics = run.by_layer(state.master), []
    for step in range(steps):
        state, found = run.step.train(state, run.batch(step), run.step.arguments)
        metrics.append(jax.device_get(found))
    return run, weights, metrics


@cache
def first_step(matmul: str, layout: str | None) -> tuple[SmallRun, Any, Any]:
    run, weights, (metrics,) = steps_of(matmul, layout, True, 1)
    return run, weights, metrics


@pytest.mark.long
def test_counting_changes_no_bit_in_float32_and_shares_are_reported_of_each_layer():
    """The second step scales by what the first one saw, which the derivative of SwiGLU finds without counts."""
    run, weights, (metrics, second) = steps_of("fp8_delayed", None, True, 2)
    _, _, without = steps_of("fp8_delayed", None, False, 2)
    for found, plain in zip((metrics, second), without, strict=True):
        assert (
            plain.carried["matmuls"].counts is None and found.loss == plain.loss and found.grad_norm == plain.grad_norm
        )
        np.testing.assert_array_equal(found.carried["matmuls"].scales, plain.carried["matmuls"].scales)
    statistics, later = metrics.carried["matmuls"], second.carried["matmuls"]
    names = tensor_names(run.config)
    found_there = [names.index("up.gradient"), names.index("gate.gradient")]
    assert (later.scales[:2, found_there] != statistics.scales[:2, found_there]).all(), "those of an empty window"
    reported = matmul_metrics(run.config, metrics)
    for name, part in (("query", "attention"), ("up", "mlp"), ("down", "mlp")):
        for layer in range(2):
            exact = reference(weights["layers"][part][name][layer], 1.0, E4M3)  # the first step scales by 1
            assert statistics.counts[layer, names.index(name)].tolist() == exact
            assert reported["matmul_flushed"][name][layer] == exact[2] / exact[0] > 0
    assert not statistics.counts[2].any() and set(reported["matmul_most_flushed"]) == {"0", "1"}, "an exception"
    flushed = reported["matmul_flushed"]
    assert reported["matmul_most_flushed"]["1"] == max(own[1] for own in flushed.values())
    assert set(flushed) == set(reported["matmul_saturated"]) == set(names)


@pytest.mark.parametrize("matmul", ["fp8_current", "fp8_block"])
def test_scales_of_tensors_themselves_are_reported_beside_their_magnitudes(matmul: str):
    config = small(precision={"matmul": matmul, "matmul_except": ALL, "matmul_margin": 2, "matmul_gradient": "e5m2"})
    names = tensor_names(config)
    magnitudes = np.exp(np.random.default_rng(0).uniform(-9, 9, (3, len(names)))).astype(np.float32)
    found = matmul_metrics(config, SimpleNamespace(carried={"matmuls": MatmulStatistics(magnitudes, None, None)}))  # pyright: ignore[reportArgumentType]
    assert set(found) == {"matmul_magnitudes"} | ({"matmul_scales"} if matmul == "fp8_current" else set())
    for place, name in enumerate(names if matmul == "fp8_current" else ()):
        form = E5M2 if name.endswith(".gradient") else E4M3
        assert found["matmul_scales"][name] == [reference_scale(own, form, 2) for own in magnitudes[:, place]]


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_of_a_step_do_not_depend_on_the_layout(layout: str):
    """Numbers, and all counts of what does not depend on the order of a sum, exactly: matrices, and the first input.
    Others as far as roundings move a number over the border to zero. A query that sees one key has no gradient but
    roundings, which are many of the query's flushed numbers."""
    matmul = "fp8_delayed" if "delayed" in layout else "fp8_current"
    run, _, _ = first_step(matmul, layout)
    split, whole = (step[2].carried["matmuls"] for step in (first_step(matmul, layout), first_step(matmul, None)))
    names = tensor_names(run.config)
    exact = [place for place, name in enumerate(names) if "." not in name]
    np.testing.assert_array_equal(split.counts[..., 0], whole.counts[..., 0])
    np.testing.assert_array_equal(split.counts[:, exact], whole.counts[:, exact])
    np.testing.assert_array_equal(split.counts[0, 0], whole.counts[0, 0])
    found, wanted = (each.counts[..., COUNTS.index("flushed")] for each in (split, whole))
    limit = np.maximum(3, 0.01 * wanted)
    limit[:, names.index("query.gradient")] = 0.01 * whole.counts[:, names.index("query.gradient"), 0]
    assert (np.abs(found - wanted) <= limit).all()
    assert names[0] == "attention_in.input" and (wanted.sum(axis=0) > 0).all(), "all tensors have some"


def test_counting_reads_no_tensor_once_more_on_gpus():
    found = in_child("tests.precision.gpu_counts:measure", "fp8_current", "fp8_delayed", "fp8_block")
    assert found == {"fp8_current": [2, 2], "fp8_delayed": [1, 1], "fp8_block": [2, 2]}
