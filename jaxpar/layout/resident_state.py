"""The weights whose optimizer state stays on the device under `memory.optimizer_offload: host`.

PatrickStar (arXiv:2108.05818) keeps state in chunks, records in a warm-up step how much memory each moment leaves and
when each chunk is used, and evicts the chunk whose next use is furthest ahead (Belady's rule). Here the estimate of
memory in closed form replaces the warm-up step: it is known before anything runs, and is the same in all processes.

A step uses the state of all weights in one order, the same in every step. So the chunk whose next use is furthest ahead
is the one just used: Belady's rule passes some chunks through the same memory, one after the other, and leaves the
others where they are. Each byte that stays saves as many copies as any other. The choice is therefore static: the
state of whole weights, as many bytes as fit, stays in every step, and the rest passes in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxpar.config import Config, UserError
from jaxpar.config.plan import Plan
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.distributed.devices import Device
from jaxpar.layout.auto_remat import ESTIMATED
from jaxpar.layout.memory.case import Case
from jaxpar.layout.memory.estimate import MemoryModel, case_of, estimate_memory
from jaxpar.layout.memory.fixed import state_of
from jaxpar.layout.step_layout import StepLayout

FILLED = 0.87
"""Share of what may be planned for that a step fills with resident state. It saves copies and nothing else, and
estimates of layouts drawn at random were up to 19% too low: such a step still fits."""


def with_resident_state(config: Config, plan: Plan, device: Device, usable: Callable[[], int]) -> Plan:
    """`plan` with the weights whose state stays on the device, in memory that nothing else of a step needs.

    Args:
        config: of the plan.
        plan: everything else in it is settled.
        device: the devices are like it. Nothing stays on CPU devices, which use the host's memory.
        usable: bytes that a program may take of one.
    """
    if plan.optimizer_offload != "host" or plan.weights_offload == "host" or device.platform == "cpu":
        return plan
    model, case = MemoryModel(config), case_of(config, plan)
    names = resident_weights(model, case, int(ESTIMATED * usable()), estimate_memory(config, plan).device)
    return replace(plan, resident_weights=names)


def resident_weights(model: MemoryModel, case: Case, limit: int, used: int) -> tuple[str, ...]:
    """The names of the weights whose state stays, the largest first, each that still fits.

    Args:
        model: of the configuration.
        case: in which all state is on the host.
        limit: bytes of a device that may be planned for.
        used: bytes of a device in this case.
    """
    state = state_of(model.config, model.weights, case)
    _, passing, total = state.stored_bytes(case.state)
    left = int(FILLED * limit) - used
    if total <= left + passing:  # no piece passes
        left = total
    names: list[str] = []
    for name, size in sorted(state.bytes_by_weight().items(), key=lambda weight: -weight[1]):
        if size <= left:
            names.append(name)
            left -= size
    return tuple(sorted(names))


def resident_share(config: Config, plan: Plan) -> float:
    """The share of the state that a plan leaves on the device, under `memory.optimizer_offload: host`."""
    if plan.optimizer_offload != "host":
        return 0.0
    model, case = MemoryModel(config), case_of(config, plan)
    return 1 - model.fixed(case).host / max(1, model.fixed(case._replace(resident=())).host)


def check_resident_state(plan: Plan, config: Config) -> None:
    """Raise `UserError` if resident weights of a plan are no weights, or have state that is not on the host anyway."""
    if not plan.resident_weights:
        return
    if plan.optimizer_offload != "host" or plan.weights_offload == "host":
        raise UserError(
            f"plan.resident_weights: expected none with plan.optimizer_offload: {plan.optimizer_offload} and "
            f"plan.weights_offload: {plan.weights_offload}, got {', '.join(plan.resident_weights)}"
        )
    names = StepLayout(config, plan).weight_names
    for name in plan.resident_weights:
        if name not in names:
            raise UserError(
                f"plan.resident_weights: {quoted(name)} is not a weight of the model{did_you_mean(name, names)}"
            )
