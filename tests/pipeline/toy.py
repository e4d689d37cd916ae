"""A model of toy layers for the executor: traced and compiled in a second, and differentiated in float64 beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.config.kinds import ALL
from jaxpar.config.plan import AxisSizes, Dtypes
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.materialize import materialize, to_optimizer, to_storage, zero_accumulators
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import Placements, place
from jaxpar.mesh.rules import compute_rules
from jaxpar.model.gathered_chunks import GatheredChunks, fetched_placements
from jaxpar.model.loop.layer_loop import LayerLoop
from jaxpar.model.loop.layer_program import LayerProgram
from jaxpar.model.loop.layer_stack import Keep, LayerStack
from jaxpar.pipeline.execution.executor import execute
from jaxpar.pipeline.execution.inputs import Seeds
from jaxpar.pipeline.execution.make_program import make_program
from jaxpar.pipeline.execution.program import PipelineProgram
from jaxpar.pipeline.schedules import Schedule
from jaxpar.runtime.passes import Output
from jaxpar.runtime.taps import Tap
from jaxpar.stores.sharded import Sharded
from tests.traced import mesh_of

EMBED, WIDTH, SEQUENCE = 4, 6, 2
FLOAT32 = Dtypes(compute="float32", storage="float32", master="float32", gradient="float32", moments="float32")


class Tokens(NamedTuple):
    """What the toy layers read of their tokens."""

    indices: jax.Array


MATRICES = {"up": True, "down": True, "scale": False}


def linear(w: Any, name: str, x: jax.Array, *_: Any) -> jax.Array:
    return x @ w[name]


def layer(w: Any, x: jax.Array, number: Any, tokens: Tokens, tap: Tap | None, zeros: None, recorded: None) -> Output:
    """A residual layer that depends on its weights, its number in the model and its tokens."""
    group = lambda name, x: linear(w, name, x)
    call = tap or (lambda name, group, x: group(name, x))
    up = checkpoint_name(call("up", group, x * w["scale"]), "mlp_up")
    return x + (1 + number) / (2 + tokens.indices[..., None]) * call("down", group, jnp.tanh(up)), {}


def plain_objective(weights: Any, x: Any) -> Any:
    """The whole model on rows [row, seq, embed], layers in order, without any of the machinery."""
    h = x * weights["embedding"]["scale"]
    slots = np.arange(SEQUENCE)[:, None]
    for number in range(len(weights["layers"][ALL]["up"])):
        w = {name: stack[number] for name, stack in weights["layers"][ALL].items()}
        h = h + (1 + number) / (2 + slots) * (jnp.tanh((h * w["scale"]) @ w["up"]) @ w["down"])
    return jnp.sum((h @ weights["head"]["weight"]) ** 2)


def numbers(layers: int) -> Any:
    """Weights, layers in order."""
    draw = np.random.default_rng(layers)
    normal = lambda *shape: (0.3 * draw.standard_normal(shape)).astype(np.float32)
    stacks = {
        "up": normal(layers, EMBED, WIDTH), "down": normal(layers, WIDTH, EMBED), "scale": 1 + normal(layers, EMBED),
    }  # fmt: skip
    return {"layers": {ALL: stacks}, "embedding": {"scale": 1 + normal(EMBED)}, "head": {"weight": 3 * normal(EMBED)}}


def plain(layers: int, x: np.ndarray, seed: float) -> tuple[float, Any]:
    """The objective of all rows, and `seed` times its gradients, in float64."""
    with jax.enable_x64(True):
        weights = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), numbers(layers))
        value, gradients = jax.value_and_grad(plain_objective)(weights, x.reshape(-1, SEQUENCE, EMBED))
        return float(value), jax.tree.map(lambda a: seed * np.asarray(a), gradients)


@dataclass(frozen=True, eq=False)
class ToyStages:
    """The toy layers between a scale for an embedding and a sum of squares for a loss."""

    placements: Placements
    keeps: Mapping[str, tuple[Keep, ...]]
    order: LayerOrder
    split_backward: bool

    def token_context(self, batch: Any) -> dict[str, Tokens]:
        slots = jnp.broadcast_to(jnp.arange(SEQUENCE, dtype=jnp.int32), batch["x"].shape[:-1])
        return {ALL: vary(Tokens(slots))}

    @property
    def vocab_axes(self) -> tuple[str, ...]:
        return ("tensor",)

    def embed(self, weights: Any, batch: Any) -> jax.Array:
        return vary(batch["x"] * weights["embedding"]["scale"])

    def embed_gradients(self, weights: Any, batch: Any, dx: jax.Array, gradients: Any) -> Any:
        del weights
        found = gradients["embedding"]["scale"] + vary(jnp.sum(dx * batch["x"], (0, 1)))
        return gradients | {"embedding": {"scale": found}}

    @cached_property
    def loop(self) -> LayerLoop:
        return self._loop(self.placements)

    @cached_property
    def chunks(self) -> GatheredChunks:
        return GatheredChunks(self.loop, self._loop(fetched_placements(self.placements)), self.placements)

    def _loop(self, placements: Placements) -> LayerLoop:
        matrices = MATRICES if self.split_backward else None
        programs, order = {None: LayerProgram(layer, linear, matrices)}, self.order.stacks[ALL]
        stack = LayerStack(ALL, programs, self.keeps[ALL], order, Sharded(ALL, placements))
        return LayerLoop({ALL: stack}, self.order)

    def loss(self, weights: Any, accumulators: Any, x: jax.Array, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        del batch
        head = materialize(weights["head"], accumulators["head"], self.placements, part="head")
        total = reduce_sum(jnp.sum((x @ head["weight"]) ** 2), ("tensor",))  # of size 1
        return total, {"loss": total}

    @property
    def loss_reports(self) -> tuple[str, ...]:
        return ("loss",)


class ToyRun:
    """The executor on the toy model, for a schedule on `pipe` x `fsdp` devices."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        layers: tuple[int, ...] | None = None,
        fsdp: int = 1,
        zero: int = 0,
        policy: Any = None,
        **program: bool,
    ):
        self.program: PipelineProgram = make_program(schedule, **program)
        counts = layers or (1,) * schedule.chunks
        self.layers, self.seed = sum(counts), 0.5
        self.order = LayerOrder.from_chunks(schedule.rank_of, counts)
        self.stack = self.order.stacks[ALL]
        self.mesh, sizes = mesh_of(pipe=schedule.ranks, fsdp=fsdp), AxisSizes(pipe=schedule.ranks, fsdp=fsdp)
        stacked = {
            "up": ParamSpec((EMBED, WIDTH), ("embed", "mlp")),
            "down": ParamSpec((WIDTH, EMBED), ("mlp", "embed")),
            "scale": ParamSpec((EMBED,), ("norm",)),
        }
        vector = ParamSpec((EMBED,), ("norm",))
        specs = {
            "layers": {ALL: {name: spec.stacked(self.stack.rows) for name, spec in stacked.items()}},
            "embedding": {"scale": vector},
            "head": {"weight": vector},
        }
        self.placements = place(specs, sizes, zero, FLOAT32, compute_rules())
        keeps = {ALL: (Keep(self.order.layers_per_chunk, policy),)}
        self.stages = ToyStages(self.placements, keeps, self.order, schedule.splits_backward)
        draw = np.random.default_rng(schedule.microbatches)
        self.x = draw.standard_normal((schedule.microbatches, 2 * fsdp, SEQUENCE, EMBED)).astype(np.float32)

    @cached_property
    def function(self) -> Any:
        """(master weights, rows [microbatch, row, ...]) -> (reported, gradients in optimizer placement)."""
        layout = self.placements.optimizer.layout

        def function(master: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            weights = to_storage(master, self.placements)
            accumulators = {part: zero_accumulators(w, self.placements, part=part) for part, w in weights.items()}
            seeds = Seeds(jnp.float32(self.seed), {})
            gradients, reported, *_ = execute(self.program, self.stages, weights, accumulators, {"x": x}, seeds)
            total = reduce_sum(reported["loss"], [axis for axis in AXES if axis != "tensor"])
            return total, to_optimizer(gradients, self.placements)

        rows = PartitionSpec(None, "fsdp")
        return jax.shard_map(function, mesh=self.mesh, in_specs=(layout, rows), out_specs=(PartitionSpec(), layout))

    @cached_property
    def arguments(self) -> tuple[Any, jax.Array]:
        """Weights in the order of the stack, with nonsense in rows that pad it; and rows."""
        weights = numbers(self.layers)
        for name, stack in weights["layers"][ALL].items():
            weights["layers"][ALL][name] = np.full((self.stack.rows, *stack.shape[1:]), np.nan, np.float32)
            weights["layers"][ALL][name][self.stack.row_of_layer] = stack
        put = lambda a, layout: jax.device_put(a, NamedSharding(self.mesh, layout))
        return jax.tree.map(put, weights, self.placements.optimizer.layout), put(self.x, PartitionSpec(None, "fsdp"))

    def __call__(self) -> tuple[float, Any]:
        """(reported, gradients), layers in order."""
        reported, gradients = jax.device_get(jax.jit(self.function)(*self.arguments))
        gradients["layers"][ALL] = {
            name: stack[self.stack.row_of_layer] for name, stack in gradients["layers"][ALL].items()
        }
        return float(reported), gradients
