"""When the next layer's weights are gathered: where XLA's scheduler puts that, or in two parts of the layer.

XLA keeps one collective in flight at a time, and places those that nothing waits for from the end of a loop's turn on.
Where a layer sends other messages (attention's exchanges between context ranks, copies to and from the host), all
gathers of the next layer so come after the last of them, one after another, and wait for each other. In parts, the
next attention's weights must have arrived before this layer multiplies with those of its feed-forward; in the backward,
which may begin by recomputing products of that, with its last matrix. With context ranks it is the last matrix of its
attention: attention itself takes long there. GPUs for which XLA does not estimate what a message takes gather in parts
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, Choice, LayerRun, Plan
from jaxpar.distributed.devices import Device
from jaxpar.layers.declared import declare_layer
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.memory.remat import offloaded


def prefetches_weights(shards: int, zero: int) -> bool:
    """Whether a layer's weights are gathered while another computes; `shards` are the ranks that ZeRO shards over."""
    return zero == 3 and shards > 1


def weight_prefetch(
    config: Config, axes: AxisSizes, device: Device, runs: Sequence[LayerRun]
) -> Choice[Literal["layer", "parts"]]:
    """The meaning of `parallel.overlap.weight_prefetch` of a resolved configuration on devices like `device`.

    Args:
        config: as the trainer has it, with sizes filled in.
        axes: of the mesh.
        device: the devices are like it.
        runs: what the layers of a chunk keep.

    Raises `UserError` for `parts` where nothing is gathered ahead, or the weights have no two parts.
    """
    asked = config.parallel.overlap.weight_prefetch
    if not prefetches_weights(axes.shards, config.parallel.zero):
        if asked == "parts":
            raise UserError(
                "parallel.overlap.weight_prefetch: parts would change nothing, because no layer's weights are gathered "
                "while another computes (parallel.zero: 3 over several ranks); expected auto or layer"
            )
        return Choice("layer")
    if asked != "auto":
        return Choice(asked, "named by parallel.overlap.weight_prefetch")
    return _automatic(config, axes, device, runs)


def _automatic(
    config: Config, axes: AxisSizes, device: Device, runs: Sequence[LayerRun]
) -> Choice[Literal["layer", "parts"]]:
    if device.platform == "cpu":
        return Choice("layer", "CPU devices gather nothing meanwhile")
    if axes.pipe > 1 or any(declare_layer(model).routed for model in kind_models(config.model).values()):
        return Choice("layer", "pipelines and layers with a router were not compared")
    if axes.context > 1:
        return Choice("parts", "attention sends messages too")
    if config.precision.matmul is not None:
        return Choice("layer", "in 8 bits weights arrive in time")
    if axes.tensor > 1 and config.parallel.overlap.collectives_at_once > 1:
        return Choice("parts", "messages of tensor ranks may be under way too")
    if offloaded(runs) or config.memory.weights_offload != "none":
        return Choice("parts", "copies to and from the host are under way too")
    if axes.tensor == 1 and _unestimated(device):
        return Choice("parts", "XLA does not estimate what a message takes on GPUs before Hopper")
    return Choice("layer", "layers send nothing but weights and gradients")


def _unestimated(device: Device) -> bool:
    """Whether XLA schedules messages on a GPU without its latency estimator, which is for Hopper and later."""
    capability = hardware_of(device)["compute_capability"]
    return capability is not None and capability < 9.0


def gathered_before(plan: Plan) -> int | None:
    """The index of the block of a layer before whose products the next mixer's weights must have arrived, if any."""
    if plan.weight_prefetch.name == "layer":
        return None
    return 0 if plan.axes.context > 1 else 1


def check_weight_prefetch(plan: Plan) -> None:
    """Raise `UserError` if a plan gathers in parts where no weights are gathered ahead."""
    axes = plan.axes
    if plan.weight_prefetch.name == "parts" and not prefetches_weights(axes.shards, plan.zero):
        raise UserError(
            "plan.weight_prefetch: parts, and no layer's weights are gathered while another computes; expected layer"
        )
