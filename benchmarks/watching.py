"""A job of thousands of processes on one machine: they meet, report to process 0, lose some, and get a verdict.

    python -m benchmarks.watching --processes 2000 --lost 0.01
    python -m benchmarks.watching --table 8 1024 16384 100000

Process 0 is the real one, its meeting and its watch. The others meet it as real ones do; then a loop in each of a few
operating-system processes sends their reports. There is no JAX. All share the cores of this machine, so seconds are
upper bounds; messages and bytes are exact.
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Literal, NamedTuple

from jaxpar.config.schema import DistributedConfig
from jaxpar.distributed.messages import Report, decode, encode
from jaxpar.distributed.peer import Peer
from jaxpar.distributed.rendezvous.meeting import meet
from jaxpar.distributed.verdicts import Mark
from jaxpar.distributed.watch import Watch, beat_s
from jaxpar.pages.units import size

MOST_GROUPS = 6
"""Operating-system processes of the simulated ones; with process 0 and the command there are eight."""
MEET_S = 300.0
MESSAGE_S = 0.20 / 12_000
"""Seconds of a processor that process 0 takes for a message, as 2,000 simulated processes took."""
MARK = Mark(1, "in step 1", 3600.0, "distributed.step_timeout_s", 3600.0)

type Loss = Literal["dead", "stopped"]


class Job(NamedTuple):
    """A simulated job."""

    address: str
    processes: int
    lost: tuple[int, ...]
    """Processes that are lost."""
    loss: Loss
    """`dead` ones hang up; `stopped` ones send nothing more."""
    timeout_s: float
    beats: int
    """Reports of each process before the loss."""


class Traffic(NamedTuple):
    """Messages and bytes of process 0, and what it took for them."""

    messages: int
    bytes: int
    seconds: float
    processor_s: float


class Met(NamedTuple):
    """The end of process 0's job."""

    meeting_s: float
    beating: Traffic
    verdict: str
    verdict_s: float
    """Seconds from the loss to the verdict in process 0."""


@dataclass
class Counted:
    """A socket that counts what passes."""

    inner: socket.socket
    messages: int = 0
    bytes: int = 0
    setblocking = property(lambda self: self.inner.setblocking)
    fileno = property(lambda self: self.inner.fileno)
    close = property(lambda self: self.inner.close)

    def send(self, data: bytes) -> int:
        return self._count(data[: self.inner.send(data)])

    def recv(self, most: int) -> bytes:
        data = self.inner.recv(most)
        self._count(data)
        return data

    def _count(self, data: bytes) -> int:
        self.messages += data.count(b"\n")
        self.bytes += len(data)
        return len(data)


def run_first(job: Job, orders: Connection) -> None:
    """Process 0: sends a `Met` at the end."""
    began = time.monotonic()
    peers = meet(job.address, job.processes, 0, MEET_S, report=lambda _: None)
    meeting_s = time.monotonic() - began
    counted = {index: Counted(peer.connection) for index, peer in peers.items()}
    verdicts: list[tuple[str, float]] = []
    watch = Watch(
        0,
        job.processes,
        {index: Peer(index, peer.host, counted[index]) for index, peer in peers.items()},  # pyright: ignore[reportArgumentType]
        timeout_s=job.timeout_s,
        mark=MARK,
        end=lambda sentence: verdicts.append((sentence, time.monotonic())),
    )
    total = lambda: (sum(one.messages for one in counted.values()), sum(one.bytes for one in counted.values()))
    orders.send("met")
    before, started, spent = total(), time.monotonic(), time.process_time()
    time.sleep(job.beats * beat_s(job.processes, job.timeout_s))
    after, ended = total(), time.monotonic()
    beating = Traffic(after[0] - before[0], after[1] - before[1], ended - started, time.process_time() - spent)
    orders.send("beaten")
    lost_at = orders.recv()
    while not verdicts:
        time.sleep(0.01)
    [(sentence, at)] = verdicts
    orders.send(Met(meeting_s, beating, sentence, at - lost_at))
    watch.close()


@dataclass
class _Client:
    connection: socket.socket
    process: int
    unread: bytes = field(default=b"", repr=False)
    told_at: float | None = None


