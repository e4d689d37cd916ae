"""Messages of a layer that XLA joins into one: fewer messages start less often, more of them hide behind compute.

XLA joins gathers (and reduce-scatters) that do not depend on each other up to a number of bytes that is the same for
all programs. On many ranks all gradients of a layer are below it. Joined, they leave when the last of them is known,
and nothing of the layer is left to run beside them. Here the limit is the layer's largest matrix: matrices of the
feed-forward travel one by one, and those of attention, which together are about as large, in one message.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import ParamSpec, map_specs
from jaxpar.mesh.placements import Placement, added_dim, local_shape

GATHERS = "xla_gpu_all_gather_combine_threshold_bytes"
SCATTERS = "xla_gpu_reduce_scatter_combine_threshold_bytes"


def with_joined_messages(config: Config, plan: Plan) -> Plan:
    """`plan` with the limits for the messages of its layers; what XLA does by default where they send none."""
    if plan.zero < 2 or plan.axes.shards == 1:
        return plan
    layout = StepLayout(config, plan)
    compute, storage, gradient = layout.placements.compute, layout.placements.storage, layout.placements.gradient
    gathered = _largest(layout, compute, compute, storage)
    scattered = _largest(layout, gradient, compute, gradient)
    return replace(plan, joined_gathers=gathered, joined_scatters=scattered)


def _largest(layout: StepLayout, result: Placement, outer: Placement, inner: Placement) -> int | None:
    """Bytes that a device has in `result` of a layer's largest matrix that `inner` splits further than `outer`; None
    where it splits none."""
    item = jnp.dtype(result.dtype).itemsize

    def size(spec: ParamSpec, where: PartitionSpec, outer: PartitionSpec, inner: PartitionSpec) -> int:
        if added_dim(outer, inner) is None:
            return 0
        return item * prod(local_shape(spec.shape, where, layout.plan.axes)[1:])

    layouts = (role.layout[LAYERS] for role in (result, outer, inner))
    return max(jax.tree.leaves(map_specs(size, layout.specs[LAYERS], *layouts)), default=0) or None
