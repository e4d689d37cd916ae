"""Whether a process does anything is seen from what it uses."""

import os
import time
from pathlib import Path

from jaxpar.distributed.activity import Activity


def asleep(found: Activity) -> float:
    """What `found` says after this process has slept a while, as its own tests do nothing else meanwhile."""
    time.sleep(0.5)
    return found.idle_s()


def test_a_process_that_sleeps_does_nothing():
    found = Activity()
    first = asleep(found)
    assert 0.4 < first < 5
    assert asleep(found) > first + 0.4, "the time adds up"


def test_a_process_that_computes_does_something():
    found = Activity()
    asleep(found)
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
    assert found.idle_s() == 0


def test_a_process_that_reads_does_something(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    found = Activity()
    asleep(found)
    with open(tmp_path / "file", "rb", buffering=0) as file:
        assert len(os.read(file.fileno(), 1 << 20)) == 1 << 20
    time.sleep(0.5)
    assert found.idle_s() == 0


def test_where_nobody_counts_bytes_no_process_is_reported_to_do_nothing(tmp_path: Path):
    assert asleep(Activity(tmp_path / "gone")) == 0
