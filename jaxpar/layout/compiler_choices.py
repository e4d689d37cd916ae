"""XLA options that a plan chooses: which messages and matmuls of a layer are joined, and memory XLA counts with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpar.config import Config
from jaxpar.config.bounds import PERCENT
from jaxpar.config.plan import Plan
from jaxpar.distributed.devices import Device
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.layout.memory.estimate import estimate_memory, offloaded_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import ParamSpec, map_specs
from jaxpar.mesh.placements import Placement, added_dim, local_shape


def with_joined_messages(config: Config, plan: Plan) -> Plan:
    """`plan` with the limits up to which XLA joins its layers' messages; XLA's own limits where layers send none.

    XLA joins gathers (and reduce-scatters) that do not depend on each other up to a number of bytes that is the same
    for all programs. On many ranks all gradients of a layer are below it. Joined, they leave when the last of them is
    known, and nothing of the layer is left to run beside them. Here the limit is the layer's largest matrix: matrices
    of the feed-forward travel one by one, and those of attention, which together are about as large, in one message.
    """
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


TILE = 128, 256
"""Rows and columns of a result that a multiprocessor makes at a time: cuBLAS's largest tile for bfloat16 on Hopper."""
FILLED = 0.9
"""The share of the multiprocessors that work, on average over the waves of a product, from which it fills a GPU."""


def with_merged_matmuls(config: Config, plan: Plan, device: Device) -> Plan:
    """`plan` with no merging of matmuls, where each product of a layer's matrices fills a device like `device`.

    XLA merges matmuls of a layer that share an operand if operands and result are below a size, as the products of
    queries, keys and values and those of their gradients. One call fills a GPU that small ones leave idle, but its
    operands are joined by copies in every layer. Matrices that fill the GPU by themselves are not worth them.

    With tensor ranks XLA's limit stays: rings part products by barriers.
    """
    processors = hardware_of(device)["processors"]
    if processors is None or plan.axes.tensor > 1:
        return plan
    layout = StepLayout(config, plan)
    tokens = plan.microbatch_rows * config.data.sequence_length // plan.axes.context // plan.mlp_tiles.name

    def filled(spec: ParamSpec, where: PartitionSpec) -> float:
        """Rounding by the worst of a matrix's three products: of rows, of their gradients, and its own gradient."""
        if not spec.matrix:
            return 1.0
        dims = local_shape(spec.shape, where, plan.axes)[spec.stack :]
        inputs, outputs = prod(dims[: spec.inputs]), prod(dims[spec.inputs :])
        return min(_filled(*of, processors) for of in ((tokens, outputs), (tokens, inputs), (inputs, outputs)))

    shares = map_specs(filled, layout.specs[LAYERS], layout.placements.compute.layout[LAYERS])
    return replace(plan, merged_matmuls_mb=0) if min(jax.tree.leaves(shares)) >= FILLED else plan


def _filled(rows: int, columns: int, processors: int) -> float:
    """The share of `processors` that work on a result of `rows` x `columns`, on average over its waves."""
    tiles = ceil(rows / TILE[0]) * ceil(columns / TILE[1])
    return tiles / processors / ceil(tiles / processors)


XLA_DEFAULT_PERCENT = 95
"""XLA's default of the flag, in percent."""


def with_host_buffers(config: Config, plan: Plan, device: Device, usable: Callable[[], int]) -> Plan:
    """`plan` with the percentage that leaves XLA as much of the device as it has without activations on the host.

    XLA recomputes by itself where a program exceeds the device's memory (the limit less arguments and results, of which
    `xla_gpu_memory_limit_slop_factor` is the percentage that counts), and in that sum it takes what is in host memory
    for the device's. With more on the host than a device has, it ran kernels again in a program that needed a quarter
    of the device. So the percentage is raised by what is on the host.

    Args:
        config: of the plan.
        plan: what layers keep is settled.
        device: the devices are like it.
        usable: bytes that a program may take of one.
    """
    on_host = offloaded_bytes(config, plan)
    if on_host == 0 or device.platform == "cpu":
        return plan
    free = max(1, usable() - estimate_memory(config, plan).optimizer)
    return replace(plan, memory_percent=min(XLA_DEFAULT_PERCENT - (-100 * on_host // free), PERCENT))
