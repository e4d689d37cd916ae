"""Processor time of each test and of the processes that it starts; a run ends with the sum and the slowest.

`--record-seconds` writes that of long and slow tests to `tests/seconds.json`, from which CI draws.
"""

import json
import resource
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.selection import SECONDS, SLOW, recorded_seconds

SLOWEST = 25


def used() -> float:
    """Processor seconds so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Spent:
    """The plugin: seconds of each test, from the workers to the report."""

    def __init__(self, config: pytest.Config):
        self.records: bool = config.getoption("--record-seconds")
        self.began = 0.0
        self.seconds: dict[str, float] = {}
        self.long: set[str] = set()
        """Ids of the tests whose time is recorded."""

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        self.began = used()
        return (yield)

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        try:
            return (yield)
        finally:
            rows_or_quick = item.get_closest_marker("matrix") or not item.get_closest_marker("long")
            least = SLOW if rows_or_quick else 0.0
            item.user_properties += [("seconds", used() - self.began), ("least", least)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            properties = dict(report.user_properties)
            self.seconds[report.nodeid] = properties["seconds"]
            if properties["seconds"] >= properties["least"]:
                self.long.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.records:
            now = {name: round(self.seconds[name], 1) for name in self.long}
            earlier = {name: took for name, took in recorded_seconds().items() if name not in self.seconds}
            known = {name: took for name, took in earlier.items() if Path(name.split("::")[0]).is_file()}
            SECONDS.write_text(json.dumps(known | now, indent=0, sort_keys=True) + "\n")
        if len(self.seconds) > SLOWEST:
            terminalreporter.write_line(f"{sum(self.seconds.values()):.0f} seconds of processors; the slowest tests:")
            for name in sorted(self.seconds, key=lambda name: -self.seconds[name])[:SLOWEST]:
                terminalreporter.write_line(f"{self.seconds[name]:6.1f}  {name}")
