"""The start of a process in its job: it meets the others, is then watched, and initializes `jax.distributed`."""

from __future__ import annotations

import os

import jax

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DistributedConfig
from jaxpar.distributed import liveness
from jaxpar.distributed.addresses import find_listen_address
from jaxpar.distributed.job import Job
from jaxpar.distributed.rendezvous.meeting import meet
from jaxpar.distributed.rendezvous.relay import open_relay

CONNECT_S = 1800
"""Time limit in seconds for JAX to connect processes that are all present. JAX aborts when it fails; the watch names a
process that is lost meanwhile long before. JAX's default of 300 s ends large jobs that start cold
(marin-community/marin#7232)."""

JAX_HEARTBEAT_S = 3600
"""JAX's own heartbeats abort the process; the watch reports a lost process long before."""


UNREAD = "JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS"
"""A variable that launchers set, and that neither JAX nor this program reads (ROCm/MAD#228)."""


def join(job: Job, limits: DistributedConfig) -> None:
    """Meet the other processes, watch them from now on, and initialize `jax.distributed`.

    Raises `UserError` where the processes cannot meet, or JAX cannot join them.
    """
    peers = meet(job.coordinator, job.processes, job.process_id, limits.timeout_s, job.secret, listen_at=job.listen_at)
    liveness.watch_over(job.process_id, job.processes, peers, limits)
    if UNREAD in os.environ:
        liveness.announce(f"{UNREAD} is read by nothing; distributed.timeout_s is {limits.timeout_s}")
    liveness.report_activity("joining the other processes")
    try:
        jax.distributed.initialize(
            coordinator_address=job.coordinator if job.process_id == 0 else open_relay(job.coordinator),
            num_processes=job.processes,
            process_id=job.process_id,
            coordinator_bind_address=_listen_at(job),
            local_device_ids=job.local_devices,
            cluster_detection_method="deactivate",  # it would give each process of Slurm and Open MPI a single GPU
            initialization_timeout=CONNECT_S,
            heartbeat_timeout_seconds=JAX_HEARTBEAT_S,
        )
    except RuntimeError as error:
        raise UserError(
            f"distributed.coordinator is {job.coordinator!r}: process {job.process_id} of {job.processes} could not "
            f"join ({str(error).splitlines()[0]})"
        ) from error


def _listen_at(job: Job) -> str | None:
    """The address of JAX's service in process 0: the same as for the meeting; JAX's default is all addresses."""
    return job.listen_at or find_listen_address(job.coordinator).jax if job.process_id == 0 else None
