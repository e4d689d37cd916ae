"""The processes of a job meet before JAX is told about them.

`jax.distributed.initialize` ends the program with a stack trace when a process does not arrive. Here they come together
first, over plain sockets at the coordinator's address: process 0 listens, the others say who they are, and all go on
once everybody is there. Whoever is missing is named. The port is free again when JAX takes it; connections stay, and
over them the processes watch each other from then on (`watch.py`).
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from dataclasses import dataclass

from jaxpar.config.errors import UserError

HELLO = "jaxpar"
ASK, ANSWER = "there?", "here"
GO = "go"
ANSWER_S = 5.0
"""How long an answer may take."""
RETRY_S = 0.2
LINE_BYTES = 4096
SPARE_FILES = 1024
"""Open files that process 0 leaves for everything else, besides one connection per process."""


@dataclass(frozen=True)
class Peer:
    """Another process of the job, and the connection to it."""

    process: int
    host: str
    connection: socket.socket


def meet(coordinator: str, processes: int, process_id: int, timeout_s: float) -> dict[int, Peer]:
    """Return once all `processes` have called this, each with its own `process_id`.

    The result is whom this process is now connected to: process 0 to all others, these to process 0. The caller closes
    the connections.

    Args:
        coordinator: `host:port` of process 0.
        processes: how many there are.
        process_id: which one this is.
        timeout_s: how long to wait for the others, in seconds.

    Raises:
        UserError: somebody is missing, comes twice or expects another number of processes; the address is wrong.
    """
    host, port = coordinator.rsplit(":", 1)
    deadline = time.monotonic() + timeout_s
    try:
        if process_id == 0:
            return _receive(int(port), processes, deadline)
        return {0: _visit(host.strip("[]"), int(port), processes, process_id, deadline)}
    except (OSError, OverflowError, _Refused) as error:
        why = str(error) if isinstance(error, _Refused) else getattr(error, "strerror", None) or str(error)
        if process_id == 0 and _lives_elsewhere(host.strip("[]")):
            why += f"; {host} is no address of {socket.gethostname()}, where process 0 is"
        raise UserError(
            f"distributed.coordinator is {coordinator!r}: process {process_id} of {processes} could not join within "
            f"{timeout_s:g} s ({why})"
        ) from error


class _Refused(Exception):
    """Why the processes do not come together, in a few words."""


def _receive(port: int, processes: int, deadline: float) -> dict[int, Peer]:
    """Process 0: wait for the others, then send them on."""
    _allow_files(processes + SPARE_FILES)
    guests: dict[int, Peer] = {}
    try:
        with _listen(port) as door:
            while not _complete(guests, processes - 1):
                door.settimeout(_left(deadline))
                connection = door.accept()[0]
                guest = _introduced(connection, processes, deadline)
                if guest is None:
                    connection.close()
                    continue
                earlier = guests.get(guest.process)
                guests[guest.process] = guest
                if earlier is not None and not _is_gone(earlier.connection):
                    guests[processes] = earlier  # under a number that nobody has: it hears of the refusal too
                    raise _Refused(f"two processes say that they are process {guest.process}")
                if earlier is not None:
                    earlier.connection.close()
    except (TimeoutError, _Refused) as error:
        there = [process for process, guest in guests.items() if not _is_gone(guest.connection)]
        missing = [str(process) for process in range(1, processes) if process not in there]
        refusal = error if isinstance(error, _Refused) else _Refused(f"not there: process {_few(missing)}")
        _tell(guests, str(refusal))
        for guest in guests.values():
            guest.connection.close()
        raise refusal from error
    _tell(guests, f"{GO} {socket.gethostname()}")
    return guests


def _allow_files(wanted: int) -> None:
    """Raise this process's own limit of open files as far as the system's lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _few(names: list[str]) -> str:
    """The first of them, and how many more."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _lives_elsewhere(host: str) -> bool:
    """Whether `host` is known, and none of its addresses is one of this machine."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(_is_foreign(family, address) for family, _, _, _, address in addresses)


