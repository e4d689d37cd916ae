"""The processes of a job meet before JAX is told about them.

`jax.distributed.initialize` ends the program with a stack trace when a process does not arrive. Here they come together
first, over plain sockets at the coordinator's address: process 0 listens, the others say who they are, and all go on
once everybody is there. Whoever is missing is named. The port is free again when JAX takes it.
"""

from __future__ import annotations

import contextlib
import socket
import time

from jaxpar.config.errors import UserError

HELLO = "jaxpar"
GO = "go"
RETRY_S = 0.2
LINE_BYTES = 4096


def meet(coordinator: str, processes: int, process_id: int, timeout_s: float) -> None:
    """Return once all `processes` have called this, each with its own `process_id`.

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
            _receive(int(port), processes, deadline)
        else:
            _visit(host.strip("[]"), int(port), processes, process_id, deadline)
    except (OSError, OverflowError, _Refused) as error:
        why = str(error) if isinstance(error, _Refused) else getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"distributed.coordinator is {coordinator!r}: process {process_id} of {processes} could not join within "
            f"{timeout_s:g} s ({why})"
        ) from error


class _Refused(Exception):
    """Why the processes do not come together, in a few words."""


def _receive(port: int, processes: int, deadline: float) -> None:
    """Process 0: wait for the others, then send them on."""
    guests: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(_listen(port))
        try:
            while len(guests := _present(guests)) < processes - 1:
                door.settimeout(_left(deadline))
                guest = stack.enter_context(door.accept()[0])
                process = _introduced(guest, processes, deadline)
                if process is None:
                    continue
                if process in _present(guests):
                    raise _Refused(f"two processes say that they are process {process}")
                guests[process] = guest
        except (TimeoutError, _Refused) as error:
            guests = _present(guests)
            missing = ", ".join(str(process) for process in range(1, processes) if process not in guests)
            refusal = error if isinstance(error, _Refused) else _Refused(f"not there: process {missing}")
            _tell(guests, str(refusal))
            raise refusal from error
        _tell(guests, GO)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


def _introduced(guest: socket.socket, processes: int, deadline: float) -> int | None:
    """The process id that a guest gives; None for a stranger, who may say anything or nothing."""
    guest.settimeout(min(1.0, _left(deadline)))
    try:
        words = _line(guest).split()
    except OSError:  # It went away, or is silent.
        return None
    if len(words) != 3 or words[0] != HELLO or not all(word.isdigit() for word in words[1:]):
        return None
    process, expected = int(words[1]), int(words[2])
    if expected != processes:
        raise _Refused(f"process {process} expects {expected} processes and process 0 expects {processes}")
    return process


def _present(guests: dict[int, socket.socket]) -> dict[int, socket.socket]:
    return {process: guest for process, guest in guests.items() if not _is_gone(guest)}


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


def _tell(guests: dict[int, socket.socket], text: str) -> None:
    for guest in guests.values():
        with contextlib.suppress(OSError):  # One that went away in the meantime is missed when JAX connects.
            guest.sendall(f"{text}\n".encode())


def _visit(host: str, port: int, processes: int, process_id: int, deadline: float) -> None:
    """The others: find process 0 and wait for its word."""
    last = "process 0 is not there"
    while True:
        try:
            with socket.create_connection((host, port), timeout=_left(deadline, last)) as door:
                last = "process 0 was there, and others were missing"
                door.sendall(f"{HELLO} {process_id} {processes}\n".encode())
                door.settimeout(_left(deadline, last))
                answer = _line(door)
        except socket.gaierror as error:
            raise _Refused(f"no address is known for {host!r}") from error
        except OSError:  # Nobody listens yet, or process 0 went away: try again until the time is up.
            answer = ""
        if answer == GO:
            return
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
        more = other.recv(LINE_BYTES)
        if not more:
            break
        said += more
    return said.decode(errors="replace").strip()
