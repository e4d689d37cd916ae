"""The layer loop equals a plain Python loop, gathers each layer once a direction, and reruns only what it must."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.config.kinds import ALL
from jaxpar.config.plan import AxisSizes, Dtypes
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.layer_order import Chunk, LayerOrder
from jaxpar.mesh.materialize import to_optimizer, to_storage, zero_accumulators
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import Placements, place
from jaxpar.mesh.rules import compute_rules
from jaxpar.model.loop.layer_loop import LayerLoop
from jaxpar.model.loop.layer_program import LayerProgram
from jaxpar.model.loop.layer_stack import Keep, LayerStack
from jaxpar.runtime.passes import Accumulator, Cotangents, Output, Saved
from jaxpar.runtime.taps import Tap
from jaxpar.stores.sharded import Sharded
from tests.gpu_compile import in_child
from tests.traced import mesh_of, operations

SIZES = AxisSizes(replica=2, fsdp=4)
MESH = mesh_of(**dict(SIZES))
DTYPES = Dtypes(compute="float32", storage="float32", master="float32", gradient="float32", moments="float32")
EMBED, MLP, SEQUENCE = 8, 12, 4
ROWS = PartitionSpec(("replica", "fsdp"))
POLICIES = {
    "keep_all": None,
    "keep_none": jax.checkpoint_policies.save_only_these_names(),
    "keep_up": jax.checkpoint_policies.save_only_these_names("mlp_up"),
}


def layer(w: Any, x: jax.Array, index: Any, tokens: Tokens, *_: Any) -> Output:
    """A small residual layer that depends on its weights, its number and its tokens."""
    up = checkpoint_name((x * w["scale"]) @ w["up"], "mlp_up")
    share = (1 + index) / (2 + tokens.indices[..., None])
    return x + share * (jnp.tanh(up) @ w["down"]), {}


def specs(layers: int) -> Any:
    shapes = {
        "up": ParamSpec((EMBED, MLP), ("embed", "mlp")),
        "down": ParamSpec((MLP, EMBED), ("mlp", "embed")),
        "scale": ParamSpec((EMBED,), ("norm",)),
    }
    return {"layers": {ALL: {name: spec.stacked(layers) for name, spec in shapes.items()}}}


def numbers(layers: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Weights, input and the cotangent of the output."""
    draw = np.random.default_rng(layers)
    normal = lambda shape: draw.standard_normal(shape).astype(np.float32)
    weights = {name: 0.3 * normal(spec.shape) for name, spec in specs(layers)["layers"][ALL].items()}
    return {"layers": {ALL: weights}}, normal((8, SEQUENCE, EMBED)), normal((8, SEQUENCE, EMBED))


class Tokens(NamedTuple):
    """What the toy layers read of their tokens."""

    indices: jax.Array


def tokens_of(rows: int) -> Tokens:
    return Tokens(jnp.broadcast_to(jnp.arange(SEQUENCE, dtype=jnp.int32), (rows, SEQUENCE)))


def alike(x: jax.Array) -> jax.Array:
    """`x` of a rank, as the type of something that these axes, all of size 1, do not split."""
    return jax.lax.pmax(x, ("pipe", "expert", "context", "tensor"))


def sharded(placements: Placements, *keeps: Keep) -> Any:
    """(master, x, dy) -> (y, y of a forward without derivative, dx, gradients), on the mesh."""
    layout = placements.optimizer.layout

    def program(master: Any, x: jax.Array, dy: jax.Array) -> Any:
        weights = to_storage(master, placements)["layers"]
        loop, tokens = loop_of(placements, *keeps), {ALL: vary(tokens_of(1))}
        saved, side = Saved(loop.stash(weights, vary(x), tokens, 1), 0), loop.side(weights, vary(x), tokens, 0)
        chunk = Chunk(weights, 0, 0)
        y, stash, side = loop.forward(chunk, vary(x), tokens, saved, side)
        into = Accumulator(Chunk(zero_accumulators(weights, placements, part="layers"), 0, 0))
        dx, gradients, _ = loop.backward(chunk, Cotangents(vary(dy)), tokens, Saved(stash, 0), into, side)
        alone = loop.run(chunk, vary(x), tokens)
        return alike(y), alike(alone), alike(dx), to_optimizer({"layers": gradients}, placements)

    return jax.shard_map(program, mesh=MESH, in_specs=(layout, ROWS, ROWS), out_specs=(ROWS, ROWS, ROWS, layout))


def loop_of(placements: Placements, *keeps: Keep) -> LayerLoop:
    layers = sum(keep.layers for keep in keeps)
    return loop_over(LayerProgram(layer), placements, LayerOrder.from_chunks([0], [layers]), *keeps)


