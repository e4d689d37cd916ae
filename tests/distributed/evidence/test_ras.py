"""NCCL's counts in a verdict, from answers written by NVIDIA's documentation of RAS: no GPU is here to record one."""

import copy
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxpar.distributed.evidence import ras

HASH = "0xae94423cfbb2ef4a"


def rank(index: int, launched: int) -> dict[str, Any]:
    return {
        "rank": index, "host": f"172.16.64.{index // 4}", "pid": 1000 + index, "cuda_dev": index % 4,
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
        "collective_counts": {"Broadcast": 0, "AllGather": 12, "AllReduce": launched},
    }  # fmt: skip


def answer(*launched: int) -> dict[str, Any]:
    """A job of one communicator, besides one of a single rank."""
    ranks = [rank(index, number) for index, number in enumerate(launched)]
    return {
        "nccl_version": "2.29.1", "timestamp": "2025-12-19 13:06:53", "communicators_count": 2,
        "communicators": [
            {"hash": "0x1", "size": 1, "ranks_count": 1, "missing_ranks_count": 0, "ranks": [rank(0, 5)]},
            {"hash": HASH, "size": len(ranks), "ranks_count": len(ranks), "missing_ranks_count": 0, "ranks": ranks,
             "missing_ranks": []},
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }  # fmt: skip


@contextmanager
def serving(*answers: bytes) -> Iterator[str]:
    """A server that answers each client with the next one, and checks what it is asked; its `host:port`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for content in answers:
                connection, _ = server.accept()
                with connection:
                    asked = b""
                    while asked.count(b"\n") < 2:
                        asked += connection.recv(100)
                    assert asked == b"SET FORMAT json\nSTATUS\n"
                    connection.sendall(b"OK\n" + content)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "PAUSE_S", 0.0)


def explained(*answers: dict[str, Any]) -> str | None:
    with serving(*[json.dumps(one, indent=2).encode() for one in answers]) as address:
        return ras.explain({ras.VARIABLE: address})


def test_the_ranks_that_launched_least_are_named_where_counts_have_stopped():
    said = explained(*[answer(64, 64, 60, 64, 64, 60)] * 2)
    assert said == (
        "NCCL's counts have stopped and differ: rank 2 (process id 1002 on 172.16.64.0), rank 5 (process id 1005 on "
        "172.16.64.1) launched 60 of AllReduce, of 6 ranks the furthest 64: they wait for the former"
    )
    many = explained(*[answer(*[1] * 9, 2)] * 2)
    assert many is not None and "rank 3 (process id 1003 on 172.16.64.0) and 5 more launched 1" in many


def test_counts_that_grow_are_no_hang():
    assert explained(answer(64, 60), answer(64, 61)) is None


def test_equal_counts_mean_that_the_last_collective_hangs():
    said = explained(*[answer(64, 64)] * 2)
    assert said is not None and said.endswith("the same for all ranks: the last collective does not end")


def test_a_rank_that_does_not_answer_is_named():
    silent = copy.deepcopy(answer(64, 64))
    missing = silent["communicators"][1]["ranks"].pop()
    status = {"unresponsive": True, "considered_dead": False}
    silent["communicators"][1]["missing_ranks"] = [missing | {"status": status}]
    assert explained(silent, silent) == "rank 1 (process id 1001 on 172.16.64.0) does not answer NCCL"


@pytest.mark.parametrize(
    "content", [b"", b"ERROR: unknown command\n", b"{", b"[]", b"{}", b'{"communicators": [{"size": 9}]}', b"\xff{" * 9]
)
def test_another_answer_explains_nothing(content: bytes):
    """As an older NCCL gives it, which knows no JSON."""
    with serving(content) as address:
        assert ras.explain({ras.VARIABLE: address}) is None


def test_without_nccl_nothing_is_said():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert ras.explain({ras.VARIABLE: address}) is None
    assert ras.explain({ras.VARIABLE: "here:there"}) is None
