"""Checks and measures kernels, memory and a step on one GPU, in under 8 minutes; prints a table.

    python -m benchmarks.gpu --json gpu.json             # everything
    python -m benchmarks.gpu --record                    # and note which kernels were right, for `auto` to take
    python -m benchmarks.gpu --bring-up                  # kernels that no GPU like this one has run: step by step
    python -m benchmarks.gpu --only check-triton attention
    python -m benchmarks.gpu --dry-run                   # tiny shapes on any machine, kernels in the interpreter

Skipped and failed items are listed in the table and in the JSON. The exit code is 1 where something failed
or was wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Journal, begun, read
from benchmarks.gpu.parts import PARTS, SECONDS, Part
from benchmarks.gpu.processes import environment
from benchmarks.gpu.record import add_records, verified
from benchmarks.gpu.report import table
from benchmarks.gpu.targets import targets
from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command

ROOT = Path(__file__).parent.parent.parent
GRACE = 10
"""Seconds that a part gets beyond its time before it is killed."""
LEAST = 12
"""A part does not start with fewer seconds than a process and its first program take."""


@command()
def main(arguments: Sequence[str]) -> int | None:
    """Command line; returns the exit code."""
    names = [part.name for part in PARTS]
    parser = Parser("benchmarks.gpu", __doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for everything")
    add_json_file(parser)
    parser.add_argument("--record", action="store_true", help="enter kernels that were right into the user's records")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, on any machine, in this process")
    parser.add_argument(
        "--bring-up", action="store_true",
        help="climb from one tile to all cases, record what was right, and time it; run again to go on",
    )  # fmt: skip
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bring_up:
        from benchmarks.gpu.bring_up.run import bring_up, run_step

        if options.step is not None:
            return run_step(options.step, options.seconds, options.journal)
        return bring_up(options.seconds, options.dry_run)
    parts = [part for part in PARTS if part.name in options.only]
    if options.part is not None:
        (part,) = (part for part in PARTS if part.name == options.part)
        _run_part(part, Journal(part.name, options.seconds, options.journal))
        return 0
    began = time.monotonic()
    rows = _dry(parts) if options.dry_run else _in_processes(parts, options.seconds)
    result = _result(rows, options.dry_run, time.monotonic() - began)
    write_json(options.json, result)
    print(table(result))
    if options.record:
        try:
            print("recorded: " + (", ".join(add_records(verified(rows), result["device"])) or "nothing was right"))
        except ValueError as error:
            print(f"not recorded: {error}", file=sys.stderr)
            return 2
    return 1 if any(wrong(row) for row in rows) else 0


def wrong(row: dict[str, Any]) -> bool:
    """Whether something failed; a refusal with its reason, or a lack of time, is not a failure."""
    return "failed" in row or row.get("passed") is False or row["kind"] == "broken"


def _result(rows: list[dict[str, Any]], dry: bool, seconds: float) -> dict[str, Any]:
    nothing = {"device": "no device answered", "platform": "", "compute_capability": "", "count": 0, "versions": {}}
    device = next((row for row in rows if row["kind"] == "device"), nothing)
    rest = [row for row in rows if row["kind"] != "device"]
    found = [] if dry else targets(rest, device["device"])
    return {"device": device, "dry_run": dry, "seconds": seconds, "targets": found, "rows": rest}


def _run_part(part: Part, journal: Journal) -> None:
    from benchmarks.gpu.programs import device_row

    journal.add("device", **device_row())
    part.run(journal)


def _dry(parts: Sequence[Part]) -> list[dict[str, Any]]:
    rows = []
    for part in parts:
        journal = Journal(part.name, float("inf"), dry=True)
        _run_part(part, journal)
        rows += journal.rows
    return rows


def _in_processes(parts: Sequence[Part], seconds: float) -> list[dict[str, Any]]:
    """Rows of all parts, each in a process with its share of the time; errors are rows too."""
    end, rows = time.monotonic() + seconds, []
    scale = seconds / min(SECONDS, sum(part.seconds for part in parts))  # a single part gets all of the time
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            left = min(part.seconds * scale, end - time.monotonic())
            if left < LEAST:
                rows.append({"part": part.name, "kind": "skipped", "what": part.name, "why": "time budget"})
                continue
            print(f"{part.name}: at most {left:.0f} s", file=sys.stderr, flush=True)
            file = Path(folder) / f"{part.name}.jsonl"
            failure = _child(part, left, file, Path(folder) / "compiled")
            rows += read(file)
            if failure is not None:
                failure += f" at {case}" if (case := begun(read(file))) else ""
                rows.append({"part": part.name, "kind": "skipped", "what": f"the rest of {part.name}", "why": failure})
                rows.append({"part": part.name, "kind": "broken", "what": part.name, "why": failure})
    return rows


def _child(part: Part, seconds: float, file: Path, compiled: Path) -> str | None:
    """Run a part with the XLA flags of a run; returns why it did not finish.

    Programs that parts share are compiled once.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part.name, "--seconds", str(seconds)]
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            [*command, "--journal", str(file)], cwd=ROOT, env=environment(compiled, *part.flags()), stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return f"killed after {seconds + GRACE:.0f} s"
        if code == 0:
            return None
        output.seek(0)
        last = [line for line in output.read().splitlines() if line.strip()][-3:]
        return f"ended with {code}: {' | '.join(last)[-600:]}"


if __name__ == "__main__":
    sys.exit(main())
