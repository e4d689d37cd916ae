"""Whether XLA merges matmuls of a layer that share an operand into one.

XLA merges those whose operands and result are below a size, as the products of queries, keys and values and those of
their gradients. One call fills a GPU that small ones leave idle, but its operands are joined by copies in every layer.
Matrices that fill the GPU by themselves are not worth them.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

import jax
from jax.sharding import PartitionSpec

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.distributed.devices import Device
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import ParamSpec, map_specs
from jaxpar.mesh.placements import local_shape

MERGED = "xla_gpu_dot_merger_threshold_mb"
TILE = 128, 256
"""Rows and columns of a result that a multiprocessor makes at a time: cuBLAS's largest tile for bfloat16 on Hopper."""
FILLED = 0.9
"""The share of the multiprocessors that work, on average over the waves of a product, from which it fills a GPU."""


def with_merged_matmuls(config: Config, plan: Plan, device: Device) -> Plan:
    """`plan` with no merging, where each product of a layer's matrices fills a device like `device` by itself.

    With tensor ranks XLA's limit stays: rings part products by barriers.
    """
    processors = hardware_of(device)["processors"]
    if processors is None or plan.axes.tensor > 1:
        return plan
    layout = StepLayout(config, plan)
    tokens = plan.microbatch_rows * config.data.sequence_length // plan.axes.context // plan.mlp_tiles.name

    def filled(spec: ParamSpec, where: PartitionSpec) -> float:
        """By the worst of a matrix's three products: of rows, of their gradients, and its own gradient."""
        if not spec.matrix:
            return 1.0
        dims = local_shape(spec.shape, where, plan.axes)[spec.stack :]
        inputs, outputs = prod(dims[: spec.inputs]), prod(dims[spec.inputs :])
        return min(_filled(*of, processors) for of in ((tokens, outputs), (tokens, inputs), (inputs, outputs)))

    shares = map_specs(filled, layout.specs[LAYERS], layout.placements.compute.layout[LAYERS])
    return replace(plan, merged_matmuls_mb=0) if min(jax.tree.leaves(shares)) >= FILLED else plan


def _filled(rows: int, columns: int, processors: int) -> float:
    """The share of `processors` that work on a result of so many rows and columns, on average over its waves."""
    tiles = ceil(rows / TILE[0]) * ceil(columns / TILE[1])
    return tiles / processors / ceil(tiles / processors)
