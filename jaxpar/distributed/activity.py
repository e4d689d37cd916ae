"""Whether this process is active: one that neither computes nor reads nor writes hangs."""

from __future__ import annotations

import time
from pathlib import Path

COMPUTES = 0.02
"""Share of a core above which a process counts as computing; the watch itself takes less than a tenth of it."""
BYTES_PER_S = 16 * 1024
"""Bytes per second above which it counts as reading or writing files."""

LEAST_S = 0.4
"""Shortest interval to judge: in a shorter one the check itself would count as computing."""

IO = Path("/proc/self/io")
_COUNTED = ("rchar", "wchar", "read_bytes", "write_bytes")  # a mapped file shows in the last two alone


class Activity:
    """Measures for how long this process has been idle, from its use of the machine between two calls.

    Args:
        io: the file in which the system counts the bytes of this process.
    """

    def __init__(self, io: Path = IO) -> None:
        self._io = io
        self._at, self._processor_s, self._bytes = time.monotonic(), time.process_time(), _bytes(io)
        self._idle_s = 0.0

    def idle_s(self) -> float:
        """Seconds up to now in which it was idle; 0 where the system does not count bytes. Call it regularly."""
        now = time.monotonic()
        passed = now - self._at
        if passed < LEAST_S:
            return self._idle_s
        processor_s, count = time.process_time(), _bytes(self._io)
        computes = processor_s - self._processor_s > COMPUTES * passed
        if count is None or self._bytes is None or computes or count - self._bytes > BYTES_PER_S * passed:
            self._idle_s = 0.0
        else:
            self._idle_s += passed
        self._at, self._processor_s, self._bytes = now, processor_s, count
        return self._idle_s


def _bytes(io: Path) -> int | None:
    """Bytes that this process has read and written; None where they are not counted."""
    try:
        lines = io.read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(": ") for line in lines)
    return sum(int(values.get(name, 0)) for name in _COUNTED)
