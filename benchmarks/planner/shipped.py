"""The shipped configurations of clusters beside the planner's first choice today, by the planner's own predictions.

    python -m benchmarks.planner.shipped                              # a table
    python -m benchmarks.planner.shipped --only llama3_8b --json shipped.json
    python -m benchmarks.planner.shipped --verify                     # and both compiled for the cluster's GPUs: hours

A configuration names its command in its first lines (`# python -m jaxpar.plan --config ... --cluster ...`). A better
planner may move its choice, which this table shows. What a file leaves open (`memory.remat: auto`) is the planner's in
both. A file that sets what each layer keeps is timed as it is, even where the planner would leave more memory free.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.planner.compiled import laid_out
from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command
from jaxpar.compiler.compile import DEFAULT_CACHE, plan_for
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.axes import AXES
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.make_plan import resolve_config
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.pages.units import seconds, size
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.planning import best_with_idle_hosts, planned_config
from jaxpar.planner.report import words
from jaxpar.planner.search.asked import parse_avoided, parse_fixed
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.verified import Verified, compiled

CONFIGS = Path(__file__).parents[2] / "configs"
COMMAND = "python -m jaxpar.plan "
TIMEOUT_S = 1800.0
"""For each compile."""


@dataclass(frozen=True)
class Shipped:
    """A configuration and the command that its file names."""

    file: Path
    cluster: str
    fixed: tuple[str, ...]
    avoided: tuple[str, ...]

    @property
    def asked(self) -> str:
        """The command without the file."""
        own = [f"--fix {one}" for one in self.fixed] + [f"--avoid {one}" for one in self.avoided]
        return " ".join((self.cluster, *own))


def shipped(folder: Path = CONFIGS) -> list[Shipped]:
    """The configurations of a folder whose files name a command."""
    return [own for file in sorted(folder.glob("*.yaml")) if (own := _of_file(file)) is not None]


def _of_file(file: Path) -> Shipped | None:
    lines = (line.lstrip("# ").strip() for line in file.read_text().splitlines() if line.startswith("#"))
    given = next((shlex.split(line.removeprefix(COMMAND)) for line in lines if line.startswith(COMMAND)), None)
    if given is None:
        return None
    pairs = list(zip(given[::2], given[1::2], strict=True))
    value = lambda name: [own for key, own in pairs if key == name]
    if {key for key, _ in pairs} - {"--config", "--cluster", "--fix", "--avoid"} or len(value("--cluster")) != 1:
        raise UserError(
            f"{file}: the command of its first lines: expected --config, --cluster, --fix and --avoid alone"
        )
    return Shipped(file, value("--cluster")[0], tuple(value("--fix")), tuple(value("--avoid")))


def choices_of(config: Config, devices: int) -> dict[str, str]:
    """What a configuration sets of a layout on so many devices, as `--fix` would; the rest is left to the planner."""
    config = resolve_config(config, devices)
    parallel, memory = config.parallel, config.memory
    rows = config.data.batch_size // (parallel.replica * parallel.fsdp * parallel.expert) // parallel.microbatches
    fixed = {axis: str(getattr(parallel, axis)) for axis in AXES}
    fixed |= {"zero": str(parallel.zero), "microbatch": str(rows)}
    if parallel.context > 1 and parallel.context_strategy != "auto":
        fixed["context_strategy"] = parallel.context_strategy
    if parallel.pipe > 1:
        fixed |= {"schedule": parallel.schedule, "virtual_stages": str(parallel.virtual_stages)}
    named = isinstance(memory.remat, str) and memory.remat != "auto"
    if named:
        fixed["remat"] = str(memory.remat)
    state, others = memory.optimizer_offload != "none", not named or memory.offload_fraction > 0
    fixed["offload"] = {(0, 0): "none", (0, 1): "activations", (1, 0): "optimizer", (1, 1): "all"}[state, others]
    return fixed


def first_choice(one: Shipped, overrides: Sequence[str] = ()) -> tuple[Search, Planned, str | None]:
    """The planner's first for a configuration, as it was asked for: the search, the plan, and a sentence about hosts
    that it leaves idle."""
    config = planned_config(load_config(one.file, list(overrides)))
    space = Space(config, named_cluster(one.cluster), parse_fixed(list(one.fixed)), parse_avoided(list(one.avoided)))
    search, (first, *_), idle = best_with_idle_hosts(Search(space), 1)
    return search, first, idle


def compared(one: Shipped, *, compiles: bool = False, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The row of a configuration: its own layout, and the planner's first, as it was asked for."""
    cluster = named_cluster(one.cluster)
    config = load_config(one.file, list(overrides))
    avoided, planned = parse_avoided(list(one.avoided)), planned_config(config)
    row: dict[str, Any] = {"file": one.file.name, "asked": one.asked}
    search, first, idle = first_choice(one, overrides)
    found = {"planner": first}
    try:
        own = _own(config, planned, cluster, avoided) if isinstance(config.memory.remat, str) else None
        found["shipped"] = as_it_is(config, cluster) if own is None else own
    except UserError as error:  # reported in the table
        row["refused"] = str(error)
    programs = {name: compiled(own, search.reached, TIMEOUT_S, DEFAULT_CACHE) for name, own in found.items()} \
        if compiles else {}  # fmt: skip
    row |= {name: _numbers(own, programs.get(name)) for name, own in found.items()}
    if "shipped" in found:
        row["of_planner"] = found["shipped"].candidate.seconds / first.candidate.seconds
        if compiles:
            row["compiled_of_planner"] = row["shipped"]["compiled_seconds"] / row["planner"]["compiled_seconds"]
    return row | ({} if idle is None else {"idle": idle})


