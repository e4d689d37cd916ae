"""Two islands of which one is killed (-9) at random moments and started again, while the other continues.

    python -m tests.training.island_jobs.killed FOLDER --kills 20 --seed 3

A kill falls while the island starts, in a step, while it saves, or while it waits for the other one. The other island
runs through. At the end: every round was closed once and the digest of each outer state follows from the one before;
both islands have had the same outer state, bit for bit, in each round that both were in; each round whose arrays are
still there gives the stored outer state when it is repeated; and the killed island was accepted again after its last
start.
"""

import argparse
import hashlib
import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
from safetensors import safe_open

from jaxpar.config import Config
from jaxpar.distributed import liveness
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.training.island_jobs.exchange import Exchange
from jaxpar.training.island_jobs.island import Island
from jaxpar.training.island_jobs.local_weights import Parts
from jaxpar.training.island_jobs.records import following_digest
from jaxpar.training.island_jobs.run import IslandRun
from jaxpar.training.island_jobs.tensor_parts import Part
from jaxpar.training.run.loop import fit
from tests.patience import seconds
from tests.processes import finished, fork
from tests.training.damage.killed import Board, wait_until
from tests.training.island_jobs.runs import island_config

PLACES = {"starting": "", "in a step": "in step ", "saving": "saving ", "waiting": "waiting for other islands"}
"""The aims of kills, and how each begins in the words of the loop."""
STARTING_S, AFTER_S = 2.0, 0.03
PATIENCE_S = seconds(120)
FOREVER = 10**6


def config_in(folder: Path, name: str) -> Config:
    return island_config(
        folder, name, FOREVER, islands={"wait_s": 0.5, "keep_rounds": 3}, checkpoint={"every": 3}, run={"log_every": 50}
    )


def states_of(folder: Path, name: str) -> Path:
    """The file with a line for each outer state that an island has had: its round and a digest of its bits."""
    return folder / f"{name}.states"


def bits_of(parts: Parts) -> str:
    return hashlib.blake2b(b"".join(parts[part].tobytes() for part in sorted(parts))).hexdigest()


class RecordedIsland(IslandRun):
    """Appends to `states_of` after each exchange."""

    def _exchange(self) -> None:
        super()._exchange()
        with open(states_of(Path(self.config.run.dir), self.config.run.name), "a") as file:
            file.write(f"{self.island.round} {bits_of(self.island.shared)}\n")


def start(config: Config, board: Board) -> int:
    """Begin or continue an island in a separate process; its process id."""
    board.write("starting")

    def work() -> None:
        liveness.report_activity = lambda where, **_: board.write(where)
        fit(RecordedIsland(config), [JsonLines(), EventLog()])

    return fork(work)


def wait_until_accepted(exchange: Exchange, name: str, after: int, child: int) -> int:
    """Wait for a round from `after` on that counts an island; returns it."""
    deadline = time.monotonic() + PATIENCE_S
    index = after
    while True:
        closed = exchange.closed(index)
        if closed is not None and name in closed.accepted:
            return index
        assert time.monotonic() < deadline, f"{name} is not accepted in any round from {after} to {index}"
        assert os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, f"{name} ended"
        index += closed is not None
        time.sleep(0 if closed is not None else 0.01)


def wait_until_in_a_round(board: Board, exchange: Exchange, name: str, child: int) -> None:
    """Wait until an island that was started is accepted, and not only for a contribution of before a kill."""
    wait_until(board, child, PLACES["waiting"], 1)
    wait_until_accepted(exchange, name, exchange.newest(), child)


def kill_once(config: Config, exchange: Exchange, draw: random.Random, tally: Counter[str]) -> None:
    """Start the island and kill it somewhere."""
    board = Board()
    child = start(config, board)
    place = draw.choices(list(PLACES), weights=[1, 2, 2, 3])[0]
    if place == "starting":
        time.sleep(draw.uniform(0, STARTING_S))
    else:
        wait_until_in_a_round(board, exchange, config.run.name, child)
        wait_until(board, child, PLACES[place], draw.randint(1, 3))
        time.sleep(draw.uniform(0, AFTER_S) * draw.random())
    os.kill(child, signal.SIGKILL)
    assert not finished(child), "the island ended by itself"
    tally[re.sub(r" \d+", "", board.read()[1])] += 1


