"""compute-sanitizer: where it is, how it is asked about some kernels of a process, and what it reports of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

PROGRAM = "compute-sanitizer"
TOOLS = ("racecheck", "synccheck")
FOUND = 86
"""Exit code that it is asked to end with where it found an error."""
_LIMIT = 50
"""Reports of a run. Ours must be among them if the filter is ignored, as it is where a version does not read it."""
_KEPT = 20
"""Lines of reports in a row of the journal."""


def found_at() -> str | None:
    """The program: on PATH, or in the folder of CUDA that CUDA_HOME names, or in CUDA's usual one."""
    home = os.environ.get("CUDA_HOME")
    folders = [*([f"{home}/bin", f"{home}/compute-sanitizer"] if home else []), "/usr/local/cuda/bin"]
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=os.pathsep.join(folders))


def sanitized(program: str, tool: str, kernels: Sequence[str], step: Sequence[str]) -> dict[str, Any]:
    """Of the command `step` under a tool: `passed`, and what was reported of `kernels`, the parts of names of which
    alone are checked, and `elsewhere`; `skipped` with the reason where it did not run to its end."""
    names = ",".join(f"kns={name}" for name in kernels)
    asked = [program, "--tool", tool, "--kernel-name", names, "--error-exitcode", str(FOUND)]
    done = subprocess.run(
        [*asked, "--print-limit", str(_LIMIT), *step], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    if done.returncode not in (0, FOUND):
        said = " | ".join((lines or done.stdout.splitlines())[-2:])[-300:]
        return {"skipped": f"it ended with {done.returncode}: {said}"}
    ours, others = _reports(lines, kernels)
    # An error without a report that names a kernel is held against ours: nothing else is checked.
    wrong = done.returncode == FOUND and bool(ours or not others)
    found = {"passed": not wrong, "reported": (ours or lines if wrong else [])[:_KEPT]}
    return found | ({"elsewhere": others[:_KEPT]} if others else {})


def _reports(lines: Sequence[str], kernels: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines of reports that name one of these kernels, and of those that name others alone."""
    ours: list[str] = []
    others: list[str] = []
    report: list[str] = []
    for line in [*lines, "========="]:
        text = line.removeprefix("=========")
        continues = re.match(r"\s{2,}\S|\s+and ", text) is not None
        if report and not continues:
            named = any(name in one for one in report for name in kernels if "Host Frame" not in one)
            (ours if named else others).extend(report)
            report = []
        if (continues and report) or _begins(text):
            report.append(line)
    return ours, others


def _begins(text: str) -> bool:
    """Whether a report begins with this: not what the tool says of itself, nor its last line."""
    return (
        bool(text.strip()) and not text.startswith("  ") and "COMPUTE-SANITIZER" not in text and "SUMMARY" not in text
    )
