"""The manifest of a checkpoint: its step, and the size and digest of every file, written last.

Orbax returns flipped bytes without an error, so checkpoints are verified here. A folder without a manifest is
half-written by definition. A file that the manifest does not list is none of the checkpoint's: `view` hides it.

The manifest's version covers its fields and how digests are computed (`digests.py`).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from jaxpar.checkpoint.digests import Entry, file_entries
from jaxpar.checkpoint.errors import Damage, reason
from jaxpar.checkpoint.folders import CHECKPOINTS, step_folder, step_name
from jaxpar.config.errors import UserError
from jaxpar.config.paths import flush_folder
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import quoted

MANIFEST = "manifest.json"
VERSION = 2
WRITER = re.compile(r"/ocdbt\.process_(\d+)/")
"""Orbax's folder of the data that one process wrote, in the name of a file."""
MOST_OF_MEAN = 1.5
"""Bytes that one process may verify because it wrote them, divided by the mean of all processes."""


class Manifest(NamedTuple):
    """The contents of a manifest."""

    step: int
    """The step of the checkpoint."""
    files: dict[str, Entry]
    """Entries by file name, relative to the checkpoint's folder."""
    text: bytes
    """Contents of the file."""


def unsealed(folder: Path) -> list[str]:
    """Names of all files of a checkpoint's folder but the manifest, relative to it and sorted."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(MANIFEST)
    )


def seal(folder: Path, step: int, files: Mapping[str, Entry]) -> None:
    """Write the manifest of a finished checkpoint folder whose files and folders are durable.

    The manifest appears by a rename, so it is whole or absent.

    Raises:
        OSError: the disk is full, read-only or broken.
    """
    temporary = folder / f"{MANIFEST}.tmp"
    with open(temporary, "wb") as file:
        file.write(encode(files, step))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)
    flush_folder(folder)
    flush_folder(folder.parent)


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint's folder.

    Raises:
        Damage: the manifest is absent, not exactly what `seal` writes, of another step than the folder's name, or names
            a file outside the folder.
    """
    try:
        raw = read_file(folder / MANIFEST)
    except FileNotFoundError:
        raise Damage(f"it is half-written (it has no {MANIFEST})") from None
    except UserError as error:
        raise Damage(f"its {MANIFEST} cannot be used ({error})") from None
    except OSError as error:
        raise Damage(f"its {MANIFEST} cannot be read ({reason(error)})") from error
    content = decode(raw)
    if step_name(content.step) != folder.name:
        raise Damage(
            f"its {MANIFEST} is that of step {content.step}, and the folder is named {quoted(folder.name)}; expected "
            f"{step_name(content.step)}"
        )
    for name in content.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
            raise Damage(f"its {MANIFEST} names a file outside the checkpoint ({quoted(name)})")
        if not name.isprintable():  # NUL and lone surrogates, which no system call accepts
            raise Damage(f"its {MANIFEST} names a file that cannot be ({quoted(name)})")
    return content


def is_sealed(folder: Path, step: int) -> bool:
    """Whether a run's folder has a complete checkpoint of a step."""
    return (step_folder(folder / CHECKPOINTS, step) / MANIFEST).exists()


def complete_steps(names: Iterable[str]) -> list[int]:
    """Steps of the complete checkpoints among the names of files of a run's folder, ascending."""
    parts = [name.split("/") for name in names if name.startswith(f"{CHECKPOINTS}/") and name.endswith(f"/{MANIFEST}")]
    return sorted(int(one[1]) for one in parts if len(one) == 3 and one[1].isascii() and one[1].isdigit())


def newest_files(names: Sequence[str]) -> list[str]:
    """The names of files of a run's folder without those of checkpoints, but for the newest complete one."""
    newest = f"{CHECKPOINTS}/{step_name(max(complete_steps(names), default=0))}/"
    return [name for name in names if name.startswith(newest) or not name.startswith(f"{CHECKPOINTS}/")]


def verify(folder: Path, only: Iterable[str] | None = None) -> None:
    """Read every file (or those named in `only`) and compare it with the manifest.

    Raises:
        Damage: the first difference found.
    """
    files = read(folder).files
    names = sorted(files if only is None else only)
    for name in names:
        if name not in files:
            raise Damage(f"its {MANIFEST} does not list {name}")
        _verify_size(folder, name, files[name].size)
    try:
        entries = file_entries(folder, names, flush=False)
    except OSError as error:
        raise Damage(f"{error.filename or 'a file'} cannot be read ({reason(error)})") from error
    for name in names:
        if entries[name].digest != files[name].digest:
            raise Damage(f"{name} is corrupt (its digest is not the one in {MANIFEST})")


