"""Atomic writes, and files that only grow."""

import os
from pathlib import Path

import pytest

from jaxpar.observe.files import GrowingFile, write_atomically
from tests.full_disk import full_disk


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = GrowingFile(path)
    file.append(b"first\n")
    with full_disk(10):
        for line in (b"second\n", b"third\n"):
            with pytest.raises(OSError, match="File too large"):
                file.append(line)
    assert path.read_bytes() == b"first\nseco"
    file.append(b"fourth\n")
    assert path.read_bytes() == b"first\nsecond\nthird\nfourth\n"
    file.close()


def test_what_cannot_be_written_at_the_end_is_an_error_and_the_file_is_closed(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "lines")
    with full_disk(3):
        with pytest.raises(OSError, match="File too large"):
            file.append(b"first\n")
        with pytest.raises(OSError, match="File too large"):
            file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(b"more")


def test_a_growing_file_grows_on_from_what_is_there(tmp_path: Path) -> None:
    for line in (b"first\n", b"second\n"):
        file = GrowingFile(tmp_path / "lines")
        file.append(line)
        file.close()
    assert (tmp_path / "lines").read_bytes() == b"first\nsecond\n"
