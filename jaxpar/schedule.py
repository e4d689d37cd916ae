"""`python -m jaxpar.schedule --name 1f1b --stages 4 --microbatches 8`: draw, time and compare pipeline schedules."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from jaxpar.cli import Parser, command, paths_by_suffix, positive, size, stop
from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.strict_json import json_text
from jaxpar.pipeline.drawing.picture import picture
from jaxpar.pipeline.drawing.summary import Refused, Summary, compare
from jaxpar.pipeline.drawing.trace import trace
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import SCHEDULES, make_schedule, schedule_name
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.tables import format_schedule, parse_schedule
from jaxpar.pipeline.timing.simulate import TIMELINES
from jaxpar.pipeline.timing.workload import Workload

MOST_ACTIONS = 200_000
"""More would take minutes, and could not be read."""
SIZES = ("stages", "microbatches", "virtual")
WORK = {"forward": 1, "backward": 2, "weight": None, "head": 0, "transfer": 0, "stash": 0, "kept": 0, "sent": 0}
"""Times of a rank's work on a microbatch that are taken where neither arguments nor a configuration set it."""

OUTPUTS = {
    ".svg": "a picture", ".json": "a trace for ui.perfetto.dev",
    ".csv": "the table: orders, or ticks with --mode lockstep",
}  # fmt: skip

EXAMPLES = """\
examples:
  python -m jaxpar.schedule --stages 4 --microbatches 8 --compare
  python -m jaxpar.schedule --name zb-v --stages 4 --microbatches 8 --out zb-v.svg --out zb-v.json
  python -m jaxpar.schedule --name interleaved --virtual 2 --stages 4 --microbatches 8 --out mine.csv
  python -m jaxpar.schedule --file mine.csv --transfer 0.05 --stage-times 1,1,1,1.2
  python -m jaxpar.schedule --config configs/llama3_8b.yaml --cluster h100:4x8 --set parallel.pipe=4 --compare

A schedule is a table: which rank takes which microbatch through which chunk of layers, forward (F), backward (B), or,
where the backward is split, input gradient (B) and weight gradient (W). It is timed in three modes:
  async      as papers draw it: each rank takes its next action as soon as it can
  lockstep   as training runs it: the same program on every rank, in ticks of one F, one B and one W at most;
             a rank that has no action in a tick waits
  branching  in ticks too, but each rank does its own action only (parallel.pipe_ticks: branching)
The bubble is the time on top of the ideal, in which all ranks would work all the time. docs/schedules.md has pictures.

schedules (p stages, m microbatches, v chunks a rank):
"""


@command()
def main(arguments: Sequence[str]) -> int | None:
    """Draw, time and compare from the command line; returns the exit code: 0 done, 2 a user error."""
    try:
        _run(_parser().parse_args(arguments))
    except ScheduleError as error:
        return stop(2, str(error))


