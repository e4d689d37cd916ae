"""How the experts of each kind of layers get their tokens."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, ExpertLayout, Plan
from jaxpar.config.reading.typed import shown
from jaxpar.config.spelling import quoted
from jaxpar.layers.experts.exchange import EXCHANGES, exchange_of


def expert_layouts(config: Config, axes: AxisSizes) -> dict[str, ExpertLayout]:
    """By kind of layers, of those that have experts."""
    asked, capacity, found = config.parallel.expert_exchange, config.parallel.expert_capacity, {}
    for kind, model in kind_models(config.model).items():
        if model.experts is not None:
            name, why = exchange_of(asked, model.experts, capacity, axes.expert, axes.tensor)
            found[kind] = ExpertLayout(exchange=name, capacity=capacity, reason=why)
    return found


def check_expert_layouts(plan: Plan, config: Config) -> None:
    """Raise `UserError` if those of a plan are not for the layers of the model, or cannot run."""
    asked = config.parallel.expert_exchange
    kinds = [kind for kind, model in kind_models(config.model).items() if model.experts is not None]
    if set(plan.experts) != set(kinds):
        found, wanted = (", ".join(map(quoted, each)) or "none" for each in (plan.experts, kinds))
        raise UserError(f"plan.experts: kinds of layers {found}, and those of the model with experts are {wanted}")
    for own in plan.experts.values():
        if own.exchange not in EXCHANGES or asked not in ("auto", own.exchange):
            wanted = " or ".join(EXCHANGES) if asked == "auto" else asked
            raise UserError(f"plan.experts: exchange: expected {wanted}, got {shown(own.exchange)}")
        if own.capacity != config.parallel.expert_capacity:
            raise UserError(
                f"plan.experts: capacity: {own.capacity:g}, and parallel.expert_capacity is "
                f"{config.parallel.expert_capacity:g}"
            )
