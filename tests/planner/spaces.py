"""Small models and spaces that searches are tried on."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from jaxpar.config import Config
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.search.candidate import Candidate
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Choice, Group, Space
from tests.small_run import small


def model_of(**sections: dict[str, Any]) -> Config:
    """A decoder of 8 layers, large enough that layouts differ."""
    sections["model"] = {"layers": 8, "embed": 1024, "heads": 8, "mlp": 4096, "vocab": 8192} | sections.get("model", {})
    sections["data"] = {"sequence_length": 2048, "batch_size": 16} | sections.get("data", {})
    sections["precision"] = {"compute": "bfloat16"} | sections.get("precision", {})
    return small(**sections)


def search_of(config: Config, cluster: str = "h100:1x8", limit: int | None = None, **fixed: object) -> Search:
    """A search; `limit` is the bytes of a device."""
    held = {name: str(value) for name, value in fixed.items()}
    return Search(Space(config, named_cluster(cluster), held), limit=limit)


def choices(space: Space, group: Group) -> Iterator[Choice]:
    """The choices within a group, one by one."""
    microbatches = space.config.data.batch_size // (group.data * group.microbatch)
    for schedule, virtual in space.schedules(group.pipe, microbatches):
        ends = space.ends(group.pipe, group.tensor)
        rest = product(space.zeros(group), space.strategies(group), space.offloads(), ends)
        for zero, strategy, offloaded, shared in rest:
            yield Choice(zero, strategy, shared, offloaded, schedule, virtual)


def everything(search: Search) -> list[Candidate]:
    """All layouts that fit, timed one by one, by time; also with stages as long as their GPUs are fast."""
    found = []
    for group in search.space.groups():
        for choice in choices(search.space, group):
            even = search.activations(group, choice)
            uneven = search.timer.lengths(even.layout("none"))
            planners = [even, *([search.activations(group, choice._replace(stage_layers=uneven))] if uneven else [])]
            for kept in (option for planner in planners for option in planner.options()):
                found.append(Candidate(kept.layout, search.timer.step(kept.layout), kept.memory))
    return sorted(found, key=lambda one: one.seconds)
