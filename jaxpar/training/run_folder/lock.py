"""One job in a run's folder at a time: a lock that the system releases when its holder ends, however it ends.

The lock is `flock` on `.lock` in the folder, which states who holds it. On NFS the lock is known to all hosts, unless
the folder is mounted with `local_lock`; on Lustre it takes the mount option `flock`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path

from jaxpar.config.errors import UserError

LOCK_FILE = ".lock"
LONGEST = 4096
"""Bytes of the file that are read: it may have been damaged, or be something else."""

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")


class RunLock:
    """The lock of one folder, taken by at most one process of all that share the file system."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._descriptor: int | None = None

    @property
    def locked(self) -> bool:
        """Whether this process holds the lock."""
        return self._descriptor is not None

    def take(self) -> str | None:
        """Take the lock, making the folder where there is none; returns a sentence where there are no locks.

        Nothing is locked in a read-only folder, in which a finished run may be looked at.

        Raises:
            UserError: another process holds it; the sentence states which.
            OSError: the folder or the file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while self._descriptor is None:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                unwritable = error.errno in (errno.EACCES, errno.EPERM) and not self.path.exists()
                if unwritable or error.errno == errno.EROFS:
                    return None
                raise
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(descriptor):
                    _write_holder(descriptor)
                    self._descriptor, descriptor = descriptor, -1
            except BlockingIOError:
                raise UserError(
                    f"{self.path.parent} is in use by {_holder(descriptor)}; wait for its end or stop it, "
                    "or choose another run.name"
                ) from None
            except OSError as error:
                if error.errno not in _WITHOUT_LOCKS:
                    raise
                return (
                    f"The file system of {self.path.parent} has no locks ({error.strerror}): "
                    "a second job in this folder would not be noticed."
                )
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        return None

    def release(self) -> None:
        """Release the lock, if it is held, and remove its file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            # While it is still held, so that no other job's file is removed.
            if self._is_current(descriptor):
                self.path.unlink()
        finally:
            os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Whether the open file still has this name: its holder removes it at the end."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))


def _write_holder(descriptor: int) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}) + "\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _holder(descriptor: int) -> str:
    """Words for who holds the lock, read from the file; it may still be empty, or damaged."""
    try:
        holder = json.loads(os.pread(descriptor, LONGEST, 0))
        host, pid, since = holder["host"], holder["pid"], datetime.fromisoformat(holder["since"])
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return "another job"
    if not isinstance(host, str) or not _HOST.match(host) or type(pid) is not int:
        return "another job"
    return f"process {pid} on {host} since {since:%Y-%m-%d %H:%M:%S} UTC"