def _own(config: Config, planned: Config, cluster: Cluster, avoided: frozenset[str]) -> Planned:
    """The layout that a configuration sets, with the planner's times."""
    fixed = parse_fixed([f"{name}={value}" for name, value in choices_of(config, cluster.devices).items()])
    return Search(Space(planned, cluster, fixed, avoided)).best(1)[0]


def as_it_is(config: Config, cluster: Cluster) -> Planned:
    """The layout of a configuration with what it sets of each layer, and its times."""
    filled, plan = plan_for(config, cluster)
    layout, search = laid_out(config, cluster)
    candidate = Candidate(layout, search.timer.step(layout), estimate_memory(filled, plan))
    return Planned(filled, plan, cluster, candidate, search.usable)


def _numbers(planned: Planned, program: Verified | None) -> dict[str, Any]:
    candidate = planned.candidate
    found = {
        "mesh": words.axes(candidate.layout),
        "microbatch": candidate.layout.microbatch,
        "seconds": candidate.seconds,
        "bytes": candidate.memory.device,
        "usable": planned.usable,
    }
    if program is None:
        return found
    better = program.planned.candidate
    return found | {"compiled_seconds": better.seconds, "compiled_bytes": better.memory.device, "fits": program.fits}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Two lines for each configuration."""
    lines = [f"{'configuration':24}{'':10}{'mesh':44}{'rows':>5}{'a step':>10}{'memory':>11}"]
    for row in rows:
        lines.append(f"{row['file']:24}{row['asked']}")
        for name in ("shipped", "planner"):
            if name not in row:
                lines.append(f"{'':24}{name:10}{row['refused']}")
                continue
            own = row[name]
            line = f"{'':24}{name:10}{own['mesh']:44}{own['microbatch']:5}{seconds(own['seconds']):>10}"
            line += f"{size(own['bytes']):>11}"
            line += "" if own["bytes"] <= own["usable"] else f" of {size(own['usable'])} that may be planned for"
            if "compiled_seconds" in own:
                fits = "" if own["fits"] else ", does not fit"
                line += f"  compiled: {seconds(own['compiled_seconds'])}, {size(own['compiled_bytes'])}{fits}"
                line += f", {row['compiled_of_planner']:.3f} of the planner's" if name == "shipped" else ""
            lines.append(line + (f"  {row['of_planner']:.3f} of the planner's" if name == "shipped" else ""))
        lines += [f"{'':24}{row['idle']}"] if "idle" in row else []
    return "\n".join(lines)


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    everything = shipped()
    names = [one.file.stem for one in everything]
    parser = Parser("benchmarks.planner.shipped", __doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--verify", action="store_true", help="compile both for the cluster's GPUs")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    rows = [compared(one, compiles=options.verify) for one in everything if one.file.stem in options.only]
    write_json(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    sys.exit(main())
