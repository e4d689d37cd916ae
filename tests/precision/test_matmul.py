"""Matmuls in FP8: scales, the three products against float64, and whole steps on several layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config import Config
from jaxpar.config.axes import STREAM_AXES
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import mapped
from jaxpar.precision.dense import products
from jaxpar.precision.matmul import GroupScaling
from jaxpar.precision.recipe import E4M3, E5M2, LARGEST, Recipe
from jaxpar.precision.scale import largest_of, largest_over, quantize, scale_of
from jaxpar.runtime.passes import ALWAYS_SAVED
from tests.nonzero_gradients import nonzero_gradients
from tests.same_bits import assert_same_bits
from tests.sentences import named
from tests.small_run import SmallRun, small
from tests.traced import mesh_of
from tests.training.parity.one_device import assert_near_one_device, changed_by_quantizing

CURRENT = Recipe()
STEP = {E4M3: 2.0**-4, E5M2: 2.0**-3}
"""Half of the distance between neighbouring numbers, as a share of them."""


def reference_scale(largest: float, form: str) -> float:
    """The least power of two with `largest` / scale <= the format's largest number, in float64."""
    return 2.0 ** np.ceil(np.log2(np.float64(largest) / LARGEST[form]))


@pytest.mark.parametrize("form", [E4M3, E5M2])
def test_a_scale_is_the_least_power_of_two_by_which_a_tensor_fits(form: str):
    edge = LARGEST[form] * 2.0 ** np.arange(-20, 20, dtype=np.float32)
    draws = np.exp(np.random.default_rng(0).uniform(-20, 20, 200)).astype(np.float32)
    largest = np.concatenate([edge, np.nextafter(edge, np.float32(np.inf)), np.nextafter(edge, np.float32(0)), draws])
    wanted = [reference_scale(value, form) for value in largest]
    np.testing.assert_array_equal(scale_of(jnp.asarray(largest), form), np.asarray(wanted, np.float32))


def test_zeros_have_a_scale_and_what_is_not_finite_is_not_hidden():
    assert float(scale_of(jnp.float32(0), E4M3)) == 1.0
    for bad in (np.inf, np.nan):
        x = jnp.array([1.0, bad, -2.0])
        assert np.isnan(quantize(x, scale_of(largest_of(x), E4M3), E4M3).astype(jnp.float32)).all()


def test_codes_saturate_and_their_scale_rounds_nothing():
    x = jnp.array([3.0, -5.0, 1e6, -1e6, 0.0])
    codes = quantize(x, jnp.float32(2.0**-3), E4M3).astype(jnp.float32) * 2.0**-3
    np.testing.assert_array_equal(codes, [3.0, -5.0, 56.0, -56.0, 0.0])


def bound(a: np.ndarray, b: np.ndarray, forms: tuple[str, str], scales: list[float]) -> np.ndarray:
    """A bound of |product of codes - product| in float64: each operand is off by a share of itself, or by half of the
    format's smallest number."""
    least = {E4M3: 2.0**-10, E5M2: 2.0**-17}
    errors = [
        np.abs(x) * STEP[form] + least[form] * scale for x, form, scale in zip((a, b), forms, scales, strict=True)
    ]
    return errors[0] @ np.abs(b) + np.abs(a) @ errors[1] + errors[0] @ errors[1]


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_each_product_is_within_its_formats_bound(size: float):
    """Output, and gradients of the input and of the weight, against float64; for gradients of usual magnitude, too."""
    draw = np.random.default_rng(1)
    x, w = draw.normal(size=(2, 16, 64)), draw.normal(size=(64, 4, 12)) * 0.02
    x[0, 0, 0] = 300.0  # an outlier, which the others are rounded beside
    dy = draw.normal(size=(2, 16, 4, 12)) * size
    scaling = GroupScaling(Recipe())
    cast = lambda a: jnp.asarray(a, jnp.float32)
    y, pullback = jax.vjp(lambda x, w: products(x, [w], scaling, gathers=False)[0], cast(x), cast(w))
    dx, dw = pullback(cast(dy))
    rows, matrix, dys = x.reshape(32, 64), w.reshape(64, 48), dy.reshape(32, 48)
    scales = [reference_scale(np.abs(np.float32(a)).max(), form) for a, form in ((x, E4M3), (w, E4M3), (dy, E5M2))]
    for found, a, b, forms, own in (
        (y, rows, matrix, (E4M3, E4M3), scales[:2]),
        (dx, dys, matrix.T, (E5M2, E4M3), [scales[2], scales[1]]),
        (dw, rows.T, dys, (E4M3, E5M2), [scales[0], scales[2]]),
    ):
        error = np.abs(np.asarray(found, np.float64).reshape(a.shape[0], -1) - a @ b)
        limit = bound(a, b, forms, own) * (1 + 1e-5)
        assert (error <= limit).all(), (error / limit).max()
        assert error.max() > 1e-3 * np.abs(a @ b).max(), "it was not quantized"


