"""Uploads in fsspec's memory: what is whole when, what is sent again, and how often a call is tried."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.remote import store, upload
from tests.sentences import refused

LAST = ("config.json",)
URL = "memory://bucket/model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "hf").mkdir(parents=True)
    for name in ("a.safetensors", "hf/b.safetensors", "config.json"):
        (folder / name).write_text(name)
    return folder


def names() -> set[str]:
    return set(store.listed(URL))


def test_an_interrupted_upload_sends_only_what_is_missing(system: Any, folder: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(file: Path, url: str) -> None:
        if file.name == "b.safetensors":
            raise KeyboardInterrupt
        store.upload_file(file, url)

    monkeypatch.setattr(upload, "upload_file", broken)
    with pytest.raises(KeyboardInterrupt):
        upload._upload(folder, URL, LAST)
    assert names() == {"a.safetensors", upload.MARKER}
    sent = list[str]()
    monkeypatch.setattr(upload, "upload_file", lambda file, url: (sent.append(file.name), store.upload_file(file, url)))
    upload._upload(folder, URL, LAST)
    assert sent == ["b.safetensors", "config.json"]
    assert upload.MARKER not in names()


def test_files_of_another_upload_are_removed_before_one_begins(system: Any, folder: Path):
    upload._upload(folder, URL, LAST)
    (folder / "a.safetensors").write_text("A.safetensors")  # of the same size
    (folder / "hf/b.safetensors").unlink()
    upload._upload(folder, URL, LAST)
    assert names() == {"a.safetensors", "config.json"}
    assert system.cat_file(f"{URL}/a.safetensors") == b"A.safetensors"


def test_an_upload_does_not_make_the_files_of_another_one_whole(system: Any, folder: Path):
    there = upload.begin(URL, b"of this one", LAST)
    upload.send(folder, URL, ["a.safetensors"], there)
    (folder / "a.safetensors").write_text("A.safetensors")  # of the same size
    there = upload.begin(URL, b"of another one", LAST)
    upload.send(folder, URL, ["a.safetensors"], there)
    with refused(URL, "another upload", error=store.StoreError):
        upload.finish(folder, URL, b"of this one", ["a.safetensors", "config.json"], LAST)
    assert names() == {"a.safetensors", upload.MARKER}


def test_a_folder_that_is_removed_is_not_whole_from_the_first_file_on(system: Any, folder: Path, monkeypatch):
    upload._upload(folder, URL, LAST)
    removed = list[str]()
    monkeypatch.setattr(upload, "remove", lambda urls: removed.extend(urls))
    upload.remove_folder(URL, names(), LAST)
    assert removed[0] == f"{URL}/config.json" and len(removed) == 3


def test_a_call_is_tried_again_and_counted(system: Any):
    failures = iter([OSError("busy"), TimeoutError()])

    def call(_system: Any, _path: str) -> str:
        for failure in failures:
            raise failure
        return "done"

    before = store.traffic.retries
    assert store.persistent(URL, call) == "done" and store.traffic.retries - before == 2


@pytest.mark.parametrize(
    ("failure", "tries", "parts"),
    [
        (PermissionError("key TESTKEYID"), 1, ("credentials are missing or wrong",)),
        (FileNotFoundError("The specified bucket does not exist"), 1, ("no such bucket",)),
        (OSError("busy: https://host/x?X-Amz-Credential=TESTKEYID"), 6, ("failed 6 times", "OSError: busy")),
    ],
    ids=["credentials", "bucket", "busy"],
)
def test_what_a_store_refuses_is_one_sentence_without_credentials(system, failure, tries, parts):
    asked = list[str]()

    def call(_system: Any, path: str) -> None:
        asked.append(path)
        raise failure

    with refused(URL, *parts, error=store.StoreError) as caught:
        store.persistent(URL, call)
    assert len(asked) == tries
    assert "TESTKEYID" not in str(caught.value)


def test_a_store_whose_library_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(store._LIBRARIES, "gs", ("gcsfs_that_is_missing", "gcs"))
    with refused("gs://", "gcsfs_that_is_missing", "pip install -e '.[gcs]'", error=store.StoreError):
        store.listed("gs://bucket/x")


def test_the_digests_of_an_upload_are_of_all_its_files(system: Any, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upload, "send", lambda *_: None)
    with refused("a.safetensors", "does not list", error=store.StoreError):
        upload._upload(folder, URL, LAST)
    assert json.loads(system.cat_file(f"{URL}/{upload.MARKER}")).keys() == {
        "a.safetensors", "config.json", "hf/b.safetensors",
    }  # fmt: skip
