"""Published schedules: generators by family, and the registry that names them."""

from jaxpar.pipeline.actions import Action, Kind, parse_action
from jaxpar.pipeline.schedules.registry import SCHEDULES, Family, check_sizes, make_schedule, schedule_name
from jaxpar.pipeline.table import Order, Schedule, Tick

__all__ = [
    "SCHEDULES",
    "Action",
    "Family",
    "Kind",
    "Order",
    "Schedule",
    "Tick",
    "check_sizes",
    "make_schedule",
    "parse_action",
    "schedule_name",
]