def check(folder: Path, exchange: Exchange, names: tuple[str, ...]) -> int:
    """Check all rounds; returns how many there were."""
    rounds, digest = exchange.newest(), exchange.stored(0)
    following = None if digest is None else digest.digest
    for index in range(rounds):
        closed = exchange.closed(index)
        assert closed is not None, f"round {index} was lost"
        assert following in (None, closed.base), f"round {index} began with another state than that before"
        following = following_digest(closed.base, closed.accepted)
        assert following == closed.following
    lines = [[line.split() for line in states_of(folder, name).read_text().splitlines()] for name in names]
    states = [dict(map(tuple, each)) for each in lines]
    both = states[0].keys() & states[1].keys()
    assert both and all(states[0][index] == states[1][index] for index in both), "outer states differ"
    check_repeated(exchange, rounds)
    return rounds


def check_repeated(exchange: Exchange, rounds: int) -> None:
    """Each stored outer state is what the state before and the stored contributions give."""
    config, repeated = config_in(exchange.folder.path.parent, "reader"), 0
    weights = next(exchange.contribution(rounds - 1, name)[0].weights for name in exchange.contributed(rounds - 1))
    for index in range(1, rounds):
        if exchange.stored(index) is None or exchange.stored(index - 1) is None:
            continue
        reader = Island(exchange, config.islands, weights, print)
        stored, like = Island(exchange, config.islands, weights, print), parts_of(exchange, index)
        assert stored._load(index, like) and reader._load(index - 1, like)
        closed = exchange.closed(index - 1)
        assert closed is not None and reader._update(closed) is None
        for ours, theirs in ((reader.shared, stored.shared), (reader.momentum, stored.momentum)):
            assert all(np.array_equal(ours[part], theirs[part]) for part in like), (
                f"round {index - 1} gives another state"
            )
        repeated += 1
    assert repeated >= 2


def parts_of(exchange: Exchange, index: int) -> list[Part]:
    """The parts of which a stored outer state has the weights."""
    stored = exchange.stored(index)
    assert stored is not None
    [path] = [exchange.folder.path / exchange.state_file(index, stored.stored_by, name) for name in stored.files]
    parts = map(Part.parse, safe_open(path, framework="numpy").keys())
    return [
        part._replace(name=part.name.removeprefix("weights/")) for part in parts if part.name.startswith("weights/")
    ]


def main(folder: Path, kills: int, seed: int) -> tuple[Counter[str], int]:
    """Kill repeatedly; returns where the kills fell, and how many rounds there were."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    draw, tally = random.Random(seed), Counter[str]()
    steady, killed = (config_in(folder, name) for name in ("steady", "killed"))
    exchange, board = Exchange(folder / "exchange", "reader"), Board()
    running = [start(steady, Board())]
    try:
        wait_until_accepted(exchange, "steady", 0, running[0])
        for _ in range(kills):
            kill_once(killed, exchange, draw, tally)
        running.append(start(killed, board))
        wait_until_in_a_round(board, exchange, "killed", running[1])
        for child in running:
            os.kill(child, signal.SIGTERM)
        for child in [running.pop(), running.pop()]:
            assert finished(child), "an island did not end when it was asked to"
    finally:
        for child in running:
            os.kill(child, signal.SIGKILL)
    return tally, check(folder, exchange, ("steady", "killed"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    tally, rounds = main(asked.folder, asked.kills, asked.seed)
    for place, count in tally.most_common():
        print(f"{count:4} {place}")
    print(f"{sum(tally.values())} kills, {rounds} rounds, none lost")