def run_group(job: Job, indices: Sequence[int], orders: Connection) -> None:
    """Some of the other processes: sends the seconds from the loss to the verdict of each that is left."""
    with ThreadPoolExecutor(len(indices)) as pool:
        join = lambda index: meet(job.address, job.processes, index, MEET_S, report=lambda _: None)[0].connection
        clients = [_Client(*pair) for pair in zip(pool.map(join, indices), indices, strict=True)]
    orders.send("met")
    selector = selectors.DefaultSelector()
    for client in clients:
        client.connection.setblocking(False)
        selector.register(client.connection, selectors.EVENT_READ, client)
    report = encode({"at": Report(MARK, 0.0, 0.0).message()})
    every_s, beat_at, lost_at = beat_s(job.processes, job.timeout_s), 0.0, None
    while selector.get_map():
        if lost_at is None and orders.poll():
            lost_at = orders.recv()
            for client in clients:
                if client.process in job.lost:
                    selector.unregister(client.connection)
                    if job.loss == "dead":
                        client.connection.close()
        if time.monotonic() >= beat_at:
            beat_at = time.monotonic() + every_s
            for key in list(selector.get_map().values()):
                key.data.connection.send(report)
        for key, _ in selector.select(timeout=0.05):
            _read(key.data, selector)
    lost_at = lost_at or orders.recv()  # the verdict may come before the order
    left = [client for client in clients if client.process not in job.lost]
    orders.send([client.told_at - lost_at for client in left if client.told_at is not None])


def _read(client: _Client, selector: selectors.BaseSelector) -> None:
    """Read what process 0 sends; after its verdict this one hangs up."""
    *lines, client.unread = (client.unread + client.connection.recv(65536)).split(b"\n")
    if any("end" in decode(line) for line in lines):
        client.told_at = time.monotonic()
        selector.unregister(client.connection)
        client.connection.close()


def simulate(
    processes: int, lost: float, loss: Loss, timeout_s: float, beats: int = 3, groups: int = MOST_GROUPS
) -> tuple[Met, list[float]]:
    """Run a job whose share `lost` is lost; process 0's end, and seconds from the loss to the verdict of the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    count = max(1, round(processes * lost))
    gone = tuple(processes - 1 - index * (processes - 1) // count for index in range(count))
    job = Job(address, processes, gone, loss, timeout_s, beats)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(1 + groups)]
    targets = [(run_first, (job,))]
    targets += [(run_group, (job, range(1 + group, processes, groups))) for group in range(groups)]
    running = [
        context.Process(target=target, args=(*arguments, theirs), daemon=True)
        for (target, arguments), (_, theirs) in zip(targets, pipes, strict=True)
    ]
    for process, (_, theirs) in zip(running, pipes, strict=True):
        process.start()
        theirs.close()  # so that the end of the process ends the wait for it
    mine = [one for one, _ in pipes]
    assert [one.recv() for one in mine] == ["met"] * len(mine)
    assert mine[0].recv() == "beaten"
    at = time.monotonic()  # one clock for all processes of a machine
    for one in mine:
        one.send(at)
    told = [seconds for one in mine[1:] for seconds in one.recv()]
    met = mine[0].recv()
    for process in running:
        process.join()
    return met, told


def print_table(counts: Sequence[int], timeout_s: float) -> None:
    """Print messages and bytes of the watch in a second, by the number of processes."""
    at_s = time.time() % 1000
    report = len(encode({"at": Report(MARK, at_s, at_s).message()}))
    print("| processes | a beat every | messages, bytes in a second: process 0 | another | of a core of process 0 |")
    print("|---|---|---|---|---|")
    for processes in counts:
        every_s = beat_s(processes, timeout_s)
        rows = [2 * (processes - 1) / every_s, 2 / every_s]
        cells = [f"{messages:,.3g}, {size(messages * report)}" for messages in rows]
        print(f"| {processes:,} | {every_s:.3g} s | {' | '.join(cells)} | {rows[0] * MESSAGE_S:.2%} |")


def main(arguments: Sequence[str]) -> None:
    """Print what a job of thousands of processes took."""
    parser = argparse.ArgumentParser(prog="benchmarks.watching", description=__doc__)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--lost", type=float, default=0.01, help="share of the processes that is lost")
    parser.add_argument("--timeout", type=float, default=DistributedConfig().heartbeat_timeout_s, help="in seconds")
    parser.add_argument("--table", type=int, nargs="+", help="print traffic for these numbers of processes instead")
    options = parser.parse_args(arguments)
    if options.table:
        print_table(options.table, options.timeout)
        return
    for loss in ("dead", "stopped"):
        met, told = simulate(options.processes, options.lost, loss, options.timeout)
        beating = met.beating
        print(f"{options.processes} processes meet in {met.meeting_s:.1f} s")
        print(
            f"process 0, in {beating.seconds:.1f} s: {beating.messages} messages, {size(beating.bytes)}, "
            f"{beating.processor_s:.2f} s of a processor"
        )
        print(
            f"{loss}: process 0 has its verdict after {met.verdict_s:.1f} s, {len(told)} others after "
            f"{statistics.median(told):.1f} s (last: {max(told):.1f} s): {met.verdict}\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
