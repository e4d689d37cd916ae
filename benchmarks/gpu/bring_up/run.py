"""Runs the steps of a bring-up one after the other, watches for hangs, records what was right, and prints the text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.gpu.bring_up.message import left, message
from benchmarks.gpu.bring_up.steps import ATTENTION_SPEEDS, STAGES, Step, is_left, is_over, step, trouble
from benchmarks.gpu.journal import Journal, begun, compiles, read
from benchmarks.gpu.processes import environment
from benchmarks.gpu.record import ALWAYS, add_records, drop_records, ratios, speeds
from jaxpar.config.errors import UserError
from pallas_kernels.verified import SOURCES, digest, user_file

ROOT = Path(__file__).parents[3]
HANG = 180
"""Seconds without a new row after which a process hangs."""
COMPILING = 400
"""The same while programs are compiled, eight side by side in a minute, each with a row: a slow machine is no hang."""
SANITIZING = 180
"""Seconds of a step under compute-sanitizer, which is slower by orders of magnitude: that it takes longer says nothing
of a kernel."""
LEAST = 30
"""A step does not start with fewer seconds left."""
POLL = 0.2


def bring_up(seconds: float, dry: bool = False) -> int:
    """Run the steps that are not over for `seconds`; returns the exit code: 1 where something was wrong."""
    end = time.monotonic() + seconds
    device = _device(dry)
    if device["platform"] != "gpu" and not dry:
        raise UserError(
            f"a bring-up needs an NVIDIA GPU, and JAX has {device['device']}: python -m jaxpar.doctor checks driver "
            "and packages, and --dry-run goes through a bring-up without a GPU"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dry.jsonl" if dry else journal_file(device)
        file.parent.mkdir(parents=True, exist_ok=True)
        _drop_half_a_row(file)
        recorded: list[str] = []
        for stage in STAGES:
            _go_through(stage, file, end, dry)
            recorded = _record(read(file), device, dry)
        rows = read(file)
        text = message(rows, device, recorded, dry)
        print(text)
        if not dry:
            file.with_suffix(".txt").write_text(text + "\n")
            print(f"\nThis text is in {file.with_suffix('.txt')}: please send it to us.")
        if more := left(rows):
            print(f"{len(more)} steps are left, from {more[0]!r} on: run the same command again.")
    return 1 if any(trouble(name, rows) for name in SOURCES) else 0


def _record(rows: list[dict[str, Any]], device: Mapping[str, Any], dry: bool) -> list[str]:
    """Record what has been right up to now, with its speed, and drop the records of what was not; returns the names."""
    recorded = [name for name in SOURCES if name not in ALWAYS and _all_over(name, rows)]
    if is_over(ATTENTION_SPEEDS, rows):
        recorded.append("attention/cudnn")
    if not dry:
        drop_records([name for name in SOURCES if trouble(name, rows)], device)
        add_records(recorded, device, found=speeds(rows, recorded) | ratios(rows))
    return recorded


def run_step(name: str, seconds: float, file: Path | None) -> int:
    """In the process of a step; returns 0 where it is over, and 3 where another run goes on with it."""
    one = step(name)
    journal = Journal(name, seconds, file, earlier=[] if file is None else read(file))
    over = one.run(journal)
    if over:
        journal.add("step", what=name)
    return 0 if over else 3


def journal_file(device: Mapping[str, Any]) -> Path:
    """Of this GPU, these versions and these sources: whatever changes, a bring-up begins anew."""
    what = [device["device"], device["processors"], device["toolchain"], *map(digest, SOURCES)]
    short = sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r"\W+", "-", device["device"]).lower()
    return user_file().parent / "bring_up" / f"{name}-{short}.jsonl"


def _device(dry: bool) -> dict[str, Any]:
    """What JAX sees, asked in a process that ends: this one must not hold the GPU's memory.

    Raises:
        UserError: JAX finds no device.
    """
    if dry:
        from benchmarks.gpu.programs import device_row

        return device_row()
    program = "import json; from benchmarks.gpu.programs import device_row; print(json.dumps(device_row()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        *_, last = done.stderr.splitlines() or [f"its process ended with {done.returncode}"]
        raise UserError(f"JAX finds no device: {last}; python -m jaxpar.doctor checks the driver and the packages")
    return json.loads(done.stdout.splitlines()[-1])


def _go_through(steps: tuple[Step, ...], file: Path, end: float, dry: bool) -> None:
    for one in steps:
        rows = read(file)
        if not is_left(one, rows):
            continue
        if dry:
            journal = Journal(one.name, float("inf"), file, dry=True, earlier=rows)
            if one.run(journal):
                journal.add("step", what=one.name)
            continue
        if end - time.monotonic() < LEAST:
            return
        print(f"{one.name}: at most {end - time.monotonic():.0f} s", file=sys.stderr, flush=True)
        watch(one, end - time.monotonic(), file)


def watch(one: Step, seconds: float, file: Path) -> None:
    """Run a step in its process; a hang or a crash becomes a row that names the case."""
    journal = Journal(one.name, seconds, file)
    command = [sys.executable, "-m", "benchmarks.gpu", "--bring-up", "--step", one.name, "--seconds", str(seconds - 10)]
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            [*command, "--journal", str(file)], cwd=ROOT, env=environment(file.parent / "compiled"), stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
        end, size, since, hang = time.monotonic() + seconds, -1, time.monotonic(), HANG
        while child.poll() is None:
            now, grown = time.monotonic(), file.stat().st_size if file.exists() else 0
            if grown != size:
                size, since = grown, now
                hang = SANITIZING if one.tool is not None else COMPILING if compiles(read(file)) else HANG
            if now - since > hang or now > end:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                if now - since > hang:
                    _drop_half_a_row(file)
                    _add_hang(journal, one, file, now - since)
                return
            time.sleep(POLL)
        if child.returncode not in (0, 3):
            output.seek(0)
            last = [line for line in output.read().splitlines() if line.strip()][-3:]
            why = f"ended with {child.returncode}: {' | '.join(last)[-600:]}"
            _drop_half_a_row(file)
            journal.add("crash", kernel=one.kernel, case=_case(file), why=why)


def _add_hang(journal: Journal, one: Step, file: Path, seconds: float) -> None:
    if one.tool is None:
        rows = read(file)
        journal.add("hang", kernel=one.kernel, case=_case(file), seconds=seconds, compiling=compiles(rows))
        return
    journal.add("sanitizer", kernel=one.kernel, tool=one.tool, skipped=f"it took more than {seconds:.0f} s")
    journal.add("step", what=one.name)


def _case(file: Path) -> str:
    return begun(read(file)) or "before its first case"


def _all_over(kernel: str, rows: list[dict[str, Any]]) -> bool:
    """Whether every step of a kernel but the sanitizer's is over and nothing was wrong, with a case at least that was
    not refused."""
    right = any(row["kind"] == "check" and row["kernel"] == kernel and row.get("passed") for row in rows)
    own = [one for stage in STAGES for one in stage if one.kernel == kernel and one.tool is None]
    return right and trouble(kernel, rows) is None and all(is_over(one, rows) for one in own)


def _drop_half_a_row(file: Path) -> None:
    """Remove what a killed process was writing, so that the next row begins on a line of its own."""
    if file.exists():
        text = file.read_text()
        file.write_text(text[: text.rfind("\n") + 1])
