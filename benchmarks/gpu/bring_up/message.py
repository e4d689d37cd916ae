"""The text of a bring-up that a user can send: what was right, what was not, and how fast it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.bring_up.ladder import KERNELS, RUNGS
from benchmarks.gpu.bring_up.steps import STAGES, is_left, refused, trouble
from benchmarks.gpu.record import new_records, ratios, speeds
from benchmarks.gpu.report import table
from benchmarks.gpu.targets import targets

Rows = Sequence[Mapping[str, Any]]


def message(rows: Rows, device: Mapping[str, Any], recorded: Sequence[str], dry: bool = False) -> str:
    """Everything that the maintainers need: the device, each kernel's place on the ladder, records and speeds."""
    toolchain = ", ".join(f"{name} {number}" for name, number in device["toolchain"].items())
    lines = [f"jaxpar bring-up on {device['device']}, {device['processors']} multiprocessors; {toolchain}"]
    for one in KERNELS:
        lines += [f"{one.name:32}{_state(one.name, rows)}"]
    lines += [f"  {line}" for row in rows if (line := _line(row))]
    kinds = "attention", "grouped", "tiled", "linear_attention"
    measured = [dict(row) for row in rows if row["kind"] in kinds]
    if measured:
        result = {
            "device": device, "dry_run": dry, "rows": measured,
            "targets": [] if dry else targets(measured, device["device"]),
            "seconds": sum(row.get("seconds", 0.0) for row in measured),
        }  # fmt: skip
        lines += ["", table(result)]
    if recorded and device["platform"] == "gpu":
        lines += [
            "",
            "Records, for pallas_kernels/verified.json:",
            json.dumps(new_records(recorded, device, speeds(rows, recorded) | ratios(rows))),
        ]
    return "\n".join(lines)


def left(rows: Rows) -> list[str]:
    """Names of the steps that another run goes on with."""
    return [one.name for stage in STAGES for one in stage if is_left(one, rows)]


def _state(kernel: str, rows: Rows) -> str:
    if (reason := refused(kernel, rows)) is not None:
        return f"refused: {reason}"
    wrong = trouble(kernel, rows)
    over = [rung for rung in RUNGS if any(row["kind"] == "step" and row["what"] == f"{kernel}, {rung}" for row in rows)]
    reached = f"right up to: {over[-1]}" if over else "no rung is over"
    if wrong is None:
        return reached
    return f"{wrong['kind'].upper()} at {wrong.get('case', wrong['part'])} ({wrong['part']}); {reached}"


def _line(row: Mapping[str, Any]) -> str | None:
    """Of what is wrong, of launches, and of the sanitizer; None for what is in a table or as it should be."""
    head = f"{row['part']}: "
    match row["kind"]:
        case "check" if row.get("passed") is False:
            return f"{head}{row['case']}: WRONG: errors {row['errors']}, allowed {row['allowed']}"
        case "check" if "failed" in row:
            return f"{head}{row['case']}: FAILED: {row['failed']}"
        case "hang":
            what = "not compiled in" if row["compiling"] else "nothing for"
            return f"{head}{row['case']}: HANG: {what} {row['seconds']:.0f} s"
        case "crash":
            return f"{head}{row['case']}: CRASH: {row['why']}"
        case "launches":
            verdict = "the same bits" if row["passed"] else f"OTHER BITS in {row['differed']}"
            but = f" (but for {', '.join(row['varies'])})" if row["varies"] else ""
            return f"{head}{row['launches']} launches of {row['case']}: {verdict}{but}"
        case "sanitizer":
            if "skipped" in row:
                return f"{head}skipped ({row['skipped']})"
            found = "nothing found" if row["passed"] else "FOUND: " + " | ".join(row["reported"])
            return head + found + (f" (elsewhere: {' | '.join(others)})" if (others := row.get("elsewhere")) else "")
    return None