def loop_over(program: LayerProgram, placements: Placements, order: LayerOrder, *keeps: Keep) -> LayerLoop:
    return LayerLoop({ALL: LayerStack(ALL, {None: program}, keeps, order.stacks[ALL], Sharded(ALL, placements))}, order)


def placements_of(layers: int, zero: int) -> Placements:
    return place(specs(layers), SIZES, zero, DTYPES, compute_rules())


def python_loop(layers: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Output, gradient of the input and of the weights in float64, one device, a plain loop."""
    with jax.enable_x64(True):
        weights, x, dy = jax.tree.map(lambda a: np.asarray(a, np.float64), numbers(layers))

        def function(weights: Any, x: jax.Array) -> jax.Array:
            for index in range(layers):
                w = {name: stack[index] for name, stack in weights["layers"][ALL].items()}
                x, _ = layer(w, x, index, tokens_of(8))
            return x

        y, pullback = jax.vjp(function, weights, x)
        gradients, dx = pullback(jnp.asarray(dy))
        return jax.tree.map(np.asarray, (y, dx, gradients))


def close(found: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= 3e-6 * np.abs(b).max()


@pytest.mark.parametrize(
    ("layers", "zero", "policy"),
    [
        (3, 3, "keep_all"),  # gathers, so it prefetches
        (3, 3, "keep_none"),
        (3, 3, "keep_up"),
        (1, 3, "keep_all"),
        (1, 3, "keep_none"),
        (2, 2, "keep_up"),
        (3, 0, "keep_all"),  # nothing to gather, nothing to prefetch
        (3, 0, "keep_none"),
    ],
)
def test_the_loop_equals_a_plain_one(layers: int, zero: int, policy: str):
    assert loop_of(placements_of(layers, zero), Keep(layers)).stacks[ALL].store.ahead == (zero == 3)
    equals_a_plain_loop(zero, Keep(layers, POLICIES[policy]))


@pytest.mark.matrix(quick=1, ci=1)
@pytest.mark.parametrize("zero", [0, 3])
def test_layers_that_keep_different_things_are_a_loop_each(zero: int):
    """One layer, two, one and two again; inputs of some in host memory, so that they are fetched ahead."""
    all_of, none_of, up = POLICIES["keep_all"], POLICIES["keep_none"], POLICIES["keep_up"]
    equals_a_plain_loop(zero, Keep(1, none_of), Keep(2, up, True), Keep(1, all_of), Keep(2, none_of, True))


def equals_a_plain_loop(zero: int, *keeps: Keep) -> None:
    layers = sum(keep.layers for keep in keeps)
    placements = placements_of(layers, zero)
    put = lambda a, layout: jax.device_put(a, NamedSharding(MESH, layout))
    master, x, dy = numbers(layers)
    arguments = jax.tree.map(put, master, placements.optimizer.layout), put(x, ROWS), put(dy, ROWS)
    y, forward, dx, gradients = jax.jit(sharded(placements, *keeps))(*arguments)
    np.testing.assert_array_equal(forward, y)
    close((y, dx, gradients), python_loop(layers))


@pytest.mark.parametrize("zero", [0, 3])
def test_chunks_of_unlike_length_in_slots_of_their_own_equal_a_plain_loop(zero: int):
    """Three layers as chunks of two and one. What lies in the row that pads the second counts nowhere."""
    order = LayerOrder.from_chunks((0, 0), (2, 1))
    rows, layers = order.stacks[ALL].rows, order.stacks[ALL].row_of_layer
    placements = placements_of(rows, zero)
    small, x, dy = numbers(3)
    master = jax.tree.map(lambda a: np.full((rows, *a.shape[1:]), np.nan, a.dtype), small)
    for stack, a in zip(jax.tree.leaves(master), jax.tree.leaves(small), strict=True):
        stack[layers] = a

    def program(master: Any, x: jax.Array, dy: jax.Array) -> Any:
        weights, tokens = to_storage(master, placements)["layers"], {ALL: vary(tokens_of(1))}
        loop = loop_over(LayerProgram(layer), placements, order, Keep(order.layers_per_chunk))
        gradients = zero_accumulators(weights, placements, part="layers")
        first, second = Chunk(weights, 0, 0), Chunk(weights, 1, 1)
        stash, side = loop.stash(weights, vary(x), tokens, 3), loop.side(weights, vary(x), tokens, 0)
        h, stash, side = loop.forward(first, vary(x), tokens, Saved(stash, 2), side)
        y, stash, side = loop.forward(second, h, tokens, Saved(stash, 0), side)
        into = lambda chunk, valid: Accumulator(Chunk(gradients, chunk, chunk), jnp.bool(valid))
        seed = Cotangents(vary(dy))
        _, gradients, _ = loop.backward(second, seed, tokens, Saved(stash, 2), into(1, False), side)
        dh, gradients, _ = loop.backward(second, seed, tokens, Saved(stash, 0), into(1, True), side)
        dx, gradients, _ = loop.backward(first, Cotangents(dh), tokens, Saved(stash, 2), into(0, True), side)
        return alike(y), alike(dx), to_optimizer({"layers": gradients}, placements)

    layout = placements.optimizer.layout
    mapped = jax.shard_map(program, mesh=MESH, in_specs=(layout, ROWS, ROWS), out_specs=(ROWS, ROWS, layout))
    put = lambda a, layout: jax.device_put(a, NamedSharding(MESH, layout))
    y, dx, gradients = jax.jit(mapped)(jax.tree.map(put, master, layout), put(x, ROWS), put(dy, ROWS))
    close((y, dx, jax.tree.map(lambda a: a[layers], gradients)), python_loop(3))
    (padding,) = set(range(rows)) - set(layers.tolist())
    assert not any(np.asarray(a)[padding].any() for a in jax.tree.leaves(gradients))


@pytest.mark.parametrize("layers", [1, 4])
def test_each_layer_is_gathered_once_forward_and_once_backward(layers: int):
    """Also with a layer gathered ahead: the last one gathers nothing in vain."""
    counts = counted(placements_of(layers, 3), POLICIES["keep_all"], layers)
    matrices, walks = 2, 3  # forward, backward, and the forward without derivative
    assert counts["all_gather"] == matrices * layers * walks
    assert counts["reduce_scatter"] == matrices * layers
    assert counted(placements_of(layers, 0), POLICIES["keep_all"], layers)["all_gather"] == 0


def test_the_remat_policy_decides_which_matmuls_run_again():
    """Forward 2 matmuls a layer, backward 4; `up` runs again if it is not kept, `down` never: no gradient needs it."""
    counts = {name: counted(placements_of(3, 3), policy, 3)["dot_general"] for name, policy in POLICIES.items()}
    plain = 3 * (2 + 2 + 4)
    assert counts == {"keep_all": plain, "keep_up": plain, "keep_none": plain + 3}


def counted(placements: Placements, policy: Any, layers: int) -> Counter[str]:
    """How often each operation runs."""
    counts: Counter[str] = Counter()
    for equation, times in operations(sharded(placements, Keep(layers, policy)), *numbers(layers)):
        counts[equation.primitive.name] += times
    return counts


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """The whole training step of 24 layers as XLA's GPU compiler makes it for eight H100s."""
    return in_child("tests.model.gpu_layers:measure", "none", "gemm_last", "plain_scan")


def layers_held(facts: dict[str, Any]) -> float:
    """Temporary memory besides the shards of weights and gradients, in gathered layers."""
    return (facts["temporaries"] - facts["shards"]) / facts["gathered"]


FEW = 8
"""Gathered layers: two of weights (one ahead), a float32 gradient that counts as two, and the activations."""


@pytest.mark.long
@pytest.mark.parametrize("remat", ["none", "gemm_last"])
def test_no_gathered_layer_is_kept_for_the_backward(remat: str, compiled: dict[str, Any]):
    assert layers_held(compiled[remat]) < FEW


@pytest.mark.long
def test_autodiff_of_a_plain_scan_would_keep_every_gathered_layer(compiled: dict[str, Any]):
    """So the bound above can fail."""
    assert layers_held(compiled["plain_scan"]) > 24


@pytest.mark.long
def test_no_matmul_of_a_layer_waits_for_a_gather_of_its_own_iteration(compiled: dict[str, Any]):
    """Forward and backward: the gather is for the next iteration, and matmuls are issued before its end."""
    loops = compiled["gemm_last"]["loops"]
    assert len(loops) == 2
    for loop in loops:
        assert loop["gathers"] >= 1 and loop["matmuls"] >= 6
        assert loop["waiting"] == 0
        assert loop["hidden"] >= 1
    (plain,) = compiled["plain_scan"]["loops"]
    assert plain["waiting"] == plain["matmuls"], "without a gather ahead every matmul waits"


@pytest.mark.long
def test_no_gathered_layer_is_kept_under_full_recomputation():
    assert layers_held(in_child("tests.model.gpu_layers:measure", "full")["full"]) < FEW


PADDED = LayerOrder.from_chunks((0, 1), (1, 3))
"""A rank with one layer, and one with three."""


@dataclass(frozen=True)
class Rows:
    """A layer of two groups of matmuls, that states on which rank it runs forward, backward and for its weights."""

    ran: Counter[tuple[str, int]]
    permutes: bool = False

    def linear(self, w: Any, name: str, x: jax.Array, *_: Any) -> jax.Array:
        """The loop's own way to a group, for gradients of matrices."""
        if name == "down":
            self._say("matrices")
        return x @ w[name]

    def apply(self, w: Any, x: jax.Array, index: Any, tokens: Tokens, tap: Tap, zeros: None, recorded: None) -> Output:
        @jax.custom_vjp
        def recorded(x: jax.Array) -> jax.Array:
            self._say("run")
            return x

        def backward(_: None, dx: jax.Array) -> tuple[jax.Array]:
            self._say("backward")
            return (dx,)

        def forward(x: jax.Array) -> tuple[jax.Array, None]:
            self._say("forward")
            return x, None

        recorded.defvjp(forward, backward)
        group = lambda name, x: x @ w[name]
        x = recorded(jax.lax.ppermute(x, "context", [(0, 0)]) if self.permutes else x)
        call = tap or (lambda name, group, x: group(name, x))
        return x + call("down", group, jnp.tanh(call("up", group, x * w["scale"]))), {}

    def _say(self, what: str) -> None:
        jax.debug.callback(lambda rank: self.ran.update([(what, int(rank))]), jax.lax.axis_index("pipe"))


def walks(rows: Rows, keep: Keep) -> tuple[Any, Any]:
    """(A chunk's forward without derivative, forward, split backward and gradients of matrices, on the mesh; the
    arguments of that)."""
    sizes = AxisSizes(pipe=2)
    placements = place(specs(PADDED.stacks[ALL].rows), sizes, 0, DTYPES, compute_rules())

    def program(master: Any, x: jax.Array) -> Any:
        matrices = {"up": True, "down": True, "scale": False}
        loop = loop_over(LayerProgram(rows.apply, rows.linear, matrices), placements, PADDED, keep)
        weights, tokens, x = to_storage(master, placements)["layers"], {ALL: vary(tokens_of(8))}, vary(x)
        chunk = Chunk(weights, 0, 0)
        stash, side = loop.stash(weights, x, tokens, 1), loop.side(weights, x, tokens, 1)
        alone = loop.run(chunk, x, tokens)
        y, stash, side = loop.forward(chunk, x, tokens, Saved(stash, 0), side)
        into = Accumulator(Chunk(zero_accumulators(weights, placements, part="layers"), 0, 0))
        dx, accumulators, side = loop.backward(chunk, Cotangents(y), tokens, Saved(stash, 0), into, side)
        accumulators = loop.weight_gradients(weights, tokens, Accumulator(Chunk(accumulators, 0, 0)), side)
        return jax.lax.pmax((alone, dx), AXES), to_optimizer({"layers": accumulators}, placements)

    layout, whole = placements.optimizer.layout, PartitionSpec()
    results = (whole, whole), layout
    run = jax.shard_map(program, mesh=mesh_of(**dict(sizes)), in_specs=(layout, whole), out_specs=results)
    weights, x, _ = numbers(PADDED.stacks[ALL].rows)
    return run, (weights, x)


def branching_rows(program: Jaxpr, times: int = 1) -> int:
    """How often a program comes to a branch."""
    found = 0
    for equation in program.eqns:
        found += times * (equation.primitive.name == "cond")
        repeated = times * equation.params.get("length", 1)
        found += sum(branching_rows(inner, repeated) for inner in jaxprs_in_params(equation.params))
    return found


@pytest.mark.parametrize("why", ["", "a layer permutes", "inputs are in host memory"])
def test_rows_that_pad_are_left_out_where_they_can_be(why: str):
    """A permute that some ranks leave out is matched with another one, and host memory would not pass a branch: there
    every row runs. Rows that hold a layer in every chunk do not branch."""
    rows = Rows(Counter(), permutes="permutes" in why)
    run, arguments = walks(rows, Keep(3, offload_inputs="host" in why))
    jax.block_until_ready(jax.jit(run)(*arguments))
    jax.effects_barrier()
    walked = ("run", "forward", "backward", "matrices")
    found = {walk: (rows.ran[walk, 0], rows.ran[walk, 1]) for walk in walked}
    left_out, every = (1, 3), (3, 3)
    assert found == {
        "run": every if rows.permutes else left_out,
        "forward": every if why else left_out,
        "backward": every if rows.permutes else left_out,
        "matrices": left_out,
    }
    branching = 2 * sum(own == left_out for own in found.values())
    assert branching_rows(jax.make_jaxpr(run)(*arguments).jaxpr) == branching
