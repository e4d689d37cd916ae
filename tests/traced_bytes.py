"""The bytes that a pass through a chunk of layers keeps, as tracing it finds: to hold the closed forms against."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.memory.streaming import is_on_host
from jaxpar.mesh.build import mapped
from jaxpar.mesh.materialize import to_storage
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch


class TracedBytes(NamedTuple):
    """Bytes of one microbatch in one chunk, on one device."""

    stash: int
    """Kept from its forward to its backward in the device's memory."""
    kept: int
    """Kept from a split backward to the weights' gradients."""
    sent: int
    """Handed to the next chunk; the gradient that comes back is as large."""
    offloaded: int
    """Kept from its forward to its backward in the host's memory."""


def with_attention(plan: Plan, backend: str) -> Plan:
    """The plan with another attention backend in all layers."""
    changed = lambda choice: replace(choice, name=backend)
    own = {kind: changed(choice) for kind, choice in plan.attention.items()}
    return replace(plan, attention=own)


def traced_bytes(config: Config, plan: Plan) -> TracedBytes:
    """The bytes that the chunks of a plan keep and send."""
    found: dict[str, int] = {}
    # What the backends keep is the same, and this one can be traced anywhere.
    layout = StepLayout(config, with_attention(plan, "xla"))

    def measure(batch: Batch, master: Weights) -> jax.Array:
        stages = stages_of(layout, train=True)
        weights = to_storage(master, layout.placements)
        data = jax.tree.map(lambda a: a[0], batch)
        x, tokens = stages.embed(weights, data), stages.token_context(data)
        stash = jax.tree.leaves(stages.loop.stash(weights["layers"], x, tokens, 1))
        found["stash"] = _size([leaf for leaf in stash if not is_on_host(leaf)])
        found["offloaded"] = _size([leaf for leaf in stash if is_on_host(leaf)])
        split = layout.schedule.splits_backward
        found["kept"] = _size(stages.loop.side(weights["layers"], x, tokens, int(split)).taps)
        found["sent"] = _size(x)
        return jnp.zeros(())

    function = mapped(
        measure, layout.mesh, plan.dtypes.compute, (layout.batch.partitions, layout.master), PartitionSpec()
    )
    # On the device, wherever they rest: what is measured does not depend on it.
    put = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    master = jax.tree.map(put, layout.abstract_state().master, shardings(layout.mesh, layout.master))
    jax.eval_shape(function, layout.abstract_batch(), master)
    return TracedBytes(**found)


def _size(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
