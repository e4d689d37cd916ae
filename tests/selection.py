"""The tests of each level, and the part of them that a commit draws.

- `quick` (`make test`): tests without the marks `long` and `release` that took less than `SLOW` seconds when they were
  recorded, and of a matrix (`@pytest.mark.matrix(quick=2, ci=4)`, or by name: `quick=("ring",)`) the quick rows.
- `ci` (`make test-ci`, beside `make test` in `.ci/run`): whole files of the other tests in the order of the draw, as
  long as what they took (`tests/seconds.json`) fits in `--budget` seconds of processor time; and of an eighth of the
  matrices, or of all that are marked `always=True`, `ci` more rows.
- `all` (`make test-all`): everything, also what is marked `release`.

The seed of a draw is the commit's hash, or `--draw SEED`. In every draw are tests marked `long(always=True)`, those
without a recorded time, rows that are marked `long`, slow quick rows, and tests of `tests/passed_alone.txt`. Tests
that are asked for by their ids run, and with `--last-failed` those that failed.
"""

import hashlib
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

LEVELS = ("quick", "ci", "all")
LEDGER = Path(__file__).with_name("passed_alone.txt")
SECONDS = Path(__file__).with_name("seconds.json")
BUDGET = 300.0
"""Seconds of processor time for the long tests of one commit, on the machine that recorded `tests/seconds.json`."""
SLOW = 2.5
"""Seconds of processor time, compilation included, from which on a test is long."""
ONE_OF = 8
"""Number of matrices among which one has its turn with a commit."""


def add_options(parser: pytest.Parser) -> None:
    """`--level`, `--draw` and `--budget`."""
    group = parser.getgroup("jaxpar", "which tests run")
    group.addoption("--level", choices=LEVELS, default="quick", help="quick: before a commit; ci: the rest; all")
    group.addoption("--draw", metavar="SEED", help="seed of what is drawn (default: the commit's hash)")
    help = f"processor time of the long tests that level ci draws, in seconds (default: {BUDGET:.0f})"
    group.addoption("--budget", metavar="SECONDS", type=float, default=BUDGET, help=help)


def commits_hash() -> str:
    """Hash of the commit that is checked out; "no git" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()[:12]
    except (OSError, subprocess.CalledProcessError):
        return "no git"


def rank(name: object, seed: str) -> int:
    """The place of a name in the order of a draw."""
    return int(hashlib.sha256(f"{seed} {name}".encode()).hexdigest(), 16)


def drawn(rows: Sequence[str], count: int, seed: str) -> list[str]:
    """`count` of `rows`, in their own order: tests with the same rows draw the same ones, and share programs."""
    chosen = set(sorted(rows, key=lambda row: rank(row, seed))[:count])
    return [row for row in rows if row in chosen]


def has_its_turn(rows: Iterable[str], seed: str) -> bool:
    """Whether the matrices with these `rows` are drawn with `seed`."""
    return rank(sorted(rows), seed) % ONE_OF == 0


def recorded_seconds() -> dict[str, float]:
    """Processor time of each long test by its id, as `--record-seconds` wrote it."""
    return json.loads(SECONDS.read_text())


class Selection:
    """The plugin: leaves out what a level does not run."""

    def __init__(self, config: pytest.Config):
        self.level: str = config.getoption("--level")
        self.seed: str = config.getoption("--draw") or commits_hash()
        self.budget: float = config.getoption("--budget")
        self.asked = [Path(argument.split("::")[0]).name for argument in config.args if "::" in argument]
        self.filtered = bool(config.option.keyword or config.option.markexpr or config.option.deselect)
        self.recorded = recorded_seconds()
        self.failed = {line.partition(" ")[2] for line in LEDGER.read_text().splitlines()}
        """Ids of tests that failed and passed alone."""
        self.collected: set[str] = set()
        """Ids of all collected tests, those of other levels too."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.collected = {item.nodeid for item in items}
        again = config.cache.get("cache/lastfailed", {}) if config.getoption("lf", default=False) else {}
        chosen = {item for item in items if item.nodeid in again} or self.chosen(items)
        if left := [item for item in items if item not in chosen]:
            items[:] = [item for item in items if item in chosen]
            config.hook.pytest_deselected(items=left)

    def chosen(self, items: Sequence[pytest.Item]) -> set[pytest.Item]:
        """The tests that this level runs."""
        if self.level == "all":
            return set(items)
        matrices, files = defaultdict[str, list[pytest.Item]](list), defaultdict[str, list[pytest.Item]](list)
        chosen = set[pytest.Item]()
        for item in items:
            long = item.get_closest_marker("long")
            assert long is None or (set(long.kwargs) <= {"always"} and not long.args)
            if item.path.name in self.asked:
                chosen.add(item)
            elif item.get_closest_marker("matrix"):
                matrices[item.nodeid.split("[")[0]].append(item)
            elif item.get_closest_marker("release"):
                continue
            elif not long and not self._slow(item):
                chosen |= {item} if self.level == "quick" else set()
            elif (long and long.kwargs.get("always")) or self._always(item):
                files[""].append(item)
            else:
                files[item.nodeid.partition("::")[0]].append(item)
        for rows in matrices.values():
            chosen |= self._rows(rows)
        left = self.budget
        for file in sorted(files, key=lambda file: (file != "", rank(file, self.seed))) if self.level == "ci" else ():
            cost = sum(self.recorded.get(item.nodeid, 0.0) for item in files[file])
            if cost <= left or file == "":
                chosen |= {*files[file]}
                left -= cost
        return chosen

    def _slow(self, item: pytest.Item) -> bool:
        return self.recorded.get(item.nodeid, 0.0) >= SLOW

    def _always(self, item: pytest.Item) -> bool:
        return item.nodeid not in self.recorded or item.nodeid in self.failed

    def _rows(self, rows: list[pytest.Item]) -> set[pytest.Item]:
        """The rows of a matrix that this level runs."""
        marker = rows[0].get_closest_marker("matrix")
        assert marker is not None and set(marker.kwargs) <= {"quick", "ci", "always"} and not marker.args
        named = {row.nodeid.partition("[")[2].removesuffix("]"): row for row in rows}
        quick = marker.kwargs.get("quick", 0)
        quick = drawn(list(named), quick, "quick") if isinstance(quick, int) else quick
        assert self.filtered or set(quick) <= named.keys(), f"{rows[0].nodeid}: no case is named {quick}"
        quick = {named[name] for name in quick if name in named}
        if self.level == "quick":
            return {row for row in quick if not self._slow(row)}
        others = {name: row for name, row in named.items() if row not in quick}
        always = {row for row in others.values() if row.nodeid in self.failed or _marked_long(row)}
        turn = self.filtered or marker.kwargs.get("always") or has_its_turn(named, self.seed)
        names = drawn(
            [name for name, row in others.items() if row not in always], marker.kwargs.get("ci", 0), self.seed
        )
        return always | {row for row in quick if self._slow(row)} | {others[name] for name in names if turn}

    def before(self) -> str:
        """The work that a run is about to do."""
        what = {
            "quick": "all but long tests, and a few rows of each matrix; `make test-all` runs everything",
            "ci": f"long tests for {self.budget:.0f} s of processor time, and other rows of some matrices; drawn by "
            f"{self.seed} (to repeat them: --draw {self.seed!r})",
            "all": "every test",
        }[self.level]
        return f"level {self.level}: {what}"


def _marked_long(row: pytest.Item) -> bool:
    """Whether a row is marked itself, and not by its file."""
    return any(mark.name == "long" for mark in row.own_markers)
