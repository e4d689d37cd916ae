"""A job with a secret: who does not know it does not join, and both sides say why."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxpar.config import DistributedConfig, UserError
from jaxpar.distributed.job import find_job
from jaxpar.distributed.rendezvous.meeting import meet
from jaxpar.distributed.rendezvous.secret import find_secret
from tests.distributed.rendezvous.clients import call, hello, line, receive
from tests.patience import seconds
from tests.sentences import refused

HERE = socket.gethostname()
ALIKE = "; set distributed.secret_file or JAXPAR_SECRET alike for all processes"
NONCE = "0" * 64


def joined(address: str, process: int, secret: bytes | None, timeout_s: float) -> str:
    """`met`, or why not."""
    try:
        peers = meet(address, 2, process, timeout_s, secret, report=lambda _: None)
    except UserError as error:
        return str(error).split(" (", 1)[1].removesuffix(")")
    for peer in peers.values():
        peer.connection.close()
    return "met"


def both(address: str, first: bytes | None, second: bytes | None, timeout_s: float) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(joined, address, 0, first, timeout_s)]
        found.append(pool.submit(joined, address, 1, second, seconds(20)))
        return [each.result() for each in found]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (b"one \xff", b"one \xff", None),
        (b"one", b"two", f"process 1 on {HERE} has another secret than process 0{ALIKE}"),
        (b"one", None, f"process 0 has a secret and process 1 on {HERE} has none{ALIKE}"),
        (None, b"one", f"process 1 on {HERE} has a secret and process 0 has none{ALIKE}"),
    ],
)
def test_processes_with_the_secret_connect_and_one_without_it_is_refused_which_both_report(
    address: str, first: bytes | None, second: bytes | None, why: str | None
):
    wanted = ["met", "met"] if why is None else [f"not there: process 1; refused: {why}", why]
    assert both(address, first, second, seconds(1.5 if why else 20)) == wanted


@pytest.mark.parametrize("proof", ["0" * 64, "²" * 64, "", None, 7, ["0"]])
def test_a_guessed_proof_is_refused(address: str, proof: object):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(joined, address, 0, b"one", seconds(20))
        with call(address, hello(1, 2, nonce=NONCE)) as listener:
            assert len(receive(listener)["challenge"]) == 64
            listener.sendall(line({"proof": proof}))
            assert receive(listener) == {"refused": f"process 1 on node-b has another secret than process 0{ALIKE}"}
        assert joined(address, 1, b"one", seconds(20)) == first.result() == "met"


def test_a_replayed_proof_is_refused(address: str):
    """A relay passes the meeting on and hears everything; then it says the same again."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def pass_on() -> None:
            client = relay.accept()[0]
            with client, call(address) as listener:
                for _ in range(2):  # The hello and its challenge, the proof and its confirmation.
                    received.append(client.makefile("rb").readline())
                    listener.sendall(received[-1])
                    client.sendall(line(receive(listener)))

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(joined, address, 0, b"one", seconds(20))
            passed = pool.submit(pass_on)
            beside = f"127.0.0.1:{relay.getsockname()[1]}"
            threading.Thread(target=joined, args=(beside, 1, b"one", seconds(5)), daemon=True).start()
            passed.result()
            assert not any(b"one" in sent for sent in received)
            with call(address, received[0]) as listener:
                receive(listener)
                listener.sendall(received[1])
                assert "has another secret" in receive(listener)["refused"]
            assert joined(address, 1, b"one", seconds(20)) == first.result() == "met"


@pytest.mark.parametrize(
    "sent",
    [
        [{"welcome": True}],
        [{"welcome": True, "proof": NONCE}],
        [{"challenge": NONCE}, {"welcome": True, "proof": NONCE}],
        [{"challenge": NONCE}, "its own proof"],
    ],
)
def test_what_does_not_prove_the_secret_is_not_accepted_as_process_0(sent: list[object]):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        joining = pool.submit(joined, f"127.0.0.1:{server.getsockname()[1]}", 1, b"one", seconds(20))
        listener = server.accept()[0]
        with listener:
            proof = None
            for message in sent:
                if message == "its own proof":  # Sent back to it.
                    message = {"welcome": True, "proof": proof}
                listener.sendall(line(message))
                if isinstance(message, dict) and "challenge" in message:
                    assert "nonce" in receive(listener)
                    proof = receive(listener)["proof"]
            why = joining.result()
    assert "secret" in why and f"process 1 on {HERE}" in why and "process 0" in why


def test_the_secret_is_that_of_the_file_or_of_the_variable(tmp_path: Path):
    file = tmp_path / "secret"
    file.write_bytes(b" one\n")
    assert find_secret(str(file), {}) == find_secret(None, {"JAXPAR_SECRET": "one\n"}) == b"one"
    assert find_secret(str(file), {"JAXPAR_SECRET": "two"}) == b"one"
    assert find_secret(None, {}) is None
    (tmp_path / "link").symlink_to(file)  # As Kubernetes mounts it.
    assert find_secret(str(tmp_path / "link"), {}) == b"one"


def test_a_secret_file_that_is_none_is_one_sentence(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_bytes(b" \n")
    (tmp_path / "large").write_bytes(b"x" * 4097)
    (tmp_path / "whole").write_bytes(b"x" * 4096)
    for name, why in {
        "pipe": "FIFO", "empty": "empty", "blank": "empty", "large": "4096 bytes", "/dev/zero": "device",
        ".": "folder", "none": "No such file or directory", "a\0b": "embedded null byte",
    }.items():  # fmt: skip
        path = f"{tmp_path}/{name}" if not name.startswith("/") else name
        with refused("distributed.secret_file:", repr(path), why, "expected a file with the job's secret"):
            find_secret(path, {})
    assert find_secret(str(tmp_path / "whole"), {}) == b"x" * 4096


@pytest.mark.parametrize(("value", "why"), [("", "empty"), (" \n", "empty"), ("x" * 4097, "4096")])
def test_a_variable_that_holds_no_secret_is_one_sentence(value: str, why: str):
    with refused("JAXPAR_SECRET", why, "expected the job's secret"):
        find_secret(None, {"JAXPAR_SECRET": value})


def test_a_job_holds_its_secret_and_does_not_print_it(tmp_path: Path):
    (tmp_path / "secret").write_text("hidden\n")
    config = DistributedConfig("a:1", 2, 1, secret_file=str(tmp_path / "secret"))
    found = find_job(config, {})
    assert found is not None and found.secret == b"hidden" and "hidden" not in repr(found)
    assert find_job(DistributedConfig(processes=1, secret_file="/none"), {}) is None
