"""Preparations that are killed (-9) at random moments and started again, until the folder is finished, again and again.

    python -m tests.data.prepare.killed FOLDER --kills 100 --seed 3 [--train-bpe]

makes a small input in FOLDER, prepares it once in peace, and then kills preparations until so many kills came in time.
Each time a folder is finished it must be the same, byte for byte, as the one that was made in peace. A preparation is a
process forked from this one, which has imported everything, so a kill costs a fraction of a second.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from jaxpar.data.prepare import Options, prepare
from tests.data.folders import contents, options, quiet, texts, write_jsonl
from tests.processes import finished, fork

UNITS = 40


def preparation_options(folder: Path, out: str, *, trained: bool) -> Options:
    """The options of a preparation of 40 units and some shards of text."""
    source = folder / "input.jsonl"
    if not source.exists():
        write_jsonl(source, texts(400))
    chosen = {"train_bpe": 290} if trained else {}
    unit_bytes = source.stat().st_size // UNITS
    return options(folder / out, source, unit_bytes=unit_bytes, shard_tokens=6000, **chosen)


def kill_at_random(asked: Options, draw: random.Random, longest_s: float) -> int:
    """Kill preparations of one folder, each within `longest_s`, until one finishes; how many were killed."""
    kills = 0
    while True:
        child = fork(lambda: prepare(asked, quiet()))
        time.sleep(draw.uniform(0, longest_s))
        os.kill(child, signal.SIGKILL)
        if finished(child):
            return kills
        kills += 1


def main(folder: Path, kills: int, seed: int, trained: bool) -> int:
    """Kill until so many kills came in time; how many folders were finished meanwhile."""
    draw = random.Random(seed)
    peaceful = preparation_options(folder, "peaceful/out", trained=trained)
    began = time.monotonic()
    assert finished(fork(lambda: prepare(peaceful, quiet())))
    needed = time.monotonic() - began
    wanted = contents(peaceful.out)
    killed = folders = 0
    while killed < kills:
        asked = preparation_options(folder, f"killed-{folders}/out", trained=trained)
        # From kills at the very beginning to kills near the end: each folder draws how patient its killer is.
        killed += kill_at_random(asked, draw, needed * draw.uniform(0.4, 1.3))
        assert contents(asked.out) == wanted, f"{asked.out} differs from {peaceful.out}"
        shutil.rmtree(asked.out)
        folders += 1
    print(f"{killed} kills, {folders} folders finished, all alike")
    return folders


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-bpe", action="store_true")
    given = parser.parse_args()
    sys.exit(0 if main(given.folder, given.kills, given.seed, given.train_bpe) else 1)
