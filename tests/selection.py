"""Which tests run when: three levels, and rows of matrices drawn by the commit.

- `quick` (`make test`): all but `long` and `release` ones; of a matrix a fixed few rows. What took `SLOW` seconds when
  it was recorded is not quick, whatever its marks: a test is long then, and a row runs in `ci`.
- `ci` (`make test-ci`, beside `make test` in `.ci/run`): files of `long` tests and other rows of a fifth of the
  matrices, drawn; and of all matrices the fixed rows that are too slow for `quick`.
- `all` (`make test-all`): everything, the `release` ones too.

A test whose cases are rows of a matrix says `@pytest.mark.matrix(quick=2, ci=4)`, or names the quick ones:
`quick=("ring",)`; with `always=True` it has its turn with every commit. Of the files with `long` tests, CI takes one
after another in the order of the draw, as long as what they take (`tests/seconds.json`) fits in `--budget` seconds of
processor time: so CI takes as long whatever is added. The draw is a function of a seed, the commit's hash by default,
so that each commit tries others and anyone can repeat it: `--draw SEED`. These run in every draw: long tests marked
`long(always=True)`, those without a recorded time, rows of a matrix that are `long`, and what `tests/fixed_rows.txt`
names (tests that failed, until they are mended). Tests asked for by their ids run, and with `--last-failed` those
that failed.
"""

import hashlib
import json
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

LEVELS = ("quick", "ci", "all")
FIXED = Path(__file__).with_name("fixed_rows.txt")
SECONDS = Path(__file__).with_name("seconds.json")
BUDGET = 320.0
"""Seconds of processor time for the long tests of one commit, on the machine that recorded `tests/seconds.json`."""
QUICK_SEED = "quick"
SLOW = 2.5
"""Seconds of processor time, compilation included, from which on a test is long."""
ONE_OF = 5
"""Of how many matrices one has its turn with a commit: `ci` of its rows run beyond the quick ones."""
RELEASES, LONG, ROWS, OTHERS = "that take minutes each", "that are long", "rows of matrices", "that other commits draw"


def add_options(parser: pytest.Parser) -> None:
    """`--level` and `--draw`."""
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


def drawn(rows: Sequence[str], count: int, seed: str) -> list[str]:
    """`count` of `rows` as `seed` has them, in their own order; all if there are no more.

    Tests that have the same rows draw the same ones, and so share what is compiled for them.
    """
    rank = lambda row: hashlib.sha256(f"{seed} {row}".encode()).digest()
    chosen = set(sorted(rows, key=rank)[:count])
    return [row for row in rows if row in chosen]


def has_its_turn(rows: Sequence[str], seed: str) -> bool:
    """Whether rows of the matrix with these `rows` are drawn with `seed`: so are those of tests with the same ones."""
    return int(hashlib.sha256(f"{seed} {sorted(rows)}".encode()).hexdigest(), 16) % ONE_OF == 0


def recorded_seconds() -> dict[str, float]:
    """Processor time of each long test by its id, as `--record-seconds` wrote it."""
    return json.loads(SECONDS.read_text())


def affordable(costs: Mapping[str, float], budget: float, seed: str) -> set[str]:
    """What fits in `budget` when items are taken in the order of `seed`; one that does not fit is passed over."""
    chosen, left = set(), budget
    for name in sorted(costs, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()):
        if costs[name] <= left:
            chosen.add(name)
            left -= costs[name]
    return chosen


def case_of(item: pytest.Item) -> str:
    """The id of a test's case: what stands in brackets."""
    return item.nodeid.partition("[")[2].removesuffix("]")


def fixed_rows() -> set[str]:
    """Ids of the rows that run in every draw."""
    lines = FIXED.read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


