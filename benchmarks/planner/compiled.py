"""Compiled programs, from which the planner reads what a step waits for: seconds of messages needed and exposed.

    python -m benchmarks.planner.compiled                             # the file beside the planner's seconds of today
    python -m benchmarks.planner.compiled --write                     # compiles every row again: an hour
    python -m benchmarks.planner.compiled --write --only 3 7          # these rows alone

To add a program, add a row with its first three columns (a file of configs/, a cluster, and what `--set` changes) to
jaxpar/planner/step_time/compiled.csv, and write it. Nothing in it was measured on GPUs: times are those of the
fitted model of GPUs and links, and what is exposed follows from the program's schedule.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.planner.memory import PAGE, with_table
from jaxpar.cli import Parser, command
from jaxpar.compiler.compile import DEFAULT_CACHE, compile_step, plan_for
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.compiler.report.record import Collective
from jaxpar.config import Config, UserError, load_config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.planning import planned_config
from jaxpar.planner.report import words
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.stage_work import layout_of
from jaxpar.planner.step_time.exposed import (
    COMPILED,
    MESSAGES,
    Program,
    classes_of,
    generation_of,
    read_programs,
    share,
)
from jaxpar.planner.verified import WAITS, part_of

CONFIGS = Path(__file__).parents[2] / "configs"
TIMEOUT_S = 1800.0
"""For each compile."""
LEAST = 1e-3
"""Share of compute below which messages are left out of the table."""
SHOWN = {
    "gathers": "gathers", "reduce-scatters": "scatters", "sums over replicas": "sums", "copies to the host": "host",
}  # fmt: skip
"""Columns of the table, and kinds of `MESSAGES`."""
MARKS = "<!-- benchmarks.planner.compiled: begin -->", "<!-- benchmarks.planner.compiled: end -->"
"""Of the place of the tables in the page."""
HEAD = (
    "# Seconds of a step of compiled programs, by kind of message: needed, and exposed (no compute hides them).",
    "# Of XLA's GPU compiler, with the fitted model of GPUs and links; nothing was measured on GPUs.",
    "# The command of a row: python -m jaxpar.inspect --config configs/CONFIG.yaml --cluster CLUSTER --set OVERRIDES",
    "# python -m benchmarks.planner.compiled --write renews it.",
)
COLUMNS = (
    "config", "cluster", "overrides", "classes", "generation", "mesh", "compute",
    *(name + end for name in MESSAGES for end in ("", "_exposed")),
)  # fmt: skip
WAITED = (*WAITS, "offload")
"""Parts of a predicted step that wait for what a program shows as exposed."""
KINDS = {"gather_weight": "gathers", "scatter_gradient": "scatters"}
"""Of collectives of weights; the others over data ranks are sums."""
ROWS = ("join_ranks", "gather_rows", "scatter_rows")
"""Of ids of tokens, and of rows of the embedding: no kind of `MESSAGES`, since the planner has a step wait for all of
them, and not for a share."""


def prepared(program: Program) -> tuple[Config, Cluster]:
    """The configuration and the cluster of a row."""
    return load_config(CONFIGS / f"{program.config}.yaml", list(program.overrides)), parse_cluster(program.cluster)


def compiled(program: Program) -> Program:
    """The row, compiled."""
    config, cluster = prepared(program)
    compilation = compile_step(config, cluster, timeout_s=TIMEOUT_S, cache=DEFAULT_CACHE)
    report = make_report(Analysis(compilation, cluster, strict=True), program.config)
    if not report.fits:
        raise UserError(f"{program.command}: the program does not fit, and then XLA gives up overlap")
    layout, _ = laid_out(config, cluster)
    needed, exposed = by_kind(report.collectives, copied(layout))
    return replace(
        program, classes=classes_of(layout), generation=generation_of(cluster), mesh=words.axes(layout),
        compute=report.compute_seconds, needed=needed, exposed=exposed,
    )  # fmt: skip


def copied(layout: Layout) -> str:
    """The kind of what is copied to and from the host: state, unless activations are."""
    return "state" if layout.optimizer_offload and classes_of(layout)[0] != "copies" else "host"


def by_kind(collectives: Iterable[Collective], copied: str = "host") -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of messages, needed and exposed, by kind of `MESSAGES`, but for `ROWS`; `copied` is that of copies to the
    host."""
    needed: dict[str, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    for row in collectives:
        if row.collective in ROWS:
            continue
        kind = kind_of(row)
        kind = copied if kind == "host" else kind
        needed[kind] += row.seconds
        exposed[kind] += row.exposed_s
    return dict(needed), dict(exposed)


def kind_of(row: Collective) -> str:
    """The kind of `MESSAGES` of a transfer."""
    axes = row.axis.split("+")
    apart = next((axis for axis in ("host", "pipe") if axis in axes), None)
    if apart is not None:
        return apart
    part = part_of(row)
    if part != "data":
        return "experts" if part == "exchange" else part
    return KINDS.get(row.collective, "sums")


def laid_out(config: Config, cluster: Cluster) -> tuple[Layout, Search]:
    """The layout of a configuration, and the search that times it."""
    filled, plan = plan_for(config, cluster)
    search = Search(Space(planned_config(config), cluster))
    return layout_of(filled, plan, search), search


def predicted(config: Config, cluster: Cluster) -> Mapping[str, float]:
    """The planner's seconds of its step by part."""
    layout, search = laid_out(config, cluster)
    return search.timer.step(layout).breakdown


def write_rows(programs: Sequence[Program], file: Path = COMPILED) -> None:
    """The file, with these rows."""
    with file.open("w", newline="") as stream:
        stream.write("\n".join(HEAD) + "\n")
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_cells, programs))