def _parser() -> Parser:
    lines = ((f"  {name:<14}{family.needs()}", f"    {family.description}") for name, family in SCHEDULES.items())
    parser = Parser(
        "jaxpar.schedule",
        "Draw, time and compare pipeline schedules. Needs no devices.",
        EXAMPLES + "\n".join(line for pair in lines for line in pair),
    )
    what = parser.add_argument_group("which schedule").add_argument
    what("--name", help="a built-in schedule; - and _ are alike (default with --config: its own)")
    what("--file", metavar="CSV", type=Path, help="a table: for each rank a line of actions such as 2F0")
    what("--compare", action="store_true", help="all schedules side by side")
    what("--stages", metavar="P", type=positive, help="pipeline-parallel ranks")
    what("--microbatches", metavar="M", type=positive, help="number of microbatches")
    what(
        "--virtual", metavar="V", type=positive, help="chunks of layers on each rank (default: the fewest it can have)"
    )
    words = "YAML file: sizes, times (ms) and bytes are what the planner predicts for its pipeline on --cluster"
    parser.add_config(words)
    parser.add_cluster(required=False)
    words = (
        "Times of one microbatch through all layers of a rank, in any unit (with --config in ms); bytes as in 24MiB."
    )
    work = parser.add_argument_group("what it has to do", words).add_argument
    work("--forward", type=_time, metavar="T", help="time of a forward through all layers of a rank (default 1)")
    work("--backward", type=_time, metavar="T", help="time of a full backward through all layers of a rank (default 2)")
    work("--weight", type=_time, metavar="T", help="the part of the backward that is W (default: half)")
    work("--head", type=_time, metavar="T", help="time of head and loss, in the backward of the last chunk (default 0)")
    work("--transfer", type=_time, metavar="T", help="time of a send between ranks (default 0)")
    words = "how many times longer each rank takes, as in 1,1,1.2,1; or each chunk, in the order of the model"
    work("--stage-times", type=_times, metavar="X,X,...", help=words)
    work("--stash", type=size, metavar="BYTES", help="bytes per microbatch and rank stored from F to B")
    work("--kept", type=size, metavar="BYTES", help="bytes per microbatch and rank stored from B to W")
    work("--sent", type=size, metavar="BYTES", help="bytes of an activation that is sent between ranks")
    parser.set_defaults(unit="")
    show = parser.add_argument_group("what to show").add_argument
    words = "mode to draw, on the screen and in files (default async, the ideal; lockstep: uniform ticks)"
    show("--mode", choices=list(TIMELINES), help=words)
    show("--json", action="store_true", help="print JSON and nothing else")
    parser.add_out(OUTPUTS)
    return parser


def _run(options: argparse.Namespace) -> None:
    _check_combination(options)
    files = paths_by_suffix(options.out, OUTPUTS)
    if options.config is not None:
        _configure(options)
    _check_size(options.stages or 1, options.microbatches or 1, options.virtual or 1)
    workload = _workload(options)
    if options.compare:
        _compare(options, workload)
        return
    summary = Summary(_schedule(options), workload)
    mode = options.mode or "async"
    contents = {
        ".svg": lambda: picture(summary.modes[mode]),
        ".json": lambda: json_text(trace(summary.modes[mode])),
        ".csv": lambda: format_schedule(summary.schedule, "ticks" if mode == "lockstep" else "orders"),
    }
    plain = summary.to_dict()
    for ending, path in files.items():
        _write(path, contents[ending]())
    if options.json:
        print(json_text(plain, indent=2))
        return
    from jaxpar.pipeline.drawing.screen import console, print_summary

    screen = console()
    print_summary(summary, mode, screen)
    for path in files.values():
        screen.print(f"Wrote {path}", soft_wrap=True)


def _compare(options: argparse.Namespace, workload: Workload) -> None:
    summaries = compare(options.stages, options.microbatches, options.virtual, workload)
    reasons = [entry.reason for entry in summaries.values() if isinstance(entry, Refused)]
    if len(reasons) == len(summaries):
        raise UserError(f"no schedule can be made: {reasons[1]}")
    if options.json:
        print(json_text({name: entry.to_dict() for name, entry in summaries.items()}, indent=2))
        return
    from jaxpar.pipeline.drawing.screen import console, print_comparison

    print_comparison(summaries, workload, console())


def _check_combination(options: argparse.Namespace) -> None:
    """Raises UserError where the arguments cannot be combined."""
    chosen = [f"--{flag}" for flag in ("name", "file", "compare") if getattr(options, flag)]
    if len(chosen) > 1 or (options.config is None and not chosen):
        got = " and ".join(chosen) or "none of them"
        raise UserError(f"expected one of --name, --file and --compare, got {got}; --help has examples")
    _check_configuration(options)
    for flag in SIZES if options.file else ("mode", "out") if options.compare else ():
        if getattr(options, flag) not in (None, []):
            why = "the table itself sets it" if options.file else "they show one schedule"
            raise UserError(f"--{flag} does not go with {chosen[0]}: {why}")
    for flag in () if options.file or options.config else ("stages", "microbatches"):
        if getattr(options, flag) is None:
            raise UserError(f"--{flag} is missing: {chosen[0]} needs --stages and --microbatches")
    if options.file and options.file.resolve() in [path.resolve() for path in options.out]:
        raise UserError(f"{options.file} is named twice; each file needs a name of its own")


