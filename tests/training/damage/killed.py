"""Runs that are killed (-9) at random moments and started again, until they end, again and again.

    python -m tests.training.damage.killed FOLDER --kills 100 --seed 3

trains a tiny model in FOLDER once in peace, and then kills runs of it until so many kills came in time. Where a kill
falls is drawn: while the process starts, in a step, while it evaluates, or while it saves, and some time after that.
Each start must go on behind the newest complete checkpoint, each run that came to its end must have logged the losses
of the one that was left in peace, each step once, and must end with its weights and optimizer state, bit for bit.

A run is a process forked from this one, which has imported everything but has touched no device yet.
"""

import argparse
import hashlib
import mmap
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.checkpoint import folders, manifest
from jaxpar.checkpoint.errors import Damage
from jaxpar.config import Config
from jaxpar.distributed import liveness
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.summary import SummaryFile
from jaxpar.observe.writers.tensorboard import TensorBoard
from jaxpar.training.run.loop import fit
from jaxpar.training.run.run import Run
from tests.patience import seconds
from tests.processes import finished, fork
from tests.training.runs import folder_of, losses, run_config

STEPS = 48
PLACES = {"starting": "", "in a step": "in step ", "evaluating": "evaluating ", "saving": "saving "}
"""What a kill is aimed at, and how that begins in the words of the loop; starting has no words."""
STARTING_S, AFTER_S = 2.0, 0.03
"""Longest time from the start, and from the moment that was aimed at, to the kill."""
PATIENCE_S = seconds(300)


class Board:
    """A page of memory on which a run writes where it is and what its first step was, for the process that kills it."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 256)
        self._first = 0

    def write(self, where: str) -> None:
        """Receives the activity that `liveness.report_activity` gets; the run is now there."""
        if not self._first and (step := re.match(r"in step (\d+)$", where)):
            self._first = int(step[1])
        self._page[:] = f"{self._first}:{where}".encode()[:256].ljust(256, b"\0")

    def read(self) -> tuple[int, str]:
        """The first step, 0 before there is one, and where the run is."""
        first, _, where = bytes(self._page[:]).rstrip(b"\0").decode().partition(":")
        return int(first), where


@dataclass
class Tally:
    """What has happened so far."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by what they hit: the words of the loop without numbers."""
    half_written: int = 0
    """Kills that left a checkpoint in the making behind."""
    starts: int = 0
    """Starts of which the first step was seen to be the right one."""
    runs: int = 0


def config_in(folder: Path) -> Config:
    return run_config(
        folder,
        STEPS,
        model={"layers": 1, "embed": 8, "heads": 2, "kv_heads": 2, "mlp": 8, "vocab": 16, "vocab_multiple": 1},
        data={"sequence_length": 8, "batch_size": 4},
        evaluation={"every": 4, "batches": 1},
        checkpoint={"every": 3, "keep_last": 2},
    )


def start(config: Config, board: Board) -> int:
    """Begin or go on with a run in a process of its own; its process id."""
    board.write("starting")

    def work() -> None:
        liveness.report_activity = lambda where, **_: board.write(where)
        trainer = Run(config)
        fit(trainer, [JsonLines(), EventLog(), TensorBoard(), SummaryFile()])
        (folder_of(config).parent / "state").write_text(digest_of(trainer.state))

    return fork(work)


def digest_of(state: Any) -> str:
    """Of every bit of the weights and the optimizer's state, by name."""
    found = hashlib.blake2b()
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(state)):
        found.update(jax.tree_util.keystr(path).encode() + np.asarray(leaf).tobytes())
    return found.hexdigest()


def newest_complete(config: Config) -> int:
    """Step of the newest checkpoint of which every byte is right; 0 for none."""
    checkpoints = folder_of(config) / "checkpoints"
    for step in reversed(folders.listed_steps(checkpoints)):
        try:
            manifest.verify(folders.step_folder(checkpoints, step))
        except Damage:
            continue
        return step
    return 0


