"""The processes of a job meet before JAX connects them.

`jax.distributed.initialize` ends the program with a stack trace when a process does not arrive. Here they meet first,
over plain sockets at the coordinator's address: process 0 listens (`admission.py`), the others identify themselves,
with a proof of the job's secret if it has one, and all continue once every process is present. Missing processes are
named. The port is free again when JAX takes it; the connections stay open, and over them the processes watch each other
from then on (`watch.py`).
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable

from jaxpar.config.errors import UserError
from jaxpar.distributed.addresses import ListenAddress, find_listen_address, is_loopback
from jaxpar.distributed.messages import Malformed
from jaxpar.distributed.peer import Peer, Refused
from jaxpar.distributed.rendezvous.admission import MOST_UNIDENTIFIED, REPORT_S, Admission
from jaxpar.distributed.rendezvous.handshake import Handshake, RetryLater
from jaxpar.hardware.open_files import allow_more_files

RETRY_S = 0.2
ABSENT = "process 0 is not there"


def _print(sentence: str) -> None:
    print(f"jaxpar: {sentence}", file=sys.stderr, flush=True)


def meet(
    coordinator: str,
    processes: int,
    process_id: int,
    timeout_s: float,
    secret: bytes | None = None,
    *,
    listen_at: str | None = None,
    report: Callable[[str], None] = _print,
) -> dict[int, Peer]:
    """Return once all `processes` have called this, each with its own `process_id`.

    Returns the peers that this process is now connected to: all others for process 0, process 0 for the others. The
    caller closes the connections.

    Args:
        coordinator: `host:port` of process 0.
        processes: number of processes.
        process_id: index of this one.
        timeout_s: how long to wait for the others, in seconds.
        secret: shared by all; None for a job without. It is not sent.
        listen_at: `host:port` where process 0 listens, if not at `coordinator`.
        report: called with sentences that an operator may want to read before the end.

    Raises:
        UserError: a process is missing; this process is refused, or process 0 does not know the secret; the address is
            wrong.
    """
    host, port = coordinator.rsplit(":", 1)
    host = host.strip("[]")
    deadline = time.monotonic() + timeout_s
    address: ListenAddress | None = None
    try:
        if process_id == 0:
            address = find_listen_address(listen_at or coordinator)
            return _receive(address, processes, deadline, secret, report)
        return {0: _connect(host, int(port), processes, process_id, deadline, secret, report)}
    except (OSError, OverflowError, UnicodeError, Refused) as error:
        why = str(error) if isinstance(error, Refused) else getattr(error, "strerror", None) or str(error)
        if address is not None and address.foreign:
            why += f"; {address.host} is not an address of {socket.gethostname()}, where process 0 is"
        elif why == ABSENT and is_loopback(host):
            why += f"; {host} is {socket.gethostname()} itself here, and process 0 may be on another host: set "
            why += "distributed.coordinator to an address of that host"
        raise UserError(
            f"distributed.coordinator is {coordinator!r}: process {process_id} of {processes} could not join within "
            f"{timeout_s:g} s ({why})"
        ) from error


def _receive(
    address: ListenAddress, processes: int, deadline: float, secret: bytes | None, report: Callable[[str], None]
) -> dict[int, Peer]:
    """Process 0: wait for the others, then send them on."""
    allow_more_files(processes + MOST_UNIDENTIFIED)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in address.listen()]
        if address.why:
            report(f"process 0 listens at all addresses of {socket.gethostname()}, port {address.port}: {address.why}")
        return Admission(processes, secret, report).receive(listeners, deadline)


def _connect(
    host: str,
    port: int,
    processes: int,
    process_id: int,
    deadline: float,
    secret: bytes | None,
    report: Callable[[str], None],
) -> Peer:
    """The others: find process 0 and wait for its answer, retrying until the time is up."""
    last = ABSENT
    wait_s = REPORT_S
    report_at = time.monotonic() + wait_s
    while True:
        if time.monotonic() >= report_at:
            report(f"process {process_id} waits for process 0 at {host}, port {port} ({last})")
            wait_s *= 2
            report_at = time.monotonic() + wait_s
        with contextlib.ExitStack() as stack:
            handshake = None
            try:
                listener = stack.enter_context(socket.create_connection((host, port), timeout=_left(deadline, last)))
                handshake = Handshake(listener, process_id, processes, secret, deadline)
                peer = handshake.wait()
                stack.pop_all()
                return peer
            except socket.gaierror:  # Kubernetes gives a pod its name some time after the pod.
                last = f"no address is known for {host!r}"
            except Malformed as error:  # Perhaps a leftover of an earlier job.
                last = f"what listens there is not process 0 of this jaxpar: {error}"
            except RetryLater as error:
                last = f"process 0 asked this process to try again: {error}"
            except OSError:  # Nothing listens yet, or process 0 went away.
                if handshake is not None and handshake.admitted:
                    last = "process 0 was there, and others were missing"
                elif handshake is not None and last == ABSENT:
                    last = "process 0 does not answer"
        time.sleep(min(RETRY_S, _left(deadline, last)))


def _left(deadline: float, last: str) -> float:
    """Seconds until `deadline`; after it, raises `Refused` with the last finding."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise Refused(last)
    return left
