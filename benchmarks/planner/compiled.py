"""Compiled programs, which the planner's overlap rule is held against: seconds of messages needed and exposed.

    python -m benchmarks.planner.compiled                             # the file beside the planner's seconds of today
    python -m benchmarks.planner.compiled --write                     # compiles every row again: an hour
    python -m benchmarks.planner.compiled --write --only 3 7          # these rows alone

To add a program, add a row with its first three columns (a file of configs/, a cluster, and what `--set` changes) at
the end of benchmarks/planner/compiled.csv, and write it. Its parts (shapes, bytes and how often) are in parts.csv;
seconds follow from them by the rates and the clock of today, which nothing was measured on GPUs for.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from statistics import median

from benchmarks.planner.parts import PARTS, Key, Row, Times, read_parts, rows_of, times_of, write_parts
from jaxpar.cli import Parser, command
from jaxpar.compiler.compile import DEFAULT_CACHE, compile_step, plan_for
from jaxpar.compiler.program.attribution import Movement, part_of
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.config import Config, UserError, load_config
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.pages.units import plural
from jaxpar.planner.planning import planned_config
from jaxpar.planner.report import words
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.stage_work import layout_of
from jaxpar.planner.step_time.model import StepTime

CONFIGS = Path(__file__).parents[2] / "configs"
COMPILED = Path(__file__).parent / "compiled.csv"
MESSAGES = ("gathers", "scatters", "sums", "host", "state", "context", "tensor", "experts", "pipe")
"""Kinds of messages: gathers of weights, reduce-scatters of gradients, sums over replicas, copies of activations to and
from the host, those of the optimizer's state, and what context ranks, tensor ranks, ranks of experts and stages send
each other."""
TIMEOUT_S = 1800.0
"""For each compile."""
LEAST = 1e-3
"""Share of compute below which messages are left out of the table."""
SHOWN = {
    "gathers": "gathers", "reduce-scatters": "scatters", "sums over replicas": "sums", "copies to the host": "host",
}  # fmt: skip
"""Columns of the table, and kinds of `MESSAGES`."""
HEAD = (
    "# Compiled programs, of XLA's GPU compiler, by what they were made from; their parts are in parts.csv.",
    "# The command of a row: python -m jaxpar.inspect --config configs/CONFIG.yaml --cluster CLUSTER --set OVERRIDES",
    "# python -m benchmarks.planner.compiled --write renews it.",
)
COLUMNS = ("config", "cluster", "overrides", "mesh")
WAITED = ("tensor", "context", "exchange", "data", "scales", "offload")
"""Parts of a predicted step that wait for what a program shows as exposed."""
KINDS = {"gather_weight": "gathers", "scatter_gradient": "scatters"}
"""Kinds of collectives of weights; the others over data ranks are sums."""
ROWS = ("join_ranks", "gather_rows", "scatter_rows")
"""Collectives of ids of tokens and of rows of the embedding: no kind of `MESSAGES`, since a predicted step waits for
all of them, and not for a share."""


@dataclass(frozen=True)
class Program:
    """A compiled program: a row of the file."""

    config: str
    """The name of a file of configs/."""
    cluster: str
    overrides: tuple[str, ...]
    """`section.key=value`, as for `--set`."""
    mesh: str = ""
    """In words."""
    parts: tuple[Row, ...] = ()
    """The rows of parts.csv; empty for a program that was not compiled yet."""

    @property
    def key(self) -> Key:
        """The key of its parts."""
        return Key(self.config, self.cluster, " ".join(self.overrides))

    @cached_property
    def times(self) -> Times:
        """The program on the clock."""
        assert self.parts, f"not compiled: {self.command}"
        cluster = parse_cluster(self.cluster)
        return times_of(self.parts, StepTimer(cluster.gpu, cluster, hardware_of(cluster.gpu)))

    @property
    def compute(self) -> float:
        """Seconds of all kernels of a step."""
        return self.times.step.compute

    @property
    def needed(self) -> Mapping[str, float]:
        """Seconds of messages of a step by kind of `MESSAGES`."""
        return self.times.needed

    @property
    def exposed(self) -> Mapping[str, float]:
        """Seconds of these messages that no compute hides."""
        return self.times.exposed

    @property
    def command(self) -> str:
        """The command that compiles the row."""
        words = ["python -m jaxpar.inspect", f"--config configs/{self.config}.yaml", f"--cluster {self.cluster}"]
        return " ".join([*words, *(f"--set {quote(one)}" for one in self.overrides)])


def read_programs(file: Path = COMPILED, parts: Path = PARTS) -> list[Program]:
    """The rows of a file, with their parts. Raises `UserError` for one that is not of this form or is there twice, and
    for parts of no row."""
    parts_by_key = read_parts(parts)
    with file.open(newline="") as stream:
        lines = (line for line in stream if not line.startswith("#"))
        programs = [
            _read(f"{file.name}: row {number}", row, parts_by_key)
            for number, row in enumerate(csv.DictReader(lines), 1)
        ]
    keys = [one.key for one in programs]
    for key in parts_by_key.keys() | keys:
        if keys.count(key) != 1:
            raise UserError(f"{file.name}: expected one row of {' '.join(key)}, found {keys.count(key)}")
    return programs


def _read(place: str, row: Mapping[str, str], parts: Mapping[Key, tuple[Row, ...]]) -> Program:
    if set(row) != {*COLUMNS} or None in row.values():
        raise UserError(f"{place}: expected a cell in each of the columns {', '.join(COLUMNS)}")
    one = Program(row["config"], row["cluster"], tuple(row["overrides"].split()), row["mesh"])
    return replace(one, parts=parts.get(one.key, ()))


def prepared(program: Program) -> tuple[Config, Cluster]:
    """The configuration and the cluster of a row."""
    return load_config(CONFIGS / f"{program.config}.yaml", list(program.overrides)), parse_cluster(program.cluster)


def compiled(program: Program) -> Program:
    """The row, compiled."""
    config, cluster = prepared(program)
    compilation = compile_step(config, cluster, timeout_s=TIMEOUT_S, cache=DEFAULT_CACHE)
    analysis = Analysis(compilation, cluster)
    report = make_report(analysis, program.config)
    if unknown := analysis.module.unknown.notes():
        raise UserError(f"{program.command}: {unknown[0]}")
    if not report.fits:
        raise UserError(f"{program.command}: the program does not fit, and then XLA gives up overlap")
    layout, _ = laid_out(config, cluster)
    parts = rows_of(analysis, {
        one.transfer.start.name: shares(one, copied(layout)) for one in analysis.movements
    })  # fmt: skip
    return replace(program, mesh=words.axes(layout), parts=tuple(parts))


def copied(layout: Layout) -> str:
    """The kind of what is copied to and from the host: state, unless activations are."""
    runs = () if isinstance(layout.remat, str) else layout.remat
    activations = layout.offload_fraction or any(treatment == "offload" for _, own in runs for _, treatment in own)
    return "state" if layout.optimizer_offload and not activations else "host"


def shares(one: Movement, copied: str) -> dict[str, float]:
    """The shares of a message's time by kind of `MESSAGES`, by bytes, but for `ROWS`; `copied` is the kind of copies to
    and from the host."""
    found: dict[str, float] = defaultdict(float)
    for part in one.parts:
        if one.transfer.channel == "host":
            found[copied] += part.sent_bytes / one.sent_bytes
        elif part.collective not in ROWS:
            share = part.sent_bytes / one.sent_bytes if one.sent_bytes else 1 / len(one.parts)
            found[kind_of(one.axis, part.collective)] += share
    return dict(found)


def kind_of(axis: str, collective: str | None) -> str:
    """The kind of `MESSAGES` of a collective over axes joined by `+`."""
    part = part_of(axis, collective)
    if part != "data":
        return "experts" if part == "exchange" else part
    return KINDS.get(collective or "", "sums")


def laid_out(config: Config, cluster: Cluster) -> tuple[Layout, Search]:
    """The layout of a configuration, and the search that times it."""
    filled, plan = plan_for(config, cluster)
    search = Search(Space(planned_config(config), cluster))
    return layout_of(filled, plan, search), search


def predicted(config: Config, cluster: Cluster) -> StepTime:
    """The planner's step."""
    layout, search = laid_out(config, cluster)
    return search.timer.step(layout)


