"""The number of layers in a turn of the loop over layers, where the next layer's weights are gathered meanwhile.

What a loop carries has one buffer, and the weights of the layer that computes are in it until its last product: with
one layer in a turn, XLA gathers the next ones into another buffer and copies them at the end. With two, layers take
turns with two buffers, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, Choice, LayerRun, Plan
from jaxpar.distributed.devices import Device
from jaxpar.layers.declared import declare_layer
from jaxpar.layout.auto_remat import ESTIMATED, OVERLAPPED
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.weight_prefetch import prefetches_weights
from jaxpar.memory.remat import offloaded

SHORT = 16
"""Layers; `auto` leaves shorter loops alone: two layers of a turn and two that no loop has would be a large part."""


def layer_unroll(
    config: Config, axes: AxisSizes, device: Device, runs: Sequence[LayerRun], kinds: Sequence[str]
) -> Choice[int]:
    """The meaning of `parallel.overlap.layer_unroll` of a resolved configuration on devices like `device`.

    Args:
        config: as the trainer has it, with sizes filled in.
        axes: of the mesh.
        device: the devices are like it.
        runs: what the layers of a chunk keep.
        kinds: of these layers.

    Raises `UserError` for a number that would change nothing.
    """
    asked = config.parallel.overlap.layer_unroll
    shards = axes.shards
    if not prefetches_weights(shards, config.parallel.zero):
        if asked not in ("auto", 1):
            raise UserError(
                f"parallel.overlap.layer_unroll: {asked} would change nothing, because no layer's weights are gathered "
                "while another computes (parallel.zero: 3 over several ranks); expected auto or 1"
            )
        return Choice(1)
    if asked != "auto":
        return Choice(asked, "named by parallel.overlap.layer_unroll")
    if axes.pipe > 1 or _longest(runs, kinds) < SHORT:
        return Choice(1, "the loops are short")
    if offloaded(runs) or config.memory.weights_offload != "none":
        return Choice(1, "beside copies to the host XLA starts gathers later with two")
    if any(declare_layer(model).routed for model in kind_models(config.model).values()):
        return Choice(1, "layers with a router were not compared")
    if device.platform == "cpu":
        return Choice(1, "CPU devices gather nothing meanwhile")
    return Choice(2, "gathered weights take turns with two buffers, without a copy")


def with_lower_unroll(config: Config, plan: Plan, usable_bytes: int) -> Plan:
    """`plan`, with one layer in a turn where `auto` has more, and the step is estimated to fill so much of the
    `usable_bytes` of a device that XLA would overlap less."""
    if config.parallel.overlap.layer_unroll != "auto":
        return plan
    if estimate_memory(config, plan).device <= ESTIMATED * OVERLAPPED * usable_bytes:
        return plan
    return replace(plan, layer_unroll=Choice(1, "there is no memory for the weights of one layer more"))


def _longest(runs: Sequence[LayerRun], kinds: Sequence[str]) -> int:
    """Layers of the longest loop over one kind of layers that keep the same."""
    run_of_layer = [index for index, run in enumerate(runs) for _ in range(run.layers)]
    return max(len(list(group)) for _, group in groupby(zip(kinds, run_of_layer, strict=True)))


def check_layer_unroll(plan: Plan) -> None:
    """Raise `UserError` if a plan has several layers in a turn for nothing."""
    axes = plan.axes
    if plan.layer_unroll.name > 1 and not prefetches_weights(axes.shards, plan.zero):
        raise UserError(
            f"plan.layer_unroll: {plan.layer_unroll.name}, and no layer's weights are gathered while another computes; "
            "expected 1"
        )
