"""Agreement between the processes of a job about checkpoints.

All calls are collective: every process makes them, in the same order, on its main thread, or, for `gather`, on any.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxpar.checkpoint.errors import CheckpointError

PATIENCE_S = 2 * 3600
"""Seconds that processes wait for each other while they read a large checkpoint."""
_meetings = itertools.count()


def is_first() -> bool:
    """Whether this is process 0, which writes manifests, deletes and reports."""
    return jax.process_index() == 0


def exchange(text: str) -> list[str]:
    """All-gather a text of every process, in the order of the process index."""
    if jax.process_count() == 1:
        return [text]
    from orbax.checkpoint import multihost

    # A collective on devices has a short time-out of its own, so the processes first meet at a barrier with a long one.
    multihost.get_barrier_sync_fn()(key=f"jaxpar_checkpoint_{next(_meetings)}", timeout_ms=PATIENCE_S * 1000)
    data = text.encode()
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(data)))).reshape(-1)
    # A multiple of 1 KiB, so that few programs are compiled.
    row = np.zeros(1024 * (int(sizes.max()) // 1024 + 1), np.uint8)
    row[: len(data)] = np.frombuffer(data, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(row))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def gather(meeting: str, text: str, timeout_s: float) -> list[str] | None:
    """Gather a text of every process at process 0, in the order of the process index; the others get None.

    It goes over JAX's coordination service and not over the devices, so any thread may call this.

    Args:
        meeting: a name that no other call of the job has.
        text: what this process gives; at most a few MB.
        timeout_s: seconds that process 0 waits for each text.

    Raises:
        TimeoutError: a process has given none in that time.
    """
    if jax.process_count() == 1:
        return [text]
    from orbax.checkpoint import multihost

    client = multihost.get_jax_distributed_client()
    key = f"jaxpar/checkpoint/{meeting}"
    if not is_first():
        client.key_value_set(f"{key}/{jax.process_index()}", text)
        return None
    texts = [text]
    for index in range(1, jax.process_count()):
        try:
            texts.append(client.blocking_key_value_get(f"{key}/{index}", int(timeout_s * 1000)))
        except jax.errors.JaxRuntimeError as error:
            raise TimeoutError(f"process {index} has not answered for {timeout_s:g} seconds") from error
    client.key_value_delete(f"{key}/")
    return texts


def from_first[T](work: Callable[[], T]) -> T:
    """The result of `work` (a JSON value), which runs on process 0 only; its error is raised on every process.

    Raises:
        CheckpointError: `work` raised an error. Process 0 raises the original.
    """
    if jax.process_count() == 1:
        return work()
    answer: dict[str, object] = {}
    failure: Exception | None = None
    if is_first():
        try:
            answer = {"value": work()}
        except Exception as error:  # Raised below, after it was sent to the others, which wait for this answer.
            failure = error
            answer = {"error": str(error)}
    first = json.loads(exchange(json.dumps(answer))[0])
    if failure is not None:
        raise failure
    if "error" in first:
        raise CheckpointError(first["error"])
    return first["value"]
