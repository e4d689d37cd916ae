"""Programs of a part: compiled side by side, timed in turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from importlib.metadata import version
from typing import Any

import jax

from benchmarks.gpu.journal import Journal
from benchmarks.turns import take_turns
from pallas_kernels import toolchain
from pallas_kernels.choice import Unsupported

THREADS = 8
"""Compilations at a time."""
TURN_SECONDS = 0.02
"""Seconds that a turn fills with calls of its program, so that dispatch and the timer's resolution matter little."""

type Lowered = Callable[[], Any]
"""Traces and lowers a program: in the caller's thread, one after the other."""


def compile_all(journal: Journal, what: str, programs: Mapping[Any, Lowered]) -> dict[Any, Any]:
    """Each program of `what` compiled, or the exception that it raised in tracing or compiling.

    The journal has a row for each that is lowered or compiled, and `what` begins again after the last."""
    found: dict[Any, Any] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: dict[Future[Any], Any] = {}
        for name, lower in programs.items():
            journal.compiling(what)
            try:
                waiting[pool.submit(lower().compile)] = name
            except Exception as error:  # a benchmark reports what does not trace, and continues
                found[name] = error
        for future in as_completed(waiting):
            journal.compiling(what)
            error = future.exception()
            found[waiting[future]] = future.result() if error is None else error
    journal.begin(what)
    return {name: found[name] for name in programs}


def sentence(error: BaseException) -> str:
    """The first line of an exception, for a row."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def why_not(error: BaseException) -> dict[str, str]:
    """`refused` with its reasons where a registry refused it, else `failed`."""
    if isinstance(error, Unsupported):
        return {"refused": "; ".join(error.refused.values())}
    return {"failed": sentence(error)}


def seconds_of(programs: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, dict[str, float]]:
    """Median, lowest and highest seconds of each program, over rounds in which all take a turn."""
    calls = {}
    for name, program in programs.items():
        jax.block_until_ready(program())
        start = time.perf_counter()
        jax.block_until_ready(program())
        calls[name] = max(1, min(100, round(TURN_SECONDS / (time.perf_counter() - start + 1e-9))))

    def turn(name: Any) -> Callable[[], Any]:
        def run() -> Any:
            result = None
            for _ in range(calls[name]):
                result = programs[name]()
            return result

        return run

    times = take_turns({name: turn(name) for name in programs}, rounds)["wall"]
    found = {}
    for name, values in times.items():
        each = [value / calls[name] for value in values]
        found[name] = {"seconds": statistics.median(each), "lowest": min(each), "highest": max(each)}
    return found


def device_row() -> dict[str, Any]:
    """The device, versions (those of `toolchain` go into a record), and XLA's flags."""
    device = jax.devices()[0]
    versions = {"jax": jax.__version__, "jaxlib": version("jaxlib")}
    backend = getattr(device, "client", None)
    versions |= {"cuda": platform_version(backend)} if device.platform == "gpu" else {}
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "compute_capability": str(getattr(device, "compute_capability", "")),
        "processors": device.core_count if device.platform == "gpu" else 0,
        "count": jax.device_count(),
        "versions": versions,
        "toolchain": dict(toolchain.versions()),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def platform_version(client: Any) -> str:
    """The plugin's CUDA version, in a line."""
    return " ".join(str(getattr(client, "platform_version", "unknown")).split())


def timed_ways(
    journal: Journal, part: str, row: Mapping[str, Any], paths: Mapping[str, Mapping[str, Callable[..., Any]]],
    arrays: Sequence[Any],
) -> Iterator[tuple[str, str, dict[str, float]]]:  # fmt: skip
    """(name, way, seconds) of functions of `arrays`, by name and way; those of a way take turns.

    What does not compile or run is a row of `part` in the journal, with its reason.
    """
    ready: dict[str, dict[str, Any]] = {}
    lowered = {
        (name, way): (lambda function=function: jax.jit(function).lower(*arrays))
        for name, ways in paths.items()
        for way, function in ways.items()
    }
    for (name, way), compiled in compile_all(journal, row["case"], lowered).items():
        if isinstance(compiled, Exception):
            journal.add(part, **row, by=name, way=way, **why_not(compiled))
            continue
        call = lambda compiled=compiled: compiled(*arrays)
        try:
            jax.block_until_ready(call())
        except Exception as error:  # reported in the table; the others are still timed
            journal.add(part, **row, by=name, way=way, **why_not(error))
            continue
        ready.setdefault(way, {})[name] = call
    for way, calls in ready.items():
        for name, seconds in seconds_of(calls, 2 if journal.dry else 7).items():
            yield name, way, seconds