def _check_configuration(options: argparse.Namespace) -> None:
    """Raises UserError for what cannot be combined with a configuration, or needs one."""
    if options.config is None:
        for flag, value in (("cluster", options.cluster), ("set", options.overrides)):
            if value:
                raise UserError(f"--{flag} needs --config: times are predicted for a configuration")
        return
    if options.cluster is None:
        raise UserError("--cluster is missing: --config needs one to predict times for, as in --cluster h100:4x8")
    if options.file:
        raise UserError("--file does not go with --config, whose times are for the layers of its own ranks")
    for flag, key in (("stages", "pipe"), ("microbatches", "microbatches")):
        if (value := getattr(options, flag)) is not None:
            raise UserError(
                f"--{flag} does not go with --config, which sets it; expected --set parallel.{key}={value} in its place"
            )


def _configure(options: argparse.Namespace) -> None:
    """Fill in, from the configuration, what the arguments leave out."""
    from jaxpar.planner.stage_work import stage_work

    work = stage_work(options.config, options.overrides, options.cluster)
    of_config = options.name is None and not options.compare
    if of_config:
        options.name, options.virtual = work.schedule, options.virtual or work.virtual
    options.stages, options.microbatches, options.unit = work.stages, work.microbatches, "ms"
    for name, value in work.numbers.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.stage_times is None:
        options.stage_times = work.chunks if of_config and options.virtual == work.virtual else work.ranks


def _check_size(stages: int, microbatches: int, virtual: int) -> None:
    if (actions := 3 * stages * microbatches * virtual) > MOST_ACTIONS:
        raise UserError(
            f"{stages} stages x {microbatches} microbatches x {virtual} chunks are up to {actions:,} actions, "
            f"expected at most {MOST_ACTIONS:,}"
        )


def _schedule(options: argparse.Namespace) -> Schedule:
    if options.name is not None:
        return make_schedule(
            schedule_name(options.name),
            ranks=options.stages,
            microbatches=options.microbatches,
            virtual_stages=options.virtual,
        )
    try:
        text = read_text_file(options.file, LONGEST_WRITTEN, encoding="utf-8-sig")
        return parse_schedule(text, name=options.file.stem)
    except OSError as error:
        raise UserError(f"--file {options.file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"--file {options.file}: not text, expected a CSV file in UTF-8") from None


def _workload(options: argparse.Namespace) -> Workload:
    work = {name: getattr(options, name) for name in WORK}
    work |= {name: usual for name, usual in WORK.items() if work[name] is None}
    if work["weight"] is None:
        work["weight"] = Fraction(work["backward"]) / 2
    elif work["weight"] > work["backward"]:
        raise UserError(
            f"--weight: W is a part of --backward ({float(work['backward']):g}) and cannot take longer, "
            f"got {float(work['weight']):g}"
        )
    if not work["forward"] + work["backward"]:
        raise UserError("--forward and --backward: both are 0, expected some work")
    return Workload(stage_times=options.stage_times, unit=options.unit, **work)


def _time(text: str) -> int | Fraction:
    """A time, exactly as it is written."""
    if not re.fullmatch(r"\d{0,9}\.?\d{1,9}|\d{1,9}/[1-9]\d{0,8}", text.strip()):
        raise argparse.ArgumentTypeError(f"expected a number from 0 up, as in 1 or 0.05, got {text}")
    exact = Fraction(text.strip())
    return int(exact) if exact.denominator == 1 else exact


def _times(text: str) -> tuple[int | Fraction, ...]:
    return tuple(map(_time, text.split(",")))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())