def verify_sizes(folder: Path) -> None:
    """A cheap check that reads the manifest only: every file is there, with its size.

    Raises:
        Damage: the first difference found.
    """
    for name, entry in read(folder).files.items():
        _verify_size(folder, name, entry.size)


def divided(files: Mapping[str, Entry], count: int) -> list[list[str]]:
    """The names divided into `count` lists, one for each process of a job; a function of the entries.

    Where as many processes wrote the checkpoint, each gets the files that it wrote. It reads them next where the mesh
    is the same, and its host has them in memory then, so that each byte comes from the disk once. Other files, and all
    where the number of processes differs or one wrote more than `MOST_OF_MEAN` times the mean, are divided by size.
    """
    local = {name: int(match[1]) for name in files if (match := WRITER.search(name))}
    written = Counter[int]()
    for name, process in local.items():
        written[process] += files[name].size
    if {*written} != {*range(count)} or max(written.values()) * count > MOST_OF_MEAN * written.total():
        local = {}
    lists = [[name for name in sorted(local) if local[name] == index] for index in range(count)]
    # An empty file counts as a byte, so that they are divided, too.
    sizes = [(sum(files[name].size + 1 for name in names), index) for index, names in enumerate(lists)]
    heapq.heapify(sizes)
    for name in sorted(files.keys() - local.keys(), key=lambda name: (-files[name].size, name)):
        size, least = sizes[0]
        lists[least].append(name)
        heapq.heapreplace(sizes, (size + files[name].size + 1, least))
    return lists


@contextmanager
def view(folder: Path) -> Iterator[Path]:
    """A folder of symlinks to the files that the manifest lists, for the time of the block.

    Libraries decide what to read by the names that they find, so a file that somebody added could change that.

    Raises:
        Damage: as `read`.
        OSError: the folder for temporary files cannot be written to.
    """
    names = read(folder).files
    with tempfile.TemporaryDirectory(prefix="jaxpar-checkpoint-") as temporary:
        seen = Path(temporary, folder.name)
        for name in names:
            (seen / name).parent.mkdir(parents=True, exist_ok=True)
            (seen / name).symlink_to((folder / name).absolute())
        yield seen


def _verify_size(folder: Path, name: str, size: int) -> None:
    try:
        status = (folder / name).stat()
    except FileNotFoundError:
        raise Damage(f"{name} is missing") from None
    except OSError as error:
        raise Damage(f"{name} cannot be read ({reason(error)})") from error
    if not stat.S_ISREG(status.st_mode):
        raise Damage(f"{name} is not a regular file")
    if status.st_size != size:
        raise Damage(f"{name} has {status.st_size} bytes instead of {size}")


def encode(files: Mapping[str, Entry], step: int) -> bytes:
    """The manifest's text. It has a digest of itself, and there is exactly one text for the same contents."""
    body: dict[str, object] = {
        "version": VERSION,
        "step": step,
        "files": {name: {"size": entry.size, "digest": entry.digest} for name, entry in files.items()},
    }
    plain = json.dumps(body, sort_keys=True).encode()
    body["digest"] = hashlib.blake2b(plain, digest_size=32).hexdigest()
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def decode(raw: bytes) -> Manifest:
    """The contents of a manifest's text.

    Raises:
        Damage: `encode` would not write this text.
    """
    corrupt = Damage(f"its {MANIFEST} is corrupt")
    try:
        body = json.loads(raw)
        version = body["version"]
        files = {name: Entry(entry["size"], entry["digest"]) for name, entry in body["files"].items()}
        step = body.get("step", 0)
        # The text is a function of the contents, so writing it again finds any changed byte, blanks included.
        exact = type(step) is int and encode(files, step) == raw
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise corrupt from None
    if version != VERSION and json.dumps(version).isdigit():
        raise Damage(f"its {MANIFEST} has version {version}, and this release reads version {VERSION}")
    if not exact:
        raise corrupt
    return Manifest(step, files, raw)
