"""`memory.loss_logits`: whether the kernel of the loss keeps logits from the loss to its gradient, or recomputes them.

They are kept while layers keep all that they do, and so take from the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from jaxpar.config import Config, UserError
from jaxpar.config.plan import Choice, Plan
from jaxpar.config.spelling import quoted
from jaxpar.layout.auto_remat import ESTIMATED
from jaxpar.layout.choices.tiles import head_columns, head_tokens
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.units import seconds, size
from pallas_kernels.linear_cross_entropy.saved_logits import saved_bytes

type Logits = Choice[Literal["recompute", "keep"] | None]


def asked_logits(config: Config, loss: Choice[str]) -> Logits:
    """`recompute` or `keep`: as configured, `auto` before it is decided; None where there is no kernel.

    Raises `UserError` where one is configured and no kernel computes the loss.
    """
    asked = config.memory.loss_logits
    if loss.name == "fused":
        return Choice("recompute") if asked == "auto" else Choice(asked, "named by memory.loss_logits")
    if asked != "auto":
        raise UserError(
            f"memory.loss_logits: {asked} is for the kernel of the loss, and here XLA computes it in tiles, each of "
            f"which needs its logits only once ({loss.reason}); expected auto, or memory.loss_backend: fused with it"
        )
    return Choice(None)


def kept_where_they_fit(config: Config, plan: Plan, usable_bytes: int) -> Plan:
    """`plan`, whose layers keep what they keep anyway, with logits kept if it fits `usable_bytes` of a device, or takes
    no more than without: sums over chunks of recomputed logits take memory too."""
    kept, limit = _keeping(plan), int(ESTIMATED * usable_bytes)
    needed = estimate_memory(config, kept).device
    if needed > max(limit, estimate_memory(config, plan).device):
        why = f"with {_size(config)} of them kept a step takes {size(needed)}, and {size(limit)} may be planned for"
        return replace(plan, loss_logits=Choice("recompute", why))
    why = f"{_size(config)} of them fit: a step takes {size(needed)} of {size(limit)} that may be planned for"
    return _keeping(plan, why)


def kept_beside_layers(
    config: Config,
    plan: Plan,
    with_layers: Callable[[Plan], Plan],
    lost: Callable[[Plan], float],
    saved: float,
) -> Plan:
    """The faster of two plans under `memory.remat: auto`: logits recomputed, or kept where layers then keep less.

    Args:
        config: of both.
        plan: recomputes logits, and everything in layers.
        with_layers: a plan with the layers that fit beside its logits; raises `UserError` where none do.
        lost: seconds that the layers of a plan recompute, for a microbatch.
        saved: seconds that kept logits save, for a microbatch.
    """
    found = with_layers(plan)
    try:
        kept = with_layers(_keeping(plan))
    except UserError:
        return replace(found, loss_logits=Choice("recompute", f"no layers fit beside {_size(config)} of them"))
    cost = max(0.0, lost(kept) - lost(found))
    times = f"a microbatch saves {seconds(saved)}, and its layers recompute {seconds(cost)} more"
    why = f"with {_size(config)} of them kept {times}"
    return _keeping(kept, why) if cost <= saved else replace(found, loss_logits=Choice("recompute", why))


def check_logits(plan: Plan, config: Config) -> None:
    """Raise `UserError` if a plan does something else with logits than its loss can, or the configuration names."""
    asked, logits, kernel = config.memory.loss_logits, plan.loss_logits.name, plan.loss.name == "fused"
    if kernel != (logits is not None):
        wanted = "recompute or keep" if kernel else "null"
        raise UserError(f"plan.loss_logits: expected {wanted} with plan.loss {plan.loss.name}, got {quoted(logits)}")
    if kernel and asked not in ("auto", logits):
        raise UserError(f"plan.loss_logits: {logits}, and memory.loss_logits is {asked}")


def _keeping(plan: Plan, why: str = "") -> Plan:
    return replace(plan, loss_logits=Choice("keep", why))


def _size(config: Config) -> str:
    return size(saved_bytes(head_tokens(config), head_columns(config)))
