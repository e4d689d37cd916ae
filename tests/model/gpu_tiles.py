"""Parts of a decoder of Llama-3-8B's shapes, compiled for H100s with and without tiles: what memory they take."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpar.config import load_config
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.axes import DATA_AXES, vary, varying_axes
from jaxpar.mesh.build import build_mesh, mapped
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.layer_order import Chunk
from jaxpar.mesh.materialize import zero_accumulators
from jaxpar.mesh.parameters import map_specs
from jaxpar.mesh.placements import unreduced_axes
from jaxpar.runtime.passes import Accumulator, Cotangents, Saved
from jaxpar.training.step.train_step import TrainStep
from tests.gpu_compile import compile_for_gpu, h100s

TOKENS = 32768
"""One row of them."""


def measure(*cases: list[Any]) -> list[int]:
    """Bytes of temporaries on a device of each [part ("head" or "layer"), its tiles, tensor ranks, more options]."""
    return [temporaries(*case) for case in cases]


def temporaries(part: str, tiles: int, tensor: int, *more: str) -> int:
    """What a part's forward and backward take besides what goes in and what comes out: gradients, and the input's."""
    key = {"head": "memory.loss_tiles", "layer": "memory.mlp_tiles"}[part]
    options = [
        "model.preset=llama3-8b", "model.layers=1", f"parallel.tensor={tensor}", "parallel.zero=0", f"{key}={tiles}",
        f"data.sequence_length={TOKENS}", "data.batch_size=1", "memory.remat=full", "attention.backend=xla",
    ]  # fmt: skip
    devices = h100s(f"1x1x{tensor}")
    config = resolve_config(load_config(None, [*options, *more]), tensor)
    plan = make_plan(config, devices[0])
    step = TrainStep(StepLayout(config, plan), build_mesh(plan.axes, devices))
    compiled = compile_for_gpu(jax.jit(gradients(step, {"head": head, "layer": layer}[part])), *arguments(step))
    return compiled.memory_analysis().temp_size_in_bytes


ACTIVATIONS = PartitionSpec(("pipe", *DATA_AXES), ("context", "tensor"))


def arguments(step: TrainStep) -> tuple[Any, Any, Any, Any]:
    """Shapes of weights in storage placement, of an input, of a batch, and of a number."""
    layout, model = shardings(step.mesh, step.layout.placements.storage.layout), step.layout.config.model
    shape = lambda shape, dtype, sharding: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    weights = map_specs(lambda spec, sharding: shape(spec.shape, jnp.bfloat16, sharding), step.layout.specs, layout)
    x = shape((1, TOKENS, model.embed), jnp.bfloat16, shardings(step.mesh, ACTIVATIONS))
    return (
        weights,
        x,
        step.layout.abstract_batch(step.mesh),
        shape((), jnp.float32, shardings(step.mesh, PartitionSpec())),
    )


def gradients(step: TrainStep, part: Any) -> Any:
    """(weights, input, batch, number) -> (gradients of the weights of `part`, gradient of its input).

    Of no others: XLA would use the memory of results that are zeros for temporaries.
    """
    table = "embedding" if step.layout.config.model.tied else "head"
    parts = {head: ("final_norm", table), layer: ("layers",)}[part]
    layout = {name: step.layout.placements.compute.layout[name] for name in parts}

    def program(weights: Any, x: jax.Array, batch: Any, number: jax.Array) -> Any:
        data = jax.tree.map(lambda a: a[0], batch)
        accumulators = {name: zero_accumulators(weights[name], step.layout.placements, part=name) for name in parts}
        found, dx = part(stages_of(step.layout, train=True), weights, accumulators, vary(x), data, number)
        return jax.tree.map(lambda g, where: reduce_sum(g, unreduced_axes(where)), found, layout), dx

    layouts = step.layout.placements.storage.layout, ACTIVATIONS, step.layout.batch.partitions, PartitionSpec()
    return mapped(program, step.mesh, step.layout.plan.dtypes.compute, layouts, (layout, ACTIVATIONS))


def head(
    stages: Any, weights: Any, accumulators: Any, x: jax.Array, batch: Any, number: jax.Array
) -> tuple[Any, jax.Array]:
    """Of `number` times the loss."""
    objective = lambda accumulators, x: stages.loss(weights, accumulators, x, batch)
    value, pullback, _ = jax.vjp(objective, accumulators, x, has_aux=True)
    return pullback(vary(number, varying_axes(value)))


def layer(
    stages: Any, weights: Any, accumulators: Any, x: jax.Array, batch: Any, number: jax.Array
) -> tuple[Any, jax.Array]:
    """Of `number` times the sum of the squares of the layers' output, halved."""
    loop, tokens, chunk = stages.loop, stages.token_context(batch), Chunk(weights["layers"], 0, 0)
    saved, side = Saved(loop.stash(chunk.stack, x, tokens, 1), 0), loop.side(chunk.stack, x, tokens, 0)
    y, stash, side = loop.forward(chunk, x, tokens, saved, side)
    dy = (number * y).astype(y.dtype)
    into = Accumulator(Chunk(accumulators["layers"], 0, 0))
    dx, found, _ = loop.backward(chunk, Cotangents(dy), tokens, Saved(stash, 0), into, side)
    return {"layers": found}, dx
