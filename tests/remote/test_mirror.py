"""A run's mirror in fsspec's memory: what it has after saves, kills and failures."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from jaxpar.checkpoint import manifest
from jaxpar.checkpoint.digests import file_entries
from jaxpar.checkpoint.folders import listed_steps, step_folder
from jaxpar.config import config_to_yaml
from jaxpar.observe.events import Listener
from jaxpar.remote import store
from jaxpar.training.run_folder import mirror as module
from jaxpar.training.run_folder.folder import RunFolder
from jaxpar.training.run_folder.mirror import Mirror, Share
from jaxpar.training.run_folder.mirror_fetch import OWNER, fetch
from jaxpar.training.run_folder.saves import Saves
from tests.sentences import refused
from tests.small_run import small

URL = "memory://bucket/runs/run"
CONFIG = small(checkpoint={"keep_last": 2, "keep_every": 40})


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder without checkpoints."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config_to_yaml(CONFIG))
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / ".lock").write_text("")
    return folder


def save(folder: Path, step: int, skipped: int = 0) -> None:
    """A sealed checkpoint, as a save leaves it."""
    path = step_folder(folder / "checkpoints", step)
    (path / "state").mkdir(parents=True)
    (path / "facts.json").write_text(json.dumps({"skipped_in_row": skipped}))
    for name in ("state/a", "state/b", "state/c"):
        (path / name).write_text(f"{name} of {step}")
    manifest.seal(path, step, file_entries(path, manifest.unsealed(path), flush=False))


def mirror(folder: Path, share: Share = Share(0, 1)) -> Mirror:  # noqa: B008
    return Mirror(URL, folder, CONFIG, share)


def begun(folder: Path, *steps: int) -> Mirror:
    """A mirror after saves of these steps, one at a time."""
    one = mirror(folder)
    one.begin()
    for step in steps:
        save(folder, step)
        one.saved(step)
        while one._waiting:
            threading.Event().wait(0.01)
    return one


def uploaded(folder: Path, *steps: int) -> Mirror:
    """The same after its end."""
    one = begun(folder, *steps)
    assert one.finish() is None
    return one


def stored_steps() -> list[int]:
    return manifest.complete_steps(store.listed(URL))


def test_a_mirror_has_what_the_folder_retains_and_no_hidden_files(system: Any, folder: Path):
    uploaded(folder, 10, 40, 50, 60)
    assert stored_steps() == [40, 50, 60]
    names = set(store.listed(URL))
    assert {name for name in names if not name.startswith("checkpoints/")} == {"config.yaml", "metrics.jsonl", OWNER}
    assert len(names) == 3 + 3 * 5


def test_a_run_without_a_folder_gets_the_newest_checkpoint(system: Any, folder: Path, tmp_path: Path):
    uploaded(folder, 10, 20)
    other = tmp_path / "other"
    assert "step 20" in (fetch(URL, other, CONFIG) or "")
    manifest.verify(step_folder(other / "checkpoints", 20))
    assert sorted(path.name for path in other.iterdir()) == ["checkpoints", "config.yaml", "metrics.jsonl"]
    assert [path.name for path in (other / "checkpoints").iterdir()] == ["00000020"]
    assert fetch(URL, other, CONFIG) is None


def test_a_checkpoint_without_its_manifest_is_not_fetched_and_is_removed_later(system: Any, folder: Path, tmp_path):
    uploaded(folder, 10)
    system.pipe_file(f"{URL}/checkpoints/00000015/state/a", b"of a killed upload")
    assert "step 10" in (fetch(URL, tmp_path / "other", CONFIG) or "")
    uploaded(folder, 20)
    assert not system.exists(f"{URL}/checkpoints/00000015")


def test_a_fetch_that_is_interrupted_leaves_no_complete_checkpoint_and_is_made_again(
    system: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uploaded(folder, 10)
    other, cat_file = tmp_path / "other", system.cat_file

    def cut(path: str, **options: Any) -> bytes:
        if path.endswith("state/b"):
            raise PermissionError
        return cat_file(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "cat_file", lambda self, path, **options: cut(path, **options))
        with refused("state/b", "credentials", error=store.StoreError):
            fetch(URL, other, CONFIG)
    assert not (step_folder(other / "checkpoints", 10) / "manifest.json").exists()
    path = step_folder(other / "checkpoints", 10)
    (path / "state/c").write_text("state/c of 11")  # another file of the same size
    asked: list[str] = []
    monkeypatch.setattr(
        type(system), "cat_file", lambda self, path, **options: (asked.append(path), cat_file(path, **options))[1]
    )
    assert fetch(URL, other, CONFIG) is not None
    manifest.verify(path)
    assert [name for name in ("state/a", "state/b", "state/c") if any(one.endswith(name) for one in asked)] == [
        "state/b", "state/c",
    ]  # fmt: skip


def test_the_store_of_another_run_is_refused_and_left_alone(system: Any, folder: Path, tmp_path: Path):
    uploaded(folder, 10)
    before = store.listed(URL)
    with refused("run.mirror", URL, "run.seed: 0 -> 7", "another run.name"):
        fetch(URL, folder, small(run={"seed": 7}))
    system.rm_file(f"{URL}/config.yaml")
    with refused("run.mirror", URL, "no config.yaml"):
        fetch(URL, folder, CONFIG)
    assert store.listed(URL).keys() == before.keys() - {"config.yaml"}


def claimed(folder: Path) -> list[str]:
    """The sentences of a start that uses this folder and the mirror."""
    config = small(run={"dir": str(folder.parent), "name": folder.name}, checkpoint={"keep_last": 2, "keep_every": 40})
    run = RunFolder(config)
    try:
        return run.claim(lambda: fetch(URL, folder, config))[1]
    finally:
        run.release()


def test_nothing_is_fetched_into_a_folder_that_is_no_run(system: Any, folder: Path, tmp_path: Path):
    uploaded(folder, 10)
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.jsonl").write_text("mine")
    with refused("run.name", "is not a run of jaxpar"):
        claimed(other)
    assert [(path.name, path.read_text()) for path in other.iterdir()] == [("metrics.jsonl", "mine")]


def test_checkpoints_that_are_gone_are_fetched(system: Any, folder: Path):
    (folder / "events.jsonl").write_text(json.dumps({"event": "saved", "checkpoint": 10}) + "\n")
    uploaded(folder, 10)
    shutil.rmtree(folder / "checkpoints")
    assert "step 10 was copied" in " ".join(claimed(folder))
    manifest.verify(step_folder(folder / "checkpoints", 10))
    shutil.rmtree(folder / "checkpoints")
    system.rm(f"{URL}/checkpoints", recursive=True)
    with refused("run.name", "is missing", "step 10 was saved"):
        claimed(folder)


def test_a_store_that_is_slower_than_retention_gets_checkpoints(system: Any, folder: Path, monkeypatch):
    one, put_file, answered = mirror(folder), type(system).put_file, threading.Event()

    def slow(self: Any, file: str, path: str, **options: Any) -> None:
        assert answered.wait(60) or "checkpoints" not in path
        put_file(self, file, path, **options)

    monkeypatch.setattr(type(system), "put_file", slow)
    saves = Saves(folder / "checkpoints", CONFIG.checkpoint, Listener(), one)
    one.begin()
    for step in (10, 20, 30, 50):
        save(folder, step)
        one.saved(step)
        while one.uploading is None:
            threading.Event().wait(0.01)
        saves._checkpointer._prune(step)
    assert one.uploading == 10
    assert listed_steps(folder / "checkpoints") == [10, 30, 50]
    answered.set()
    assert one.finish() is None
    assert "3 checkpoints of this run" in (note := one.notes()[-1])
    assert "1 checkpoint was deleted here before that" in note
    assert stored_steps() == [10, 30, 50]


def test_a_later_start_on_another_machine_takes_the_mirror_over(system: Any, folder: Path, tmp_path: Path):
    earlier = begun(folder, 10)
    fetch(URL, other := tmp_path / "other", CONFIG)
    (other / "metrics.jsonl").write_text("{}\n{}\n")
    uploaded(other, 20)
    save(folder, 20)
    save(folder, 30)
    earlier.saved(30)
    failure = earlier.finish() or ""
    assert "step 30 is not in memory://" in failure and "a later start of this run uploads to it" in failure
    assert stored_steps() == [10, 20]
    assert store.read(f"{URL}/metrics.jsonl") == b"{}\n{}\n"


def test_an_older_folder_gets_the_records_of_the_newer_checkpoint(system: Any, folder: Path, tmp_path: Path):
    uploaded(folder, 10)
    fetch(URL, other := tmp_path / "other", CONFIG)
    (other / "metrics.jsonl").write_text("{}\n" * 20)
    uploaded(other, 20)
    assert "step 20" in (fetch(URL, folder, CONFIG) or "")
    uploaded(folder)
    assert store.read(f"{URL}/metrics.jsonl") == b"{}\n" * 20


def test_an_upload_that_fails_is_counted_tried_again_and_named_at_the_end(system: Any, folder: Path, monkeypatch):
    one, put_file = mirror(folder), type(system).put_file
    broken = True

    def put(self: Any, file: str, path: str, **options: Any) -> None:
        if broken and "checkpoints" in path:
            raise OSError("busy")
        put_file(self, file, path, **options)

    monkeypatch.setattr(type(system), "put_file", put)
    one.begin()
    save(folder, 10)
    one.saved(10)
    while not one._failures:
        threading.Event().wait(0.01)
    (note,) = one.notes()
    assert "step 10 is not uploaded yet" in note and "failure 1" in note
    failure = one.finish() or ""
    assert "the checkpoint of step 10 is not in memory://" in failure and "the same command uploads it" in failure
    assert stored_steps() == []
    broken = False
    uploaded(folder)
    assert stored_steps() == [10]


def test_an_account_that_may_not_delete_uploads_checkpoints(system: Any, folder: Path, monkeypatch: pytest.MonkeyPatch):
    def rm_file(self: Any, path: str) -> None:
        raise PermissionError

    monkeypatch.setattr(type(system), "rm_file", rm_file)
    one = uploaded(folder, 10, 20, 30)
    (stays, _) = one.notes()
    assert f"stays in {URL}" in stays and "do not allow it" in stays
    assert stored_steps() == [10, 20, 30]


def test_a_file_that_cannot_be_read_costs_no_checkpoint_and_is_named_at_the_end(system: Any, folder: Path, monkeypatch):
    (folder / "profile.json").write_text("")
    upload_file = module.upload_file

    def unreadable(path: Path, url: str) -> None:
        if path.name == "profile.json":
            path.with_name("gone").stat()
        upload_file(path, url)

    monkeypatch.setattr(module, "upload_file", unreadable)
    save(folder, 10)
    failure = begun(folder).finish() or ""
    assert "the newest files of the run are not in" in failure and "profile.json" in failure
    assert stored_steps() == [10]


def test_an_error_of_any_kind_is_named_at_the_end(system: Any, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "begin", lambda *_: 1 / 0)
    save(folder, 10)
    failure = begun(folder).finish() or ""
    assert "the checkpoint of step 10 is not in memory://" in failure and "ZeroDivisionError" in failure


def test_processes_upload_their_shares_and_the_first_what_does_not_come(system: Any, folder: Path, monkeypatch):
    senders: dict[str, set[str]] = {}
    send = module.send

    def noted(path: Path, url: str, names: Any, there: Any) -> None:
        names = list(names)
        sender = threading.current_thread().name
        senders.setdefault(sender, set()).update(name for name in names if name not in there)
        send(path, url, names, there)

    monkeypatch.setattr(module, "send", noted)
    both = [mirror(folder, Share(index, 2)) for index in range(2)]
    for index, one in enumerate(both):
        one.begin()
        assert one._thread is not None
        one._thread.name = f"process {index}"
    save(folder, 10)
    for one in both:
        one.saved(10)
    assert [one.finish() for one in both] == [None, None]
    lists = manifest.divided(manifest.read(step_folder(folder / "checkpoints", 10)).files, 2)
    assert senders == {f"process {index}": set(names) for index, names in enumerate(lists)}
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    alone = mirror(folder, Share(0, 2))
    alone.begin()
    save(folder, 20)
    alone.saved(20)
    assert alone.finish() is None
    assert stored_steps() == [10, 20]
