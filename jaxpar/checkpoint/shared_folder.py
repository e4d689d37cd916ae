"""A folder that several jobs read and write at once, without locks: small records that are written exactly once."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from jaxpar.checkpoint.errors import CheckpointError
from jaxpar.config.paths import flush_folder

_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class SharedFolder:
    """Records by name, `/` between folders, for jobs that see one path.

    Everything that decides something between jobs goes through `create`, which an object store has too (a conditional
    write). Large files are written by `replace`, each under a name that one job uses alone.

    Args:
        path: the folder; made when the first record is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str, content: bytes) -> bool:
        """Write a record, complete and durable, unless there is one of this name; returns whether this call wrote it.

        Raises:
            CheckpointError: the file system has no hard links, which decide who is first.
            OSError: it cannot be written.
        """
        target = self.path / name
        temporary = self._temporary(target)
        try:
            temporary.write_bytes(content)
            _flush_file(temporary)
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _WITHOUT_LINKS:
                raise CheckpointError(
                    f"{self.path}: its file system cannot make hard links ({error.strerror}), by which jobs agree; "
                    "expected a local disk or NFS"
                ) from error
            raise
        finally:
            temporary.unlink(missing_ok=True)
        flush_folder(target.parent)
        return True

    def read(self, name: str) -> bytes | None:
        """The content of a record; None where there is none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self.path / name).read_bytes()
        return None

    def names(self, folder: str) -> list[str]:
        """Names of the records and folders in a folder, sorted, without temporary ones."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.path / folder) if not name.startswith("."))
        return []

    def begin(self, name: str) -> Path:
        """A path at which to write a large file, for `finish`."""
        return self._temporary(self.path / name)

    def finish(self, temporary: Path, name: str) -> None:
        """Put a file that was written at `begin` in the place of `name`, durable."""
        _flush_file(temporary)
        os.replace(temporary, self.path / name)
        flush_folder((self.path / name).parent)

    def remove(self, name: str) -> None:
        """Remove a record, or a folder with all in it, where there is one. Another job may be removing it too."""
        with suppress(FileNotFoundError, NotADirectoryError):
            (self.path / name).unlink() if not (self.path / name).is_dir() else shutil.rmtree(self.path / name)

    def _temporary(self, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.with_name(f".{target.name}.{uuid4().hex}.tmp")


def _flush_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
