"""The feed-forward in tiles gives the numbers of the whole in float64, and never has all hidden activations."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpar.config import ModelConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.declared import feed_forward_classes, hidden_names
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.tiles import UNROLLED
from jaxpar.layout.memory.estimate import chunk_bytes
from jaxpar.mesh.axes import vary
from tests.gpu_compile import in_child
from tests.reference import decoder64
from tests.small_run import SmallRun, small
from tests.traced import mesh_of, operations, sent_bytes
from tests.traced_bytes import traced_bytes

EMBED, WIDE, ROWS, SEQUENCE = 6, 16, 2, 20
MESHES = {"one device": {}, "tensor 2": {"tensor": 2, "fsdp": 2, "context": 2}, "tensor 4": {"tensor": 4, "fsdp": 2}}
"""A device has 40, 5 or 5 tokens of its own."""
SPLIT = {
    "gate": P(None, "tensor"), "up": P(None, "tensor"), "down": P("tensor", None),
    "gate_bias": P("tensor"), "up_bias": P("tensor"), "down_bias": P(),
}  # fmt: skip


def model_of(activation: str, *, biased: bool = False) -> ModelConfig:
    return ModelConfig(embed=EMBED, mlp=WIDE, activation=activation, mlp_bias=biased)  # pyright: ignore


def numbers(model: ModelConfig) -> tuple[Any, np.ndarray, np.ndarray]:
    """Weights, input and the gradient of the output."""
    draw = np.random.default_rng(2)
    shapes = {"up": (EMBED, WIDE), "down": (WIDE, EMBED)}
    if model.activation == "swiglu":
        shapes["gate"] = (EMBED, WIDE)
    if model.mlp_bias:
        shapes |= {f"{name}_bias": shape[1:] for name, shape in shapes.items()}
    normal = lambda shape: draw.standard_normal(shape).astype(np.float32)
    weights = {name: 0.4 * normal(shape) for name, shape in shapes.items()}
    return weights, normal((ROWS, SEQUENCE, EMBED)), normal((ROWS, SEQUENCE, EMBED))


def in_tiles(model: ModelConfig, mesh: str, tiles: int, *, train: bool = True) -> tuple[Mesh, Any]:
    """(mesh, function): (weights, x, dy) -> y, with `train` also the gradients of weights and x."""
    layout = {name: SPLIT[name] for name in numbers(model)[0]}

    def program(weights: Any, x: jax.Array, dy: jax.Array) -> Any:
        def function(weights: Any, x: jax.Array) -> jax.Array:
            (feed_forward,) = feed_forward_classes(model)
            mlp: Any = with_weights(feed_forward(model, tiles=tiles), vary(weights))
            y, _ = mlp(vary(x), None, Ops())
            return y

        if not train:
            return alike(function(weights, x))
        y, pullback = jax.vjp(function, weights, x)
        return alike(y), *pullback(vary(dy))

    parts = P("fsdp", ("context", "tensor"))
    results = (parts, layout, parts) if train else parts
    on = mesh_of(**MESHES[mesh])
    return on, jax.shard_map(program, mesh=on, in_specs=(layout, parts, parts), out_specs=results)


def alike(x: jax.Array) -> jax.Array:
    """`x` of a rank, as the type of something that these axes, all of size 1, do not split."""
    return jax.lax.pmax(x, ("pipe", "replica", "expert"))


def whole(model: ModelConfig) -> tuple[Any, ...]:
    """The same in float64, by autodiff of the definition."""
    options = {"activation": model.activation, "mlp_bias": model.mlp_bias, "activation_sparsity": 0.0}
    with jax.enable_x64(True):
        weights, x, dy = jax.tree.map(lambda a: np.asarray(a, np.float64), numbers(model))
        y, pullback = jax.vjp(lambda weights, x: decoder64.feed_forward(x, weights, options), weights, x)
        return jax.tree.map(np.asarray, (y, *pullback(jax.numpy.asarray(dy))))


@pytest.mark.parametrize(
    ("mesh", "tiles", "activation", "biased"),
    [
        ("one device", 1, "swiglu", True),
        ("one device", 8, "relu2", False),
        ("one device", 7, "swiglu", True),  # tiles of six tokens, the last of four
        ("tensor 2", 2, "gelu", True),  # of three tokens, the last of two
        ("tensor 4", 5, "swiglu", False),
        ("tensor 4", 3, "gelu", True),
    ],
)
def test_output_and_gradients_equal_the_whole_in_float64(mesh: str, tiles: int, activation: str, biased: bool):
    model = model_of(activation, biased=biased)
    found = jax.jit(in_tiles(model, mesh, tiles)[1])(*numbers(model))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole(model)), strict=True):
        assert np.abs(a - b).max() <= 3e-6 * np.abs(b).max()


def traced(tiles: int, *, train: bool = True) -> list[tuple[Any, int]]:
    model = model_of("swiglu", biased=True)
    return operations(in_tiles(model, "one device", tiles, train=train)[1], *numbers(model))


def test_hidden_activations_of_one_tile_are_all_there_are_and_down_does_not_run_again():
    """Three matmuls a tile forward; backward up and gate again, and two each for three weights."""
    for train, matmuls in {True: 3 + 2 + 6, False: 3}.items():
        found = traced(10, train=train)
        assert sum(times for each, times in found if each.primitive.name == "dot_general") == 10 * matmuls
    made = lambda tiles: [v.aval for each, _ in traced(tiles) for v in each.outvars]
    weights = {(EMBED, WIDE), (WIDE, EMBED)}
    widest = lambda tiles: max(a.size for a in made(tiles) if WIDE in a.shape and a.shape not in weights)
    tokens = ROWS * SEQUENCE
    assert widest(1) == tokens * WIDE
    assert widest(10) == tokens * WIDE // 10


def test_tiles_send_what_the_whole_sends():
    """Forward a gather and a sum; backward the gather again, its dual and that of the sum."""
    model = model_of("swiglu")
    x = 4 * ROWS // 2 * SEQUENCE // 4 * EMBED
    sent = sent_bytes(*in_tiles(model, "tensor 4", 5), *numbers(model))
    assert sent["all_gather"] == 3 * 3 * x and sent["reduce_scatter"] == 2 * 3 * x


def run_of(**memory: Any) -> SmallRun:
    return SmallRun(small(parallel={"tensor": 2, "fsdp": 2}, memory=memory))


def test_the_plan_states_that_hidden_activations_are_recomputed_and_nothing_as_wide_is_kept():
    """Under the preset that keeps everything else."""
    tiles, without = run_of(remat="none", mlp_tiles=4), run_of(remat="none")
    kept = without.step.layout.plan.runs[0].activations
    assert set(kept.values()) == {"save"}
    assert tiles.step.layout.plan.runs[0].activations == {
        name: "recompute" if name in hidden_names() else treatment for name, treatment in kept.items()
    }
    model, config = without.config.model, without.config
    tokens = config.data.batch_size // 2 * config.data.sequence_length
    hidden = model.layers * len(hidden_names()) * tokens * model.mlp // 2 * 4
    kept, more = (traced_bytes(run.config, run.step.layout.plan).stash for run in (tiles, without))
    assert kept <= more - hidden
    assert kept == chunk_bytes(tiles.config, tiles.step.layout.plan).stash


def test_a_dense_layer_beside_experts_is_in_tiles_and_they_are_not():
    """What is kept is less by the dense layer's hidden activations alone, as the plan and the estimate have it."""
    kinds = {"kinds": {"dense": {"experts": None}, "routed": {}}, "pattern": Pattern(("routed",), prefix=("dense",))}
    model = {"layers": 3, "experts": ExpertsConfig(4, 2, 16)} | kinds
    make = lambda tiles: SmallRun(small(model=model, parallel={"expert": 2}, memory={"remat": "none"} | tiles))
    tiled, whole = make({"mlp_tiles": 4}), make({})
    plan = tiled.step.layout.plan
    assert (plan.mlp_tiles.name, whole.step.layout.plan.mlp_tiles.name) == (4, 1)
    kept, more = (traced_bytes(run.config, run.step.layout.plan).stash for run in (tiled, whole))
    assert kept == chunk_bytes(tiled.config, plan).stash
    config = tiled.config
    tokens = config.data.batch_size // 2 * config.data.sequence_length
    assert more - kept == len(hidden_names() & set(plan.runs[0].activations)) * tokens * config.model.mlp * 4


@pytest.mark.long
def test_a_layer_of_32k_tokens_takes_less_memory_in_tiles():
    """Llama-3-8B's shapes on an H100: up, gate and hidden are 2.6 GiB, as are their gradients."""
    tiles, without = in_child("tests.model.gpu_tiles:measure", ["layer", 8, 1], ["layer", 1, 1])
    assert without - tiles > 4 * 2**30


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("tiles", "loops"), [(UNROLLED, False), (UNROLLED + 1, True)])
def test_few_tiles_are_no_loop_forward_and_backward(tiles: int, loops: bool, train: bool):
    """XLA hides no message beside a loop, of which it does not know how long it takes."""
    model = model_of("swiglu")
    program = jax.jit(in_tiles(model, "one device", tiles, train=train)[1]).lower(*numbers(model)).as_text()
    assert ("stablehlo.while" in program) == loops
