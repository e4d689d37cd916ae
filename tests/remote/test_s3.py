"""URLs of an S3-compatible server that refuses, cuts and fills up: nothing is lost, and errors are a sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar import convert, prepare, report
from jaxpar.checkpoint import manifest
from jaxpar.config import DataConfig
from jaxpar.data import open_data
from jaxpar.remote import cache as cache_module
from jaxpar.remote import store
from jaxpar.remote.cache import local_path, source_url
from jaxpar.remote.upload import MARKER
from jaxpar.training.errors import TrainingError
from jaxpar.training.run.trainer import Trainer
from tests.data.folders import contents, prepared, texts, write_jsonl
from tests.patience import seconds
from tests.remote.s3_server import BUCKET, Server, environment
from tests.sentences import refused
from tests.training.runs import fit, folder_of, losses, run_config

pytestmark = pytest.mark.long
URL = f"s3://{BUCKET}"
BYTES = bytes(range(256)) * 3000


def put(name: str, content: bytes) -> str:
    store.write(f"{URL}/{name}", content)
    return f"{URL}/{name}"


def put_folder(folder: Path, name: str) -> str:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        store.upload_file(path, f"{URL}/{name}/{path.relative_to(folder).as_posix()}")
    return f"{URL}/{name}"


def test_rows_of_a_url_are_those_of_the_folder(s3: Server, tmp_path: Path):
    folder = prepared(tmp_path / "tokens", texts(60)).path
    url = put_folder(folder, "tokens")
    here, there = (
        open_data(DataConfig(source="tokens", path=path, sequence_length=32, batch_size=4), vocab=None, seed=3)
        for path in (str(folder), url)
    )
    assert url in there.description
    for index in range(20):
        row, same = here.train.row(index), there.train.row(index)
        assert row.keys() == same.keys()
        assert all(np.array_equal(row[name], same[name]) for name in row)


def test_text_at_a_url_is_prepared_to_a_url_as_from_and_to_a_folder(s3: Server, tmp_path: Path, capsys: Any):
    for index in range(2):
        put(f"text/{index}.jsonl", write_jsonl(tmp_path / "a.jsonl", texts(20, seed=index)).read_bytes())
    put("text/deeper/not.jsonl", b"no JSON")
    common = ("--train-bpe", "280", "--processes", "1")
    assert prepare.main(("--input", f"{URL}/text/*.jsonl", "--out", f"{URL}/tokens", *common)) == 0
    assert f"to {URL}/tokens, with 0 retries" in capsys.readouterr().out.replace("\n", " ")
    for index in range(2):
        write_jsonl(tmp_path / f"{index}.jsonl", texts(20, seed=index))
    (tmp_path / "a.jsonl").unlink()
    assert prepare.main(("--input", f"{tmp_path}/*.jsonl", "--out", str(tmp_path / "tokens"), *common)) == 0
    assert prepare.main(("--verify", f"{URL}/tokens")) == 0
    stored, folder = local_path(f"{URL}/tokens", "x"), tmp_path / "tokens"
    assert {name: value for name, value in contents(stored).items() if name.endswith(".bin")} == {
        name: value for name, value in contents(folder).items() if name.endswith(".bin")
    }
    assert prepare.main(("--input", f"{URL}/text/*.jsonl", "--out", f"{URL}/tokens", *common)) == 2
    assert f"--out: '{URL}/tokens' exists" in capsys.readouterr().err
    assert not list((cache_module.cache_folder() / "out").iterdir())


def test_what_is_refused_or_cut_is_read_again_to_the_last_byte(s3: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "BLOCK_BYTES", 100_000)
    urls = [put(f"shards/{index}.bin", BYTES[index:]) for index in range(4)]
    s3.busy, s3.cut, before = 2, 3, store.traffic.retries  # fewer than the tries of one call
    folder = local_path(f"{URL}/shards", "data.path")
    assert [(folder / f"{index}.bin").read_bytes() for index in range(4)] == [BYTES[index:] for index in range(4)]
    assert store.traffic.retries - before == 5
    assert source_url(folder / "2.bin") == urls[2]
    assert s3.busy == s3.cut == 0


def test_a_part_of_a_large_upload_is_tried_again_by_itself(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    least = 5 * 2**20  # of a part but the last
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda *_, **__: least)
    monkeypatch.setattr(store, "BLOCK_BYTES", least)
    file = tmp_path / "large"
    file.write_bytes(os.urandom(1000) * (5 * least // 1000))
    before = store.traffic.retries
    s3.every = 3  # one part at least of any try of the file
    store.upload_file(file, f"{URL}/large")
    assert store.read(f"{URL}/large") == file.read_bytes() and store.traffic.retries - before == 2
    s3.every, s3.full = 0, True
    with refused(f"{URL}/large", "failed 6 times", error=store.StoreError):
        store.upload_file(file, f"{URL}/large")
    system = store._filesystem("s3")
    s3.reset()
    assert "Uploads" not in system.call_s3("list_multipart_uploads", Bucket=BUCKET)


def test_a_file_that_was_copied_in_part_is_continued(s3: Server, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "BLOCK_BYTES", 100_000)
    url = put("one.bin", BYTES)
    download, calls = store.persistent, []

    def killed(url: str, call: Any) -> Any:
        calls.append(url)
        if len(calls) == 5:  # after the listing and three blocks
            raise KeyboardInterrupt
        return download(url, call)

    with monkeypatch.context() as patch:
        patch.setattr(store, "persistent", killed)
        with pytest.raises(KeyboardInterrupt):
            local_path(url, "data.path")
    (part,) = cache.rglob("*.part")
    assert part.stat().st_size == 300_000
    s3.asked.clear()
    assert local_path(url, "data.path").read_bytes() == BYTES
    assert len([1 for method, _ in s3.asked if method == "GET"]) == 2 + 5  # it is listed before and after


def test_the_least_recently_used_copy_goes_and_one_in_use_stays(s3: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAXPAR_CACHE_SIZE", "2500")
    paths = {}
    for name in ("a", "b"):
        paths[name] = local_path(put(name, bytes(1000)), "data.path")
    with refused("data.path", f"{URL}/c", "JAXPAR_CACHE_SIZE"):
        local_path(put("c", bytes(1000)), "data.path")
    for descriptor in cache_module._in_use.values():  # as at the end of this process
        os.close(descriptor)
    cache_module._in_use.clear()
    time.sleep(0.01)
    assert local_path(f"{URL}/a", "data.path").exists()
    local_path(f"{URL}/c", "data.path")
    assert paths["a"].exists() and not paths["b"].exists()
    with refused("data.path", f"{URL}/big", "2.9 KiB", "2.4 KiB"):
        local_path(put("big", bytes(3000)), "data.path")


def test_a_file_that_changes_while_it_is_copied_is_refused_and_copied_again(s3: Server, monkeypatch):
    monkeypatch.setattr(store, "BLOCK_BYTES", 1000)
    url, persistent, calls = put("a.bin", b"A" * 3000), store.persistent, []

    def changing(url: str, call: Any) -> Any:
        calls.append(url)
        if len(calls) == 3:  # after the listing and one block
            with monkeypatch.context() as patch:
                patch.setattr(store, "persistent", persistent)
                put("a.bin", b"B" * 5000)
        return persistent(url, call)

    with monkeypatch.context() as patch:
        patch.setattr(store, "persistent", changing)
        with refused("data.path", url, "changed while it was copied"):
            local_path(url, "data.path")
    put("a.bin", b"A" * 3000)
    assert local_path(url, "data.path").read_bytes() == b"A" * 3000


def test_a_changed_file_is_copied_again(s3: Server):
    old = local_path(put("a", b"old"), "data.path")
    new = local_path(put("a", b"new"), "data.path")
    assert (old.read_bytes(), new.read_bytes()) == (b"old", b"new")


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("stranger", ("credentials are missing or wrong",)), ("nobody", ("credentials are missing or wrong",)),
        ("bucket", ("no such bucket",)), ("nothing", ("nothing is there",)), ("busy", ("failed 6 times",)),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_read_is_refused_in_one_sentence(s3, fault, parts, monkeypatch):
    url = f"{URL}/tokens" if fault != "bucket" else "s3://no-such-bucket/tokens"
    if fault == "nobody":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        store._filesystem.cache_clear()
    s3.stranger, s3.busy = fault == "stranger", 6 if fault == "busy" else 0
    with refused("run.init_from", url, *parts) as caught:
        local_path(url, "run.init_from")
    for secret in ("TESTKEYID", "test-secret-value"):
        assert secret not in str(caught.value)


KILLED = """
import sys
from pathlib import Path
from jaxpar.remote import store, upload
store.THREADS = 1
upload._upload(Path(sys.argv[1]), sys.argv[2], ["config.json"])
"""


def test_a_killed_upload_is_not_whole_and_the_next_one_sends_the_rest(s3: Server, tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors", "c.safetensors", "config.json"):
        (folder / name).write_bytes(BYTES)
    s3.delay_s = 0.3
    command = [sys.executable, "-c", KILLED, str(folder), f"{URL}/model"]
    child = subprocess.Popen(command, env=os.environ | environment(s3))
    deadline = time.monotonic() + seconds(60)
    while not any(method == "PUT" and "b.safetensors" in path for method, path in s3.asked):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    s3.reset()
    names = set(store.listed(f"{URL}/model"))
    assert MARKER in names
    assert "config.json" not in names and "a.safetensors" in names
    s3.asked.clear()
    subprocess.run(command, env=os.environ | environment(s3), check=True)
    sent = {Path(path).name for method, path in s3.asked if method == "PUT"}
    assert sent == {"a.safetensors", "b.safetensors", "c.safetensors", "config.json"} - names


def test_a_run_whose_folder_is_gone_continues_from_its_mirror_as_if_nothing_had_been(s3: Server, tmp_path, capsys):
    def config(name: str, steps: int, **run: Any):
        options = {"name": name, "mirror": f"{URL}/runs", **run}
        return run_config(tmp_path, steps, run=options, checkpoint={"every": 2, "keep_last": 1})

    fit(config("whole", 6, mirror=None))
    s3.busy, before = 3, store.traffic.retries
    _, recorded = fit(config("moved", 4))
    # That of step 2 is uploaded only if it is before that of step 4 takes its place.
    assert any("of this run went to s3://" in text for text in recorded.messages)
    assert s3.busy == 0 and store.traffic.retries - before == 3
    assert manifest.complete_steps(store.listed(f"{URL}/runs/moved")) == [4]
    shutil.rmtree(folder_of(config("moved", 4)))
    s3.cut = 2
    _, recorded = fit(config("moved", 6))
    assert s3.cut == 0
    assert any(text.startswith("The checkpoint of step 4 was copied from") for text in recorded.messages)
    assert [record.step for record in recorded.records] == [5, 6]
    assert losses(config("moved", 6)) == losses(config("whole", 6))
    assert manifest.complete_steps(store.listed(f"{URL}/runs/moved")) == [6]
    assert {"config.yaml", "metrics.jsonl"} <= store.listed(f"{URL}/runs/moved").keys()
    # The run at its URL is a model, and its record a report.
    assert convert.main(("jaxpar-to-hf", f"{URL}/runs/moved", "--check")) == 0
    assert convert.main(("jaxpar-to-hf", f"{URL}/runs/moved", f"{URL}/model")) == 0
    assert f"{URL}/model: " in capsys.readouterr().out.replace("\n", " ")
    assert convert.main(("jaxpar-to-hf", f"{URL}/runs/moved", f"{URL}/other", "--dtype", "int3")) == 2
    assert not list((cache_module.cache_folder() / "out").iterdir())
    assert report.main([f"{URL}/runs/moved", "--out", str(tmp_path / "page.html")]) == 0
    assert report.main([f"{URL}/runs/moved", "--out", f"{URL}/page.html"]) == 0
    assert (store.read(f"{URL}/page.html") or b"").startswith(b"<!")
    put("weights.bin", b"of a model")
    assert report.main([f"{URL}/runs/moved", "--out", f"{URL}/page.html"]) == 0
    assert report.main([f"{URL}/runs/moved", "--out", f"{URL}/weights.bin"]) == 2
    assert store.read(f"{URL}/weights.bin") == b"of a model"
    with refused("run.mirror", "a stored configuration does not get to write"):
        Trainer.from_checkpoint(f"{URL}/runs/moved")
    trainer = Trainer.from_checkpoint(f"{URL}/runs/moved", overrides=["run.mirror=null"], devices=jax.devices()[:1])
    assert (trainer.steps_done, trainer.config.run.dir) == (6, str(tmp_path))
    begun = config("begun", 1, mirror=None, init_from=f"{URL}/runs/moved")
    _, recorded = fit(begun)
    (path,) = (folder_of(begun) / "checkpoints").glob("*/facts.json")
    assert f"{URL}/runs/moved (step 6)" in json.loads(path.read_text())["came_from"]


def test_a_run_whose_store_is_full_ends_with_a_sentence_and_all_on_disk(s3: Server, tmp_path: Path):
    config = run_config(tmp_path, 4, run={"name": "full", "mirror": f"{URL}/runs"}, checkpoint={"every": 2})
    s3.full = True
    with refused("the checkpoint of step 4 is not in", "InsufficientCapacity", "the same command", error=TrainingError):
        fit(config)
    assert sorted(losses(config)) == [1, 2, 3, 4]
    s3.reset()
    fit(config)
    assert manifest.complete_steps(store.listed(f"{URL}/runs/full")) == [2, 4]


def test_a_run_that_is_refused_uploads_nothing(s3: Server, tmp_path: Path):
    def config(name: str, **run: Any):
        return run_config(tmp_path, 2, run={"name": name, **run}, checkpoint={"every": 2})

    fit(config("run"))
    with refused("run.name", "run.seed: 0 -> 7"):
        fit(config("run", seed=7, mirror=f"{URL}/runs"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    with refused("run.name", "is not a run of jaxpar"):
        fit(config("other", mirror=f"{URL}/runs"))
    assert store.listed(f"{URL}/runs") == {}
