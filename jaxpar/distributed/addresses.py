"""Addresses at which process 0 listens: the coordinator's addresses on this host, otherwise all of this host."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

BACKLOG = 1024


@dataclass(frozen=True)
class ListenAddress:
    """Addresses to listen at."""

    host: str
    port: int
    addresses: tuple[tuple[socket.AddressFamily, tuple], ...]
    """Family and socket address of each; none stands for all of this host."""
    why: str = ""
    """The reason why it is all of them, where that was not requested."""
    foreign: bool = False
    """Whether `host` has addresses, none of which belongs to this machine."""

    @property
    def jax(self) -> str | None:
        """The address for `jax.distributed.initialize`, which takes one address or name; None for all."""
        if len(self.addresses) != 1:
            return f"{self.host}:{self.port}" if self.addresses else None
        family, (address, *_) = self.addresses[0]
        return f"[{address}]:{self.port}" if family == socket.AF_INET6 else f"{address}:{self.port}"

    def listen(self) -> list[socket.socket]:
        """Sockets that listen there."""
        if not self.addresses:
            if socket.has_dualstack_ipv6():
                everywhere = {"family": socket.AF_INET6, "dualstack_ipv6": True}
                return [socket.create_server(("", self.port), backlog=BACKLOG, **everywhere)]
            return [socket.create_server(("", self.port), backlog=BACKLOG)]
        listeners: list[socket.socket] = []
        try:
            for family, address in self.addresses:
                listeners.append(socket.create_server(address, family=family, backlog=BACKLOG))
        except OSError as error:
            for listener in listeners:
                listener.close()
            raise OSError(error.errno, os.strerror(error.errno or 0)) from error  # Without Python's tuples.
        return listeners


def find_listen_address(coordinator: str) -> ListenAddress:
    """Find the address at which process 0 must listen for the others to reach `coordinator`, `host:port`.

    A name that means loopback on its own host may be another address elsewhere: Debian writes such a line for every
    host's own name in /etc/hosts.
    """
    name, _, digits = coordinator.rpartition(":")
    host, port = name.strip("[]"), int(digits)
    if host == "::":  # All of both families, as JAX takes it.
        return ListenAddress(host, port, ())
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return ListenAddress(host, port, (), f"no address is known for {host}")
    local = tuple(dict.fromkeys((family, where) for family, _, _, _, where in infos if _is_local(family, where)))
    if not local:
        return ListenAddress(host, port, (), f"{host} is not an address of this host", foreign=True)
    if all(_is_loopback(str(where[0])) for _, where in local) and not _means_loopback(host):
        why = f"{host} is a loopback address here, and may be another one on other hosts"
        if (mine := address_of_host()) is not None:
            why += f"; where they do not find it, set distributed.coordinator={mine}:{port}"
        return ListenAddress(host, port, (), why)
    return ListenAddress(host, port, local)


def is_loopback(host: str) -> bool:
    """Whether all addresses of `host` are loopback addresses here."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return False
    return all(_is_loopback(str(where[0])) for *_, where in infos)


def address_of_host() -> str | None:
    """The address of this host that its default route leaves from; None without a network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of documentation
        except OSError:
            return None
        return probe.getsockname()[0]


def _is_local(family: int, address: tuple) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _means_loopback(host: str) -> bool:
    """Whether `host` is loopback on every host."""
    try:
        return _is_loopback(host)
    except ValueError:
        return "localhost" in host or "loopback" in host