def _is_foreign(family: int, address: tuple) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return True
        return False


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


def _introduced(connection: socket.socket, processes: int, deadline: float) -> Peer | None:
    """The process that a guest says it is; None for a stranger, who may say anything or nothing."""
    connection.settimeout(min(1.0, _left(deadline)))
    try:
        words = _line(connection).split()
    except OSError:  # It went away, or is silent.
        return None
    if len(words) != 4 or words[0] != HELLO or not all(word.isdigit() for word in words[1:3]):
        return None
    process, expected, host = int(words[1]), int(words[2]), words[3]
    guest = Peer(process, host, connection)
    if expected != processes:
        why = f"process {process} on {host} expects {expected} processes and process 0 expects {processes}"
        _tell({process: guest}, why)
        connection.close()
        raise _Refused(why)
    return guest


def _complete(guests: dict[int, Peer], wanted: int) -> bool:
    """Whether as many as `wanted` are there. They are asked, for a hang-up takes time; who is gone is struck out."""
    if len(guests) < wanted:
        return False
    _tell(guests, ASK)
    for process in [process for process, guest in guests.items() if not _answers(guest.connection)]:
        guests.pop(process).connection.close()
    return len(guests) == wanted


def _answers(guest: socket.socket) -> bool:
    guest.settimeout(ANSWER_S)
    try:
        return _line(guest) == ANSWER
    except OSError:
        return False


def _is_gone(guest: socket.socket) -> bool:
    """Whether a guest hung up, as one does that was restarted."""
    guest.setblocking(False)
    try:
        return guest.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:  # It waits.
        return False
    except OSError:
        return True
    finally:
        guest.setblocking(True)


def _tell(guests: dict[int, Peer], text: str) -> None:
    for guest in guests.values():
        with contextlib.suppress(OSError):  # One that went away in the meantime is missed by the watch.
            guest.connection.sendall(f"{text}\n".encode())


def _visit(host: str, port: int, processes: int, process_id: int, deadline: float) -> Peer:
    """The others: find process 0 and wait for its word."""
    last = "process 0 is not there"
    while True:
        with contextlib.ExitStack() as stack:
            try:
                door = stack.enter_context(socket.create_connection((host, port), timeout=_left(deadline, last)))
                last = "process 0 was there, and others were missing"
                door.sendall(f"{HELLO} {process_id} {processes} {socket.gethostname()}\n".encode())
                door.settimeout(_left(deadline, last))
                while (answer := _line(door)) == ASK:
                    door.sendall(f"{ANSWER}\n".encode())
                    door.settimeout(_left(deadline, last))
            except socket.gaierror:  # Kubernetes gives a pod its name some time after the pod.
                last, answer = f"no address is known for {host!r}", ""
            except OSError:  # Nobody listens yet, or process 0 went away: try again until the time is up.
                answer = ""
            word, _, host_of_first = answer.partition(" ")
            if word == GO:
                stack.pop_all()
                return Peer(0, host_of_first, door)
        if answer:
            raise _Refused(answer)
        time.sleep(min(RETRY_S, _left(deadline, last)))


def _left(deadline: float, otherwise: str | None = None) -> float:
    """Seconds until `deadline`; after it, raises `_Refused` with the words of `otherwise`, or `TimeoutError`."""
    left = deadline - time.monotonic()
    if left > 0:
        return left
    raise TimeoutError if otherwise is None else _Refused(otherwise)


def _line(other: socket.socket) -> str:
    """What the other side says up to a line's end or its going away."""
    said = b""
    while not said.endswith(b"\n") and len(said) < LINE_BYTES:
        more = other.recv(1)  # What comes after the line belongs to the watch.
        if not more:
            break
        said += more
    return said.decode(errors="replace").strip()