def wait_until(board: Board, child: int, words: str, times: int) -> None:
    """Wait until the run was seen so many times at a place that begins with `words`, or has ended."""
    deadline, last = time.monotonic() + PATIENCE_S, ""
    while times > 0 and not _has_ended(child):
        assert time.monotonic() < deadline, f"the run does not get on: {last}"
        _, where = board.read()
        times -= where != last and where.startswith(words)
        last = where
        time.sleep(0.0005)


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def half_written(config: Config) -> set[int]:
    """The checkpoints without a manifest, by their inodes: a later one of the same step is another one."""
    checkpoints = folder_of(config) / "checkpoints"
    found = [folders.step_folder(checkpoints, step) for step in folders.listed_steps(checkpoints)]
    return {path.stat().st_ino for path in found if not (path / manifest.MANIFEST).exists()}


def kill_until_finished(config: Config, draw: random.Random, tally: Tally, kills: int) -> None:
    """Kill and start one run again and again, until it ends before the kill, or there were enough kills."""
    while True:
        board, newest, before = Board(), newest_complete(config), half_written(config)
        child = start(config, board)
        if sum(tally.kills.values()) < kills:
            place = draw.choices(list(PLACES), weights=[1, 3, 3, 3])[0]
            if place == "starting":
                time.sleep(draw.uniform(0, STARTING_S))
            else:
                wait_until(board, child, PLACES[place], draw.randint(1, 3))
                time.sleep(draw.uniform(0, AFTER_S) * draw.random())
            os.kill(child, signal.SIGKILL)
        ended = finished(child)
        first, where = board.read()
        if first:
            assert first == newest + 1, f"the run went on with step {first}, and that of {newest} was complete"
            tally.starts += 1
        if ended:
            return
        tally.kills[re.sub(r" \d+", "", where)] += 1
        tally.half_written += bool(half_written(config) - before)


def check(config: Config, peaceful: Config) -> None:
    """The run is the one that was left in peace, and so is what its last checkpoint holds."""
    found = losses(config)
    assert list(found) == list(range(1, STEPS + 1)) and found == losses(peaceful)
    kept = [path.name for path in (folder_of(config) / "checkpoints").iterdir() if ".broken-" not in path.name]
    assert sorted(kept) == ["00000045", "00000048"]
    files = [path.relative_to(folder_of(config)) for path in folder_of(config).rglob("*")]
    left = [path for path in files if path.suffix == ".tmp" or path.name == ".lock"]
    # What a kill left of a checkpoint stands aside, whole.
    left = [str(path) for path in left if not any(".broken-" in part for part in path.parts)]
    assert left == [], f"files of killed processes are left: {left}"
    wanted = (folder_of(peaceful).parent / "state").read_text()
    assert (folder_of(config).parent / "state").read_text() == wanted, "the weights are others"
    assert finished(start(config, Board())), "it has nothing to do but to restore"
    assert (folder_of(config).parent / "state").read_text() == wanted, "the last checkpoint holds other weights"


def main(folder: Path, kills: int, seed: int) -> Tally:
    """Kill until so many kills came in time."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    jax.config.update("jax_platforms", "cpu")
    # The run that is left in peace compiles for all others.
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    draw, tally = random.Random(seed), Tally()
    peaceful = config_in(folder / "peaceful")
    assert finished(start(peaceful, Board()))
    while sum(tally.kills.values()) < kills:
        config = config_in(folder / f"killed-{tally.runs}")
        kill_until_finished(config, draw, tally, kills)
        check(config, peaceful)
        shutil.rmtree(folder / f"killed-{tally.runs}")
        tally.runs += 1
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = main(given.folder, given.kills, given.seed)
    for place, number in tally.kills.most_common():
        print(f"{number:4} {place}")
    print(
        f"{sum(tally.kills.values())} kills, {tally.half_written} in the middle of a save, {tally.runs} runs ended as "
        f"if nothing had happened, {tally.starts} starts went on behind the newest complete checkpoint"
    )
