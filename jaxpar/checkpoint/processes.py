"""Agreement between the processes of a job, over JAX's coordination service and not over the devices.

All calls but those of notes are collective: every process makes them, in the same order, on its main thread, or, for
`gather` with a name, on any. Process 0 does what grows with the number of processes, once for each `gather`: the others
send and receive a fixed number of messages (`benchmarks/agreement.py` counts them).
"""

from __future__ import annotations

import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass

import jax

from jaxpar.checkpoint.errors import CheckpointError

PATIENCE_S = 2 * 3600
"""Seconds that processes wait for each other while they read a large checkpoint."""


@dataclass
class Traffic:
    """Messages of this process to the coordination service and back, so far."""

    messages: int = 0
    bytes: int = 0
    """Bytes of keys and texts, without what gRPC adds."""

    def add(self, *texts: str) -> None:
        """Count one message with these texts."""
        self.messages += 1
        self.bytes += sum(map(len, texts))


traffic = Traffic()
_meetings = itertools.count()
_answers = itertools.count()
_epoch = itertools.count()
_current = next(_epoch)
"""Answers of process 0 are filed under the number of gatherings before them: the next one makes them old."""
MOST_FILED = 32 * 2**20
"""Characters of answers after which there is a gathering, so that they are deleted."""
_stored = 0
PIECE = 2**20
"""Bytes of a message, at most, in which others get the bytes of process 0."""


def is_first() -> bool:
    """Whether this is process 0, which writes manifests, deletes and reports."""
    return jax.process_index() == 0


def gather(text: str, *, meeting: str | None = None, timeout_s: float = PATIENCE_S) -> list[str] | None:
    """Gather a text of every process at process 0, in the order of the process index; the others get None.

    Args:
        text: what this process gives.
        meeting: a name that no other call of the job has, for a call that is not on the main thread.
        timeout_s: seconds that the processes wait for each other.

    Raises:
        TimeoutError: a process has given none in that time.
    """
    global _current, _stored
    if jax.process_count() == 1:
        return [text]
    client = _client()
    key = f"jaxpar/gathered/{meeting or next(_meetings)}"
    mine = f"{key}/{jax.process_index():06d}"
    client.key_value_set(mine, text)
    traffic.add(mine, text)
    try:
        client.wait_at_barrier(key, int(timeout_s * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(_failure_reason(error, _absent(key, timeout_s))) from error
    finally:
        traffic.add(key)
    old = f"jaxpar/answers/{_current}/"
    if meeting is None:
        _current, _stored = next(_epoch), 0
    if not is_first():
        return None
    if meeting is None:  # every process has read them: it is past the barrier
        client.key_value_delete(old)
        traffic.add(old)
    entries = client.key_value_dir_get(f"{key}/")
    traffic.add(*itertools.chain.from_iterable(entries))
    client.key_value_delete(f"{key}/")
    traffic.add(key)
    return [answer for _, answer in sorted(entries)]


def _absent(key: str, timeout_s: float) -> str:
    """A sentence about the processes that have not come to a gathering."""
    if not is_first():
        return f"other processes have not answered for {timeout_s:g} seconds"
    present = {int(name.rsplit("/", 1)[1]) for name, _ in _client().key_value_dir_get(f"{key}/")}
    _client().key_value_delete(f"{key}/")
    missing = [process for process in range(jax.process_count()) if process not in present]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    who = f"process {missing[0]}{more}" if missing else "a process"
    return f"{who} has not answered for {timeout_s:g} seconds"


def _failure_reason(error: Exception, late: str) -> str:
    """`late` where the service waited to the end, else what it says of itself."""
    text = str(error).strip()
    return (
        late if text.startswith("DEADLINE_EXCEEDED") else f"JAX's coordination service failed ({text.splitlines()[0]})"
    )


def run_on_process_0[T](work: Callable[[], T]) -> T:
    """The result of `work` (a JSON value), which runs on process 0 only; its error is raised on every process.

    Process 0 does not wait for the others, unless the service holds more than `MOST_FILED` of its answers.

    Raises:
        CheckpointError: `work` raised an error. Process 0 raises the original.
        TimeoutError: the service failed, or process 0 gave no answer in `PATIENCE_S`.
    """
    global _stored
    if jax.process_count() == 1:
        return work()
    if _stored > MOST_FILED:  # all processes have counted the same
        gather("")
    key = f"jaxpar/answers/{_current}/{next(_answers)}"
    if is_first():
        return _tell(key, work)
    try:
        text = _client().blocking_key_value_get(key, PATIENCE_S * 1000)
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(_failure_reason(error, f"process 0 has not answered for {PATIENCE_S} seconds")) from error
    traffic.add(key, text)
    _stored += len(text)
    first = json.loads(text)
    if "error" in first:
        raise CheckpointError(first["error"])
    return first["value"]


def _tell[T](key: str, work: Callable[[], T]) -> T:
    """On process 0: the result of `work`, once it is stored under `key` for the others."""
    global _stored
    text = json.dumps({"error": "process 0 was interrupted"})
    try:
        value = work()
        text = json.dumps({"value": value})
    except Exception as error:  # the others wait for an answer
        text = json.dumps({"error": str(error)})
        raise
    finally:
        _client().key_value_set(key, text)
        traffic.add(key, text)
        _stored += len(text)
    return json.loads(text)["value"]


def bytes_of_process_0(make: Callable[[], bytes]) -> bytes:
    """The bytes that `make` returns on process 0, in messages of `PIECE`; its error is raised on every process.

    Raises:
        CheckpointError, TimeoutError: as `run_on_process_0`.
    """
    if jax.process_count() == 1:
        return make()
    made = bytearray()

    def size() -> int:
        made.extend(make())
        return len(made)

    starts = range(0, run_on_process_0(size), PIECE)
    piece = lambda start: b64encode(made[start : start + PIECE]).decode()
    return b"".join([b64decode(run_on_process_0(lambda start=start: piece(start))) for start in starts])


def judged[T](text: str, judge: Callable[[list[str]], T]) -> T:
    """The judgement (a JSON value) of process 0 on a text of every process; its error is raised on every process.

    Raises:
        CheckpointError: as `run_on_process_0`.
        TimeoutError: as `gather`.
    """
    texts = gather(text)
    return run_on_process_0(lambda: judge(texts or []))


def leave_note(topic: str, text: str) -> None:
    """Leave `text` under `topic` for `read_notes`, without waiting; it replaces this process's previous note."""
    key = f"jaxpar/{topic}/{jax.process_index():06d}"
    _client().key_value_set(key, text, allow_overwrite=True)
    traffic.add(key, text)


def read_notes(topic: str) -> list[str]:
    """The current notes under `topic`, of all processes."""
    notes = _client().key_value_dir_get(f"jaxpar/{topic}/")
    traffic.add(*itertools.chain.from_iterable(notes))
    return [text for _, text in notes]


def _client():
    from orbax.checkpoint import multihost

    return multihost.get_jax_distributed_client()
