"""Transport of mixers' states between context ranks."""

from __future__ import annotations

from typing import Any

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.plan import AxisSizes, Choice, Plan
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.layer_messages import state_seconds
from jaxpar.cost.messages import network_of
from jaxpar.distributed.devices import Device
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.declaration.part import Recurrence
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.linear_attention.transports import TRANSPORTS
from jaxpar.pages.units import seconds


def state_messages(config: Config, axes: AxisSizes, device: Device, rows: int, cluster: Cluster | None) -> Choice[Any]:
    """The meaning of `parallel.overlap.state_messages` of a resolved configuration on devices like `device`, with so
    many rows in a microbatch on each, by the links of `cluster`, if they are known.

    Raises `UserError` for a transport that is not possible.
    """
    asked, nothing = config.parallel.overlap.state_messages, _nothing_sent(config, axes.context)
    if asked not in ("auto", "allgather") and (why := nothing or _gather_reason(config.parallel.pipe_ticks)):
        raise UserError(f"parallel.overlap.state_messages: {asked} is not possible, because {why}; expected auto")
    if nothing is not None:
        return Choice("allgather")
    if asked != "auto":
        return Choice(asked, "named by parallel.overlap.state_messages")
    if (why := _gather_reason(config.parallel.pipe_ticks)) is not None:
        return Choice("allgather", why)
    if device.platform == "cpu":
        return Choice("allgather", "links of CPU devices have no speed")
    if cluster is None:
        return Choice("allgather", "the speeds of these GPUs' links are unknown")
    ring = network_of(cluster, hardware_of(cluster.gpu)).ring(axes.context, axes.tensor)
    took = {
        name: sum(state_seconds(name, one, rows, axes.tensor, ring) for one in _recurrences(config))
        for name in TRANSPORTS
    }
    best = min(took, key=lambda name: took[name])
    rejected = {name: f"it would take {seconds(each)}" for name, each in took.items() if name != best}
    return Choice(best, f"{seconds(took[best])} of messages of all layers in a microbatch's forward", rejected)


def check_state_messages(plan: Plan, config: Config) -> None:
    """Raise `UserError` if a plan passes on states in a way that is not possible."""
    asked = plan.state_messages.name
    why = _nothing_sent(config, plan.axes.context) or _gather_reason(plan.pipe_ticks)
    if asked not in TRANSPORTS or (asked != "allgather" and why is not None):
        because = "it is unknown" if asked not in TRANSPORTS else why
        raise UserError(f"plan.state_messages: {asked} is not possible, because {because}; expected allgather")


def _recurrences(config: Config) -> list[Recurrence]:
    """The recurrences of all layers."""
    models = kind_models(config.model)
    operations = [one for kind in layer_kinds(config.model) for _, one in declare_layer(models[kind]).operations]
    return [one for one in operations if isinstance(one, Recurrence)]


def _nothing_sent(config: Config, context: int) -> str | None:
    """The reason why no state is passed on; None if it is."""
    if context == 1:
        return "parallel.context is 1"
    return None if _recurrences(config) else "no layer has a mixer with a state"


def _gather_reason(pipe_ticks: str) -> str | None:
    """The reason why states are gathered; None if they may be sent to single ranks."""
    if pipe_ticks == "branching":
        return "sends to single ranks corrupt data in the branching ticks of a pipeline (parallel.pipe_ticks)"
    return None
