"""Every number of the model of time, with its source: what `--show-model` prints."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_type_hints

import jaxpar.compiler
import jaxpar.cost
import jaxpar.hardware
import jaxpar.planner
import jaxpar.trace
from jaxpar.config.spelling import named
from jaxpar.cost.hardware_model import HardwareModel, described
from jaxpar.cost.layout import Layout
from jaxpar.cost.tables import Asked
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.sources import Source
from jaxpar.pages.units import count, plain, seconds
from jaxpar.planner.memo import Memo
from jaxpar.planner.profile import Profile
from jaxpar.planner.search.heterogeneous import StepTimer

PACKAGES = (jaxpar.cost, jaxpar.hardware, jaxpar.compiler, jaxpar.planner, jaxpar.trace)
"""Packages whose numbers have a source."""
KINDS = {"matmul": "matmul shapes", "attention forward": "attention kernels", "attention backward": "attention kernels"}
"""Names of what tables are of; the others are of messages."""


class Number(NamedTuple):
    """A constant of a module."""

    name: str
    """The name with its module, as in `cost.messages.TREE`."""
    value: object
    meaning: str
    """The sentence that the code has below it."""
    source: Source


def modules() -> Iterator[ModuleType]:
    """The modules of `PACKAGES`."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(module.name)


def numbers() -> list[Number]:
    """The constants whose annotation names a source."""
    return [one for module in modules() for one in numbers_of(module)]


def numbers_of(module: ModuleType) -> Iterator[Number]:
    """The constants of a module whose annotation names a source."""
    meanings = _strings(module)
    for name, hint in get_type_hints(module, include_extras=True).items():
        for source in getattr(hint, "__metadata__", ()):
            if isinstance(source, Source):
                path = f"{module.__name__}.{name}".removeprefix("jaxpar.")
                yield Number(path, getattr(module, name), meanings.get(name, ""), source)


def _strings(module: ModuleType) -> Mapping[str, str]:
    """The first sentence of the string below each annotated constant."""
    sentences: dict[str, str] = {}
    for field, string in pairwise(ast.parse(inspect.getsource(module)).body):
        match field, string:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                sentences[name] = " ".join(text.split()).split(". ")[0].rstrip(".")
    return sentences


def reached_lines(model: HardwareModel, gpu: GPU) -> list[str]:
    """Every parameter of a GPU, and its source."""
    lines = []
    for name, value, unit, meaning, source in described(model, gpu):
        shown, _, scaled = {"s": seconds, "1/s": count}.get(unit, plain)(value).partition(" ")
        lines.append(f"{name:<24}{shown:>12} {scaled or unit:<26} {meaning}  [{source.kind}: {source.text}]")
    links = (f"{link.name}: {link.source}" for link in (gpu.node, gpu.host, gpu.network))
    return [*lines, f"peaks, memory: {gpu.source}; {'; '.join(links)}"]


def source_lines(constants: list[Number], *kinds: str) -> list[str]:
    """The constants of these kinds of source, one a line."""
    shown = lambda value: f" = {value:g}" if isinstance(value, int | float) else ""
    return [
        f"{one.name}{shown(one.value)}: {one.meaning}  [{one.source.kind}: {one.source.text}]"
        for kind in kinds
        for one in constants
        if one.source.kind == kind
    ]


def table_lookups(timer: StepTimer, layout: Layout) -> set[Asked]:
    """All times that tables were asked for while the step of a layout was timed."""
    reached = timer.reached(timer.cluster)
    tables = reached.measured.recording()
    replace(timer, hardware=replace(reached, measured=tables), _known=Memo()).step(layout)
    assert tables.asked is not None, "it records"
    return tables.asked


def measured_words(file: Path, profile: Profile, asked: Iterable[Asked]) -> str:
    """Words for the times that are measured, of those that were asked for; the others are by fitted shares."""
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for one in sorted(asked):
        by_kind[KINDS.get(one.table.what, "messages")].append(one.measured)
    counts = [f"{sum(timed)} of {len(timed)} {kind}" for kind, timed in by_kind.items()]
    others = ("memory_share" in profile.model, "memory bandwidth"), ("host_bandwidth" in profile.links, "host copies")
    counts += [name for there, name in others if there]
    return (
        f"Measured, and by fitted shares where nothing near was ({named(file)}: {profile.title}): {', '.join(counts)}"
    )
