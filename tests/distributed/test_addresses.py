"""Where process 0 listens: where the others look for it, and nowhere else."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxpar.config import UserError
from jaxpar.distributed import addresses
from jaxpar.distributed.addresses import find_listen_address
from jaxpar.distributed.rendezvous.meeting import meet
from tests.distributed.rendezvous.clients import call
from tests.patience import seconds

HERE = socket.gethostname()


def test_process_0_listens_at_the_address_of_the_coordinator_alone(port: int):
    """127.0.0.2 is an address of this host too."""
    messages: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, f"127.0.0.1:{port}", 2, 0, seconds(20), report=messages.append)
        call(f"127.0.0.1:{port}").close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        meet(f"127.0.0.1:{port}", 2, 1, seconds(20))[0].connection.close()
        first.result()[1].connection.close()
    assert messages == []


def test_process_0_states_when_it_listens_at_all_addresses(port: int):
    messages: list[str] = []
    with pytest.raises(UserError):
        meet(f"203.0.113.7:{port}", 2, 0, 0.2, report=messages.append)  # An address that documents use and nobody has.
    [sentence] = messages
    assert all(part in sentence for part in ("process 0", "all addresses", HERE, f"port {port}", "203.0.113.7"))


def test_process_0_listens_where_the_variable_of_jax_states(port: int):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, f"203.0.113.7:{port}", 2, 0, seconds(20), listen_at=f"127.0.0.2:{port}")
        meet(f"127.0.0.2:{port}", 2, 1, seconds(20))[0].connection.close()
        first.result()[1].connection.close()


def known(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Names stand for these addresses."""
    found = [(socket.AF_INET6 if ":" in host else socket.AF_INET, 0, 0, "", (host, 7)) for host in hosts]
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: found)


def test_a_name_is_listened_at_where_this_host_has_its_addresses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(addresses, "_is_local", lambda _, where: where[0] in ("10.0.0.5", "fd00::5", "127.0.1.1"))
    known(monkeypatch, "10.0.0.4", "10.0.0.5")
    place = find_listen_address("node01:7")
    assert place.addresses == ((socket.AF_INET, ("10.0.0.5", 7)),) and place.jax == "10.0.0.5:7"
    known(monkeypatch, "fd00::5")
    assert find_listen_address("node01:7").jax == "[fd00::5]:7"
    known(monkeypatch, "fd00::5", "10.0.0.5")
    assert find_listen_address("node01:7").jax == "node01:7"
    known(monkeypatch, "10.0.0.4")
    place = find_listen_address("service:7")
    assert (place.addresses, place.jax, place.foreign) == ((), None, True)
    known(monkeypatch, "127.0.1.1")  # Debian's line for a host's own name, which other hosts do not have.
    place = find_listen_address("node01:7")
    assert place.addresses == () and not place.foreign
    assert "node01" in place.why and "loopback" in place.why


def test_localhost_is_loopback_everywhere():
    assert {where[0] for _, where in find_listen_address("localhost:7").addresses} <= {"127.0.0.1", "::1"}
    assert find_listen_address("localhost:7").addresses


def test_a_name_that_is_not_known_and_all_addresses_by_wish():
    place = find_listen_address("no-such-host.invalid:7")
    assert place.addresses == () and "no-such-host.invalid" in place.why
    assert find_listen_address(f"{'a' * 70}.b:7").why
    place = find_listen_address("[::]:7")
    assert (place.addresses, place.why, place.jax) == ((), "", None)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this host has no IPv6")
def test_ipv6_addresses_are_listened_at(port: int):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, f"[::1]:{port}", 2, 0, seconds(20))
        meet(f"[::1]:{port}", 2, 1, seconds(20))[0].connection.close()
        first.result()[1].connection.close()