def _cells(one: Program) -> dict[str, str]:
    shown = lambda seconds: f"{seconds:.4g}" if seconds else ""
    row = {
        "config": one.config, "cluster": one.cluster, "overrides": " ".join(one.overrides),
        "classes": " ".join(one.classes), "generation": one.generation, "mesh": one.mesh, "compute": shown(one.compute),
    }  # fmt: skip
    for name in MESSAGES:
        row |= {name: shown(one.needed.get(name)), f"{name}_exposed": shown(one.exposed.get(name))}
    return row


def table(programs: Sequence[Program]) -> list[str]:
    """What the programs wait for, of what their messages need, beside what the planner expects them to wait for."""
    lines = [
        f"| | configuration, cluster | mesh | class | compute | {' | '.join(SHOWN)} | others | waits | planner |",
        "|---" * (len(SHOWN) + 8) + "|",
    ]
    for number, one in enumerate(programs, 1):
        parts = predicted(*prepared(one))
        cells = [_waited(one, (kind,)) for kind in SHOWN.values()]
        cells.append(_waited(one, [kind for kind in MESSAGES if kind not in (*SHOWN.values(), "pipe")]))
        waits = sum(seconds for name, seconds in one.exposed.items() if name != "pipe")
        changed = "".join(f" `{override}`" for override in one.overrides)
        classes = " ".join(one.classes)
        lines.append(
            f"| {number} | `{one.config}`, {one.cluster}{changed} | {one.mesh} | {classes}, {one.generation} | "
            f"{one.compute:.3g} s | {' | '.join(cells)} | {waits:.3g} s | {sum(parts[name] for name in WAITED):.3g} s |"
        )
    return lines


def _waited(one: Program, kinds: Sequence[str]) -> str:
    """Seconds exposed of those needed."""
    needed, waited = (sum(of.get(kind, 0.0) for kind in kinds) for of in (one.needed, one.exposed))
    return f"{waited:.3g} of {needed:.3g} s" if needed >= LEAST * one.compute else "-"


def shares_table(programs: Sequence[Program]) -> list[str]:
    """What is taken from them, by class and generation."""
    lines = ["| class | GPUs | programs | gathers | reduce-scatters |", "|---|---|---|---|---|"]
    for kind, generation in sorted({(one.classes[0], one.generation) for one in programs}):
        own = [one for one in programs if (one.classes[0], one.generation) == (kind, generation)]
        shares = (f"{share(name, kind, generation, programs):.1%}" for name in ("gathers", "scatters"))
        lines.append(f"| {kind} | {generation} | {len(own)} | {' | '.join(shares)} |")
    return lines


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner.compiled", __doc__)
    parser.add_argument(
        "--write", action="store_true", help=f"compile the rows, and write {COMPILED.name} and {PAGE.name}"
    )
    parser.add_argument("--only", nargs="+", type=int, metavar="ROW", help="of these rows, from 1")
    options = parser.parse_args(arguments)
    programs = read_programs()
    asked = options.only or range(1, len(programs) + 1)
    for number in asked:
        if not 1 <= number <= len(programs):
            raise UserError(f"--only {number}: expected a row from 1 to {len(programs)}")
        if options.write:
            print(programs[number - 1].command, file=sys.stderr, flush=True)
            programs[number - 1] = compiled(programs[number - 1])
            write_rows(programs)  # after each, since one takes minutes
    lines = shares_table(programs)
    print("\n".join([*lines, "", *table(programs)]))
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(), lines, MARKS))


if __name__ == "__main__":
    sys.exit(main())
