"""What each test takes: seconds on the clock and of processors, and on what; a table by folder at the end of a run.

A processor's time is that of this process and of children that have ended. Tracing, lowering and compiling are the
clock's, as JAX's own events report them. `--spent FILE` writes a line of JSON for each test, `--record-seconds` the
processor time of long and slow tests to `tests/seconds.json`, from which CI draws (`tests/selection.py`).
"""

import json
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.selection import SECONDS, SLOW, recorded_seconds

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
COLUMNS = ("clock", "own", "children", *EVENTS.values())
SLOWEST = 25

type Row = dict[str, Any]


class Meter:
    """Reads what a test has taken, in the process that runs it."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.began = self._used()

    def listen(self) -> None:
        """Hear JAX's events from now on."""
        from jax._src import monitoring

        monitoring.register_event_time_span_listener(self.on_time_span)

    def on_time_span(self, event: str, start: float, end: float, **_: Any) -> None:
        """Note the span of one of `EVENTS`."""
        if event in EVENTS:
            self.spans[EVENTS[event]].append((start, end))

    def start(self) -> None:
        """A test begins."""
        self.spans.clear()
        self.began = self._used()

    def read(self) -> Row:
        """Seconds since the start, by column, and the process's memory now, in MiB."""
        used = [now - then for now, then in zip(self._used(), self.began, strict=True)]
        spans = [union(self.spans[name]) for name in EVENTS.values()]
        row = {name: round(value, 2) for name, value in zip(COLUMNS, [*used, *spans], strict=True)}
        return row | {"resident": resident_mib()}

    @staticmethod
    def _used() -> tuple[float, float, float]:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans: what is traced within what is traced counts once."""
    total, until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def resident_mib() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


class Spent:
    """The plugin: a row for each test, from the workers to the report."""

    def __init__(self, config: pytest.Config):
        self.rows: dict[str, Row] = {}
        self.file: str | None = config.getoption("--spent")
        self.records: bool = config.getoption("--record-seconds")
        self.long: set[str] = set()
        self.began = time.monotonic()
        self.meter: Meter | None = None

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        if self.meter is None:
            self.meter = Meter()
            self.meter.listen()
        self.meter.start()
        return (yield)

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        try:
            return (yield)
        finally:
            if self.meter is not None:
                item.user_properties.append(("spent", self.meter.read()))
                rows_or_quick = item.get_closest_marker("matrix") or not item.get_closest_marker("long")
                item.user_properties.append(("least", SLOW if rows_or_quick else 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            properties = dict(report.user_properties)
            self.rows[report.nodeid] = properties["spent"]
            if _work(properties["spent"]) >= properties["least"]:
                self.long.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.file is not None:
            lines = [json.dumps({"test": name} | row) + "\n" for name, row in self.rows.items()]
            Path(self.file).write_text("".join(lines))
        if self.records:
            now = {name: round(_work(self.rows[name]), 1) for name in self.long}
            known = {
                name: took
                for name, took in recorded_seconds().items()
                if name not in self.rows and Path(name.split("::")[0]).is_file()
            }
            SECONDS.write_text(json.dumps(known | now, indent=0, sort_keys=True) + "\n")
        if len(self.rows) > SLOWEST:
            for line in table(self.rows):
                terminalreporter.write_line(line)


def _work(row: Row) -> float:
    return row["own"] + row["children"]


def table(rows: dict[str, Row]) -> list[str]:
    """What folders took, and the slowest tests."""
    folders: dict[str, Row] = {}
    for name, row in rows.items():
        parts = name.split("::")[0].split("/")
        total = folders.setdefault("/".join(parts[:2]) if len(parts) > 2 else parts[0], dict.fromkeys(COLUMNS, 0.0))
        for column in COLUMNS:
            total[column] += row[column]
        total["tests"] = total.get("tests", 0) + 1
    lines = ["", f"{'seconds':28}{'tests':>7}" + "".join(f"{name:>10}" for name in COLUMNS)]
    everything = {c: sum(total[c] for total in folders.values()) for c in (*COLUMNS, "tests")}
    ordered = sorted(folders.items(), key=lambda each: -_work(each[1]))
    for name, total in [*ordered, ("all", everything)]:
        lines.append(f"{name:28}{total['tests']:7d}" + "".join(f"{total[c]:10.0f}" for c in COLUMNS))
    lines += ["", "slowest tests, seconds of processors:"]
    slowest = sorted(rows.items(), key=lambda each: -_work(each[1]))[:SLOWEST]
    lines += [f"{_work(row):6.1f}  {name}" for name, row in slowest]
    return [*lines, f"most memory of a worker: {max(row['resident'] for row in rows.values())} MiB"]
