"""A folder that several jobs write: a record is written once, by one of them, and is never half there."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxpar.checkpoint.errors import CheckpointError
from jaxpar.checkpoint.shared_folder import SharedFolder


def test_one_of_many_writes_a_record(tmp_path: Path):
    folders = [SharedFolder(tmp_path) for _ in range(16)]
    contents = [f"{index} ".encode() * 10_000 for index in range(16)]
    with ThreadPoolExecutor(16) as threads:
        wrote = list(threads.map(lambda one: one[0].create("a/b.json", one[1]), zip(folders, contents, strict=True)))
    assert sum(wrote) == 1
    assert folders[0].read("a/b.json") == contents[wrote.index(True)]
    assert folders[0].names("a") == ["b.json"] and os.listdir(tmp_path / "a") == ["b.json"]
    assert not folders[0].create("a/b.json", b"another")


def test_a_file_is_complete_under_its_name(tmp_path: Path):
    folder = SharedFolder(tmp_path)
    temporary = folder.begin("arrays/0")
    temporary.write_bytes(b"half")
    assert folder.names("arrays") == [] and folder.read("arrays/0") is None
    folder.finish(temporary, "arrays/0")
    assert folder.read("arrays/0") == b"half"
    folder.remove("arrays")
    folder.remove("arrays")
    assert folder.names("arrays") == []


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(CheckpointError, match="cannot make hard links"):
        SharedFolder(tmp_path).create("a", b"")
    assert os.listdir(tmp_path) == []
