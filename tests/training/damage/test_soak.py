"""Many steps with everything on: memory, arrays, threads and the time of a step stay what they were.

Two thousand in CI, twenty thousand before a release.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jaxpar.observe.writers.jsonl import read_metrics
from tests.processes import run_python

GROWTH = 24 * 2**20
"""Bytes that the process may grow by after the first fifth: losses for the picture, and an allocator's fragments."""
SLOWER = 1.5
"""How many times as long the quickest steps of the last fifth may take as those of the first."""


def soak(folder: Path, steps: int) -> list[dict[str, Any]]:
    """Run in `folder`; what was measured on the way."""
    done = run_python("-m", "tests.training.damage.soak", folder, "--steps", steps)
    assert done.returncode == 0, done.stderr[-5000:]
    measured = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"step"')]
    assert len(measured) == 25
    return measured


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "steps", [pytest.param(2_000, marks=pytest.mark.long), pytest.param(20_000, marks=pytest.mark.release)]
)
def test_a_long_run_stays_as_it_is(tmp_path: Path, steps: int):
    measured = soak(tmp_path, steps)
    assert_memory_is_flat(measured)
    assert_steps_take_as_long_at_the_end_as_at_the_start(measured)
    assert_the_files_are_those_that_are_promised(tmp_path / "run", steps)


def assert_memory_is_flat(measured: list[dict[str, Any]]):
    settled = measured[4:]
    grown = max(found["resident"] for found in settled) - settled[0]["resident"]
    assert grown < GROWTH, f"{grown / 2**20:.1f} MiB more"
    # A save in the background has arrays and threads of its own while it lasts.
    half = len(settled) // 2
    for kind in ("arrays", "threads", "files"):
        early, late = ([found[kind] for found in part] for part in (settled[:half], settled[half:]))
        assert min(late) <= min(early), kind
        assert max(late) <= max(max(early), 3 * min(early)), kind


def assert_steps_take_as_long_at_the_end_as_at_the_start(measured: list[dict[str, Any]]):
    """By the processor's clock: what a machine does besides must not count."""
    times = [later["processor_s"] - found["processor_s"] for found, later in pairwise(measured)]
    fifth = len(times) // 5
    assert min(times[-fifth:]) < SLOWER * min(times[:fifth])


def assert_the_files_are_those_that_are_promised(folder: Path, steps: int):
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        f"{steps * twentieths // 20:08d}" for twentieths in (10, 18, 19, 20)
    ]
    logged = [record["step"] for record in read_metrics(folder / "metrics.jsonl")]
    assert logged == [1, *range(10, steps + 1, 10)]
    names = {"config.yaml", "plan.json", "metrics.jsonl", "events.jsonl", "environment.json", "summary.json"}
    assert {path.name for path in folder.iterdir()} == names | {"loss.png", "tensorboard", "checkpoints"}
    assert len(list((folder / "tensorboard").iterdir())) == 1
    events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events.count("saved") == 20 and events[-1] == "close"