def test_a_recomputed_product_has_the_scales_and_the_bits_of_the_first():
    """A policy that keeps nothing but scales: gradients are the same bits, and no magnitude is looked for again."""
    draw = np.random.default_rng(4)
    x, first, second = (
        jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((2, 16, 32), (32, 64), (64, 32))
    )

    def block(x: jax.Array, *weights: jax.Array) -> jax.Array:
        for w in weights:
            (x,) = products(jnp.sin(x), [w], GroupScaling(CURRENT), gathers=False)
        return jnp.sum(x * x)

    policy = jax.checkpoint_policies.save_only_these_names(ALWAYS_SAVED)
    plain, again = (jax.value_and_grad(own, (0, 1, 2)) for own in (block, jax.checkpoint(block, policy=policy)))
    assert_same_bits(jax.jit(again)(x, first, second), jax.jit(plain)(x, first, second))
    # Forward of two operands each, backward of each output's gradient.
    searches = [str(jax.make_jaxpr(own)(x, first, second)).count("reduce_max") for own in (plain, again)]
    assert searches == [6, 6]


@pytest.mark.parametrize(("axes", "split"), [
    ({"fsdp": 2, "context": 2, "tensor": 2}, PartitionSpec(("replica", "fsdp"), "context", "tensor")),
    ({"replica": 4, "expert": 2}, PartitionSpec(("replica", "expert"))),
])  # fmt: skip
def test_a_split_tensor_has_the_largest_magnitude_of_the_whole(axes: dict[str, int], split: PartitionSpec):
    x = np.random.default_rng(2).normal(size=(8, 16, 32)).astype(np.float32)
    place = (7, 15, 31)
    x[place] = -99.25  # in the part of the last rank
    find = lambda x: vary(largest_over([x, 2 * x], STREAM_AXES))[None]
    every = mapped(find, mesh_of(**axes), "float32", split, PartitionSpec(AXES))(x)
    np.testing.assert_array_equal(every, np.full((8, 2), [99.25, 198.5], np.float32))


# ---- whole steps

ALL = MatmulOptions(exclude=("head", "router"), first_layers=1, last_layers=0)
MODEL = {"layers": 4, "embed": 64, "mlp": 128, "kv_heads": 2, "head_dim": 16}