class Selection:
    """The plugin: leaves out what a level does not run, and says so."""

    def __init__(self, config: pytest.Config):
        self.level: str = config.getoption("--level")
        self.seed: str = config.getoption("--draw") or commits_hash()
        self.budget: float = config.getoption("--budget")
        self.asked = [Path(argument.split("::")[0]).name for argument in config.args if "::" in argument]
        self.filtered = bool(config.option.keyword or config.option.markexpr or config.option.deselect)
        self.left: dict[str, int] = {}
        self.collected: set[str] = set()
        """Ids of all tests that were found, those of other levels too."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.collected = {item.nodeid for item in items}
        again = config.cache.get("cache/lastfailed", {}) if config.getoption("lf", default=False) else {}
        kept = {item for item in items if item.nodeid in again} or self.kept(items)
        left = [item for item in items if item not in kept]
        items[:] = [item for item in items if item in kept]
        if left:
            config.hook.pytest_deselected(items=left)

    def kept(self, items: Sequence[pytest.Item]) -> set[pytest.Item]:
        """What this level runs."""
        if self.level == "all":
            return set(items)
        recorded = recorded_seconds()
        matrices: dict[str, list[pytest.Item]] = defaultdict(list)
        long: list[pytest.Item] = []
        kept, left = set(), defaultdict(int)
        for item in items:
            if item.path.name in self.asked:
                kept.add(item)
            elif item.get_closest_marker("matrix"):
                matrices[item.nodeid.split("[")[0]].append(item)
            elif item.get_closest_marker("release"):
                left[RELEASES] += 1
            elif item.get_closest_marker("long") or recorded.get(item.nodeid, 0.0) >= SLOW:
                long.append(item)
            elif self.level == "quick":
                kept.add(item)
        if self.level == "quick":
            left[LONG] = len(long)
        else:
            kept |= (turn := self._long(long))
            left[OTHERS] = len(long) - len(turn)
        for rows in matrices.values():
            chosen = self._rows(rows, recorded)
            kept |= set(chosen)
            left[ROWS] += len(rows) - len(chosen)
        self.left = {what: number for what, number in left.items() if number}
        return kept

    def _long(self, items: list[pytest.Item]) -> set[pytest.Item]:
        """The long tests that this commit runs: those that always run, and whole files in the order of the draw."""
        recorded, fixed = recorded_seconds(), fixed_rows()
        always, files = set(), defaultdict[str, list[pytest.Item]](list)
        for item in items:
            marker = item.get_closest_marker("long")
            assert marker is None or (set(marker.kwargs) <= {"always"} and not marker.args)
            if (
                (marker is not None and marker.kwargs.get("always"))
                or item.nodeid not in recorded
                or item.nodeid in fixed
            ):
                always.add(item)
            else:
                files[item.nodeid.partition("::")[0]].append(item)
        costs = {file: sum(recorded[item.nodeid] for item in each) for file, each in files.items()}
        spent = sum(recorded.get(item.nodeid, 0.0) for item in always)
        chosen = affordable(costs, self.budget - spent, self.seed)
        return always | {item for file in chosen for item in files[file]}

    def _rows(self, rows: list[pytest.Item], recorded: Mapping[str, float]) -> list[pytest.Item]:
        marker = rows[0].get_closest_marker("matrix")
        assert marker is not None and set(marker.kwargs) <= {"quick", "ci", "always"} and not marker.args
        named, asked = {case_of(row): row for row in rows}, marker.kwargs.get("quick", 0)
        quick = drawn(list(named), asked, QUICK_SEED) if isinstance(asked, int) else asked
        assert self.filtered or set(quick) <= named.keys(), f"{rows[0].nodeid}: no case is named {quick}"
        slow = {name for name in quick if name in named and recorded.get(named[name].nodeid, 0.0) >= SLOW}
        if self.level == "quick":
            return [named[name] for name in quick if name in named and name not in slow]
        others = [name for name in named if name not in quick]
        marked = lambda row: any(mark.name == "long" for mark in row.own_markers)  # not by its file
        always = {name for name in others if named[name].nodeid in fixed_rows() or marked(named[name])}
        turn = self.filtered or marker.kwargs.get("always") or has_its_turn(list(named), self.seed)
        number = marker.kwargs.get("ci", 0) if turn else 0
        chosen = always | set(drawn([n for n in others if n not in always], number, self.seed))
        return [named[name] for name in named if name in chosen | slow]

    def before(self) -> str:
        """What a run is about to do."""
        rows = "" if self.level != "ci" else f"; drawn by {self.seed} (to repeat them: --draw {self.seed!r})"
        what = {
            "quick": "all but long tests, and a few rows of each matrix",
            "ci": f"long tests for {self.budget:.0f} s of processor time, and other rows of some matrices",
            "all": "every test",
        }[self.level]
        return f"level {self.level}: {what}{rows}"

    def after(self) -> str | None:
        """What was not run, and how to run it."""
        if not self.left:
            return None
        numbers = ", ".join(f"{number} {what}" for what, number in self.left.items())
        how = "`make test-ci` draws long ones and rows, " if self.level == "quick" else ""
        return f"not run: {numbers}; {how}`make test-all` runs everything"
