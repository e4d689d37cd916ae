"""NCCL's counts of launched collectives, rank by rank, for the verdict on a job that stands still.

NCCL's RAS threads listen on localhost:28028 (`NCCL_RAS_ADDR`), and answer any client with what all processes of the job
have launched, as text or, from 2.28.7 on, as JSON (NVIDIA, "RAS", NCCL user guide: the protocol, and examples). One is
asked, once and again a second later: counts of a collective that hangs have stopped.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxpar.distributed.messages import HOST_LENGTH, clean

VARIABLE = "NCCL_RAS_ADDR"
ADDRESS = "localhost:28028"
REQUEST = b"SET FORMAT json\nSTATUS\n"
TIMEOUT_S = 2.0
PAUSE_S = 1.0
MOST_BYTES = 64 * 2**20
MOST_NAMED = 4
"""The most ranks that a sentence names one by one."""

type Launches = dict[tuple[str, str], dict[Rank, int]]
"""Launches of each rank, by communicator and kind of collective."""


class Rank(NamedTuple):
    """A rank of a communicator, as NCCL names it."""

    rank: int
    process: str

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.process})"


class Status(NamedTuple):
    """An answer of RAS."""

    launched: Launches
    silent: list[Rank]
    """Ranks that did not answer."""


def explain(environment: Mapping[str, str]) -> str | None:
    """A clause about the collectives that hang; None where RAS is not there, or tells nothing of a hang."""
    host, _, port = environment.get(VARIABLE, ADDRESS).rpartition(":")
    before = ask(host, int(port)) if port.isdigit() else None
    if before is None:
        return None
    time.sleep(PAUSE_S)
    now = ask(host, int(port))
    return None if now is None else judge(before, now)


def ask(host: str, port: int) -> Status | None:
    """The status of the job; None where nobody answers, or not as documented."""
    received = bytearray()
    try:
        with socket.create_connection((host.strip("[]"), port), TIMEOUT_S) as connection:
            connection.sendall(REQUEST)
            while (data := connection.recv(65536)) and len(received) < MOST_BYTES:
                received += data
    except OSError:
        return None
    try:
        return _read(json.loads(received[received.index(b"{") :]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def judge(before: Status, now: Status) -> str | None:
    """A clause about two answers, one after the other; None where counts still grow, or there are none."""
    if now.silent:
        return f"{_listed(now.silent)} {'does' if len(now.silent) == 1 else 'do'} not answer NCCL"
    if before.launched != now.launched or not now.launched:
        return None
    for (_, kind), ranks in now.launched.items():
        least, most = min(ranks.values()), max(ranks.values())
        if least < most:
            behind = [rank for rank, launched in ranks.items() if launched == least]
            return (
                f"NCCL's counts have stopped and differ: {_listed(behind)} launched {least} of {kind}, "
                f"of {len(ranks)} ranks the furthest {most}: they wait for the former"
            )
    return "NCCL's counts have stopped and are the same for all ranks: the last collective does not end"


def _read(answer: Any) -> Status:
    launched: Launches = {}
    silent: list[Rank] = []
    for communicator in answer["communicators"]:
        if communicator["size"] < 2:
            continue
        for one in communicator["ranks"]:
            for kind, launches in one["collective_counts"].items():
                ranks = launched.setdefault((str(communicator["hash"]), clean(kind, HOST_LENGTH)), {})
                ranks[_rank(one)] = int(launches)
        silent += [_rank(one) for one in communicator.get("missing_ranks", []) if one["status"]["unresponsive"]]
    return Status({key: ranks for key, ranks in launched.items() if any(ranks.values())}, list(dict.fromkeys(silent)))


def _rank(one: Mapping[str, Any]) -> Rank:
    return Rank(int(one["rank"]), f"process id {int(one['pid'])} on {clean(str(one['host']), HOST_LENGTH)}")


def _listed(ranks: list[Rank]) -> str:
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return ", ".join(map(str, ranks[:MOST_NAMED])) + more