TWO_STAGES = "parallel.pipe=2 | parallel.fsdp=2 | parallel.microbatches=2"
LAYOUTS = named("""
    tensor, context and shards, recomputed: parallel.fsdp=2 | parallel.tensor=2 | parallel.context=2 |
        parallel.microbatches=2 | memory.remat=full
    rings: parallel.fsdp=2 | parallel.tensor=2 | parallel.microbatches=2 | parallel.overlap.tensor=ring
    more tensor ranks than heads of keys: parallel.tensor=4 | parallel.microbatches=2
    pipeline: TWO_STAGES
    split backward: TWO_STAGES | parallel.schedule=zb-h1
    branching ticks: TWO_STAGES | parallel.pipe_ticks=branching
    held chunks: TWO_STAGES | parallel.schedule=breadth-first | parallel.virtual_stages=2
    layers on the host: parallel.fsdp=2 | parallel.microbatches=2 | memory.optimizer_offload=host |
        memory.weights_offload=host
    ring of keys under ZeRO-2: parallel.fsdp=2 | parallel.context=2 | parallel.zero=2 |
        parallel.context_strategy=ring | parallel.microbatches=2
    replicas and heads in turn under ZeRO-1: parallel.replica=2 | parallel.fsdp=2 | parallel.context=2 |
        parallel.zero=1 | parallel.context_strategy=ulysses | parallel.microbatches=2
    split backward of two chunks: TWO_STAGES | parallel.schedule=zb-v | parallel.virtual_stages=2
    activations and optimizer on the host: parallel.fsdp=4 | parallel.microbatches=2 |
        memory.remat={preset: full, layer_input: offload} | memory.optimizer_offload=host
    """, TWO_STAGES=TWO_STAGES)  # fmt: skip
ONE_DEVICE = ["parallel.microbatches=2"]


def config_of(overrides: list[str], matmul: str | None = "fp8_current") -> Config:
    precision = {} if matmul is None else {"matmul": matmul, "matmul_options": ALL}
    return with_overrides(small(model=MODEL, precision=precision), overrides)


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_give_the_numbers_of_one_device(name: str):
    """Another order of sums moves some values across a border between two codes, and from there on more: the limit is a
    third of what quantizing itself changes. Ranks that share a head of keys quantize each its own part of the gradient
    of that head: other tensors, for which the limit is all of it."""
    assert_numbers_of_one_device("fp8_current", name)


def assert_numbers_of_one_device(matmul: str, name: str) -> None:
    alone = config_of(ONE_DEVICE, matmul)
    assert 0.03 < changed_by_quantizing(alone) < 0.15
    share = 1 if "heads of keys" in name else 1 / 3
    assert_near_one_device(config_of(LAYOUTS[name], matmul), alone, share * changed_by_quantizing(alone))


@pytest.mark.long
@pytest.mark.parametrize("name", [
    "tensor, context and shards, recomputed", "replicas and heads in turn under ZeRO-1",
    "activations and optimizer on the host",
])  # fmt: skip
def test_layouts_give_the_numbers_of_one_device_with_scales_of_earlier_steps(name: str):
    """Scales of an empty window are 1, and those of gradients 1 / tokens."""
    assert_numbers_of_one_device("fp8_delayed", name)


@pytest.fixture(scope="module")
def losses_of_one_device() -> list[float]:
    return SmallRun(config_of(ONE_DEVICE, "fp8_delayed")).train(3)[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["tensor, context and shards, recomputed", "split backward", "held chunks", "layers on the host"]
)
def test_runs_with_scales_of_earlier_steps_have_the_losses_of_one_device(name: str, losses_of_one_device: list[float]):
    """In the second and third step scales are those of what the steps before have seen, on all ranks. A value that
    another order of sums moves across a border changes all that follow."""
    losses, _ = SmallRun(config_of(LAYOUTS[name], "fp8_delayed")).train(3)
    np.testing.assert_allclose(losses[0], losses_of_one_device[0], rtol=1e-4)
    np.testing.assert_allclose(losses, losses_of_one_device, rtol=4e-3)


@pytest.mark.long
def test_a_split_backward_has_the_bits_of_a_whole_one():
    """The products that come later have the codes and scales of the first: the sums are the same, in the same order."""
    pipeline = ["parallel.pipe=2", "parallel.microbatches=2"]
    whole, split = (
        nonzero_gradients(SmallRun(config_of([*pipeline, f"parallel.schedule={schedule}"])))
        for schedule in ("1f1b", "zb-h1")
    )
    assert_same_bits(split, whole)