def write_rows(programs: Sequence[Program], file: Path = COMPILED, parts: Path = PARTS) -> None:
    """The files, with these rows."""
    write_parts({one.key: one.parts for one in programs}, parts)
    with file.open("w", newline="") as stream:
        stream.write("\n".join(HEAD) + "\n")
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dict(zip(COLUMNS, (*one.key, one.mesh), strict=True)) for one in programs)


def table(programs: Sequence[Program]) -> list[str]:
    """Lines of a table: the seconds that programs wait for messages, of those that the messages need, beside the
    planner's and its difference as a share of the step; the last column has the difference of the steps."""
    lines = [
        f"| | configuration, cluster | mesh | compute | {' | '.join(SHOWN)} | others | waits | planner | | step |",
        "|---" * (len(SHOWN) + 9) + "|",
    ]
    differences, steps = list[float](), list[float]()
    for number, one in enumerate(programs, 1):
        found = predicted(*prepared(one))
        expected = sum(found.breakdown[name] for name in WAITED)
        steps.append(found.program.seconds / one.times.step.seconds - 1)
        cells = [_waited(one, (kind,)) for kind in SHOWN.values()]
        cells.append(_waited(one, [kind for kind in MESSAGES if kind not in (*SHOWN.values(), "pipe")]))
        waits = sum(seconds for name, seconds in one.exposed.items() if name != "pipe")
        changed = "".join(f" `{override}`" for override in one.overrides)
        differences.append((expected - waits) / (one.compute + waits))
        lines.append(
            f"| {number} | `{one.config}`, {one.cluster}{changed} | {one.mesh} | {one.compute:.3g} s | "
            f"{' | '.join(cells)} | {waits:.3g} s | {expected:.3g} s | {differences[-1]:+.1%} | {steps[-1]:+.1%} |"
        )
    apart = lambda shares: (
        f"{median(map(abs, shares)):.1%} of a step in the median, {max(map(abs, shares)):.1%} at most"
    )
    return [
        *lines, "", f"The planner's seconds of waiting are apart from the programs' by {apart(differences)}.",
        f"Its steps are apart from those of {plural(len(steps), 'program')} by {apart(steps)}.",
    ]  # fmt: skip


def _waited(one: Program, kinds: Sequence[str]) -> str:
    """Seconds exposed of those needed."""
    needed, waited = (sum(of.get(kind, 0.0) for kind in kinds) for of in (one.needed, one.exposed))
    return f"{waited:.3g} of {needed:.3g} s" if needed >= LEAST * one.compute else "-"


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner.compiled", __doc__)
    parser.add_argument("--write", action="store_true", help=f"compile the rows, and write {COMPILED.name}")
    parser.add_argument("--only", nargs="+", type=int, metavar="ROW", help="of these rows, from 1")
    options = parser.parse_args(arguments)
    programs = read_programs()
    for number in options.only or range(1, len(programs) + 1):
        if not 1 <= number <= len(programs):
            raise UserError(f"--only {number}: expected a row from 1 to {len(programs)}")
        if options.write:
            print(programs[number - 1].command, file=sys.stderr, flush=True)
            programs[number - 1] = compiled(programs[number - 1])
            write_rows(programs)  # after each, since one takes minutes
    print("\n".join(table(programs)))


if __name__ == "__main__":
    sys.exit(main())
