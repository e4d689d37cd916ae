#!/usr/bin/env python3
"""Start one command as the several processes of a job, on this machine.

    python launch/local.py --processes 2 --devices-per-process 4 -- python -m jaxpar.train --config X

On a machine without GPUs (or with JAX_PLATFORMS=cpu) each process gets virtual CPU devices, and they talk over Gloo: a
real job of several hosts, but for the speed. With GPUs each process gets its share of those in
CUDA_VISIBLE_DEVICES, or of all.

Lines are printed with the number of their process (those about Gloo's connections are left out). Ctrl-C and SIGTERM go
to all processes; a second Ctrl-C kills them (exit code 130). When a process fails, the others have --grace seconds to
end by themselves and report why, and are then ended; the exit code is that of the first one that failed (128 + the
signal's number for one that was killed; a killed process takes precedence over those that failed in the same moment,
probably because of it).

The processes meet at 127.0.0.1. On a machine with untrusted users, JAXPAR_SECRET keeps their processes out; it is
passed to every process (docs/network.md).

Needs only Python.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO

COUNT_FLAG = "--xla_force_host_platform_device_count"
KILL_AFTER_S = 5.0
POLL_S = 0.05
PARENT_DIES = 1  # PR_SET_PDEATHSIG
CHATTER = (b"[Gloo] Rank", b"number of connected peer ranks is")  # its threads write into each other's lines
COLORS = ("36", "33", "35", "32", "34", "31")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit code, 2 for arguments that make none."""
    parser = argparse.ArgumentParser(
        prog="launch/local.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, required=True, help="how many")
    parser.add_argument("--devices-per-process", type=int, help="GPUs, or virtual CPU devices, of each")
    parser.add_argument("--grace", type=float, default=15.0, help="seconds for the others when one fails (default 15)")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="what to start, as often")
    options = parser.parse_args(arguments)
    if options.processes < 1 or (options.devices_per_process or 1) < 1:
        parser.error("--processes and --devices-per-process: expected at least 1")
    if shutil.which(options.command[0]) is None:
        parser.error(f"there is no program {options.command[0]!r}")
    try:
        environments = process_environments(dict(os.environ), options.processes, options.devices_per_process, gpus())
    except ValueError as error:
        parser.error(str(error))
    return Job(options.command, environments, options.grace).run()


def process_environments(
    environment: dict[str, str], processes: int, devices: int | None, gpu_names: Sequence[str]
) -> list[dict[str, str]]:
    """The environment of each process: who it is, and its devices.

    Raises:
        ValueError: there are not enough GPUs, or they do not divide among the processes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(processes)}
    made = [environment | job | {"JAX_PROCESS_ID": str(number)} for number in range(processes)]
    if not gpu_names:
        for own in made:
            own["JAX_PLATFORMS"] = "cpu"
            if devices is not None:
                others = re.sub(rf"{COUNT_FLAG}=\S*", "", own.get("XLA_FLAGS", "")).split()
                own["XLA_FLAGS"] = " ".join([*others, f"{COUNT_FLAG}={devices}"])
        return made
    each = len(gpu_names) // processes if devices is None else devices
    if each * processes > len(gpu_names) or (devices is None and len(gpu_names) % processes):
        raise ValueError(
            f"{processes} processes of {each or 'some'} GPUs each, and there are {len(gpu_names)} "
            "(JAX_PLATFORMS=cpu takes virtual CPU devices instead)"
        )
    for number, own in enumerate(made):
        own["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_names[number * each : (number + 1) * each])
    return made


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none where JAX_PLATFORMS is cpu."""
    if os.environ.get("JAX_PLATFORMS") == "cpu" or shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines()))]


class Job:
    """The processes, from their start to the end of the last one."""

    def __init__(self, command: Sequence[str], environments: Sequence[dict[str, str]], grace_s: float):
        self._grace_s = grace_s
        self._asked = 0
        self._killed_by_ctrl_c = False
        self._screen = threading.Lock()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._forward)
        self._processes = [
            subprocess.Popen(
                command,
                env=environment | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # The terminal's Ctrl-C would arrive twice.
                preexec_fn=_end_with_parent,  # Safe: no thread has been started.
            )
            for environment in environments
        ]
        self._readers = [
            threading.Thread(target=self._print, args=(number, source, target), daemon=True)
            for number, process in enumerate(self._processes)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        ]

    def run(self) -> int:
        """Wait for all, ending them when one fails; the exit code."""
        for reader in self._readers:
            reader.start()
        failed: int | None = None
        terminate_at = kill_at = float("inf")
        while any(process.poll() is None for process in self._processes):
            now = time.monotonic()
            if failed is None:
                failed = _first_failed([process.poll() for process in self._processes])
                if failed is not None:
                    terminate_at, kill_at = now + self._grace_s, now + self._grace_s + KILL_AFTER_S
                    if not self._asked:
                        self._report(f"process {failed} {_ending(self._processes[failed])}; ending the others")
            if now >= kill_at:
                self._send(signal.SIGKILL)
            elif now >= terminate_at:
                self._send(signal.SIGTERM)
                terminate_at = float("inf")
            time.sleep(POLL_S)
        for reader in self._readers:
            reader.join(KILL_AFTER_S)
        if failed is None:
            failed = _first_failed([process.returncode for process in self._processes])
            if failed is not None and not self._asked:
                self._report(f"process {failed} {_ending(self._processes[failed])}")
        if self._killed_by_ctrl_c:
            return 128 + signal.SIGINT
        code = 0 if failed is None else self._processes[failed].returncode
        return 128 - code if code < 0 else code

    def _forward(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._asked += 1
        self._killed_by_ctrl_c |= self._asked > 1 and number == signal.SIGINT
        self._send(signal.SIGKILL if self._killed_by_ctrl_c else number)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _print(self, number: int, source: IO[bytes], target: IO[str]) -> None:
        prefix = f"[{number}] "
        if target.isatty():
            prefix = f"\x1b[{COLORS[number % len(COLORS)]}m{prefix}\x1b[0m"
        for line in source:
            if any(words in line for words in CHATTER):
                continue
            with self._screen:
                target.write(prefix + line.decode(errors="replace").rstrip("\r\n") + "\n")
                target.flush()

    def _report(self, text: str) -> None:
        with self._screen:
            print(f"launch/local.py: {text}", file=sys.stderr, flush=True)


def _first_failed(codes: Sequence[int | None]) -> int | None:
    """Number of the process that the others ended for, of those that were found failed at once; None while none has."""
    failed = [number for number, code in enumerate(codes) if code]
    killed = [number for number in failed if codes[number] == -signal.SIGKILL]
    by_signal = [number for number in failed if (codes[number] or 0) < 0]
    return next(iter([*killed, *by_signal, *failed]), None)


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _end_with_parent() -> None:
    """In the child: a SIGTERM when the launcher itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
