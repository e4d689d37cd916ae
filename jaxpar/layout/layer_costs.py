"""Activations that the layers of a configuration can save, and the cost of recomputing each at its recipe's speeds."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config import Config
from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.cost.recomputation import layer_costs
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.matmul_formats import exact_shares
from jaxpar.layout.choices.attention import backends_on, strategy_on
from jaxpar.layout.choices.matmul import grouped_codes
from jaxpar.layout.choices.matmul_codes import matmul_codes
from jaxpar.layout.choices.pipeline import choose_schedule, chunk_layers, holds, order_of_chunks
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.layer_shape import layer_shapes


def costs_of_kinds(config: Config, cluster: Cluster, *, unknown: bool = False) -> dict[str, LayerCosts]:
    """Costs of a layer of each kind of the resolved `config` on `cluster`, for one microbatch on one device.

    Where layers are quantised, a product that runs again takes its time with the passes that make its codes; in the
    exceptions that of `precision.compute`. Attention takes the time of the backend that runs, and on `unknown`
    devices, for which the cluster's stand in, that of cuDNN.
    """
    axes = AxisSizes(**axis_sizes(config.parallel))
    rows = config.data.batch_size // (axes.data * config.parallel.microbatches)
    schedule, strategy = choose_schedule(config), strategy_on(config, cluster)
    slots = order_of_chunks(schedule, chunk_layers(config, schedule.chunks), config.model).slots
    held = holds(schedule.name, schedule.virtual_stages, config.parallel.zero, axes.shards)
    codes = matmul_codes(
        config, cluster.gpu, config.memory.optimizer_offload, schedule.name if held else None,
        [slot.kind for slot in slots], schedule.chunks, config.memory.weights_offload,
    )  # fmt: skip
    runs = {} if unknown else backends_on(config, cluster.gpu, strategy)
    grouped, exact = grouped_codes(config, DescribedGPU.of(cluster.gpu)), exact_shares(config)
    return {
        kind: layer_costs(
            replace(shape, codes=grouped), cluster, strategy, codes=codes, exact=exact[kind],
            magnitude_ranks=axes.devices // axes.pipe, attention=runs.get(kind),
        )
        for kind, shape in layer_shapes(config, axes, rows).items()
    }  # fmt: skip
