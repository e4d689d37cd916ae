"""URLs in place of paths: one sentence before anything is written, for every key that names a file or a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxpar import prepare, train
from jaxpar.config import load_config
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import field_types
from jaxpar.config.validate import validate
from tests.sentences import refused, refused_by_command

READ = {
    "run.init_from",
    "loss.reference",
    "data.path",
    "data.heldout_path",
    "data.routing",
    "distributed.secret_file",
    "parallel.schedule",
}
WRITTEN = {"run.dir", "memory.offload_dir"}
NO_PATHS = {"run.name", "run.profile", "run.wandb", "run.compile_cache", "model.preset", "distributed.coordinator"}
"""Other keys with text; JAX reads and writes its cache of programs at URLs itself."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_key_with_text_is_known_here():
    texts = {
        f"{section}.{key}"
        for section, record in SECTIONS.items()
        for key, annotation in field_types(record).items()
        if annotation in (str, str | None)
    }
    assert texts == READ | WRITTEN | NO_PATHS


@pytest.mark.parametrize("key", sorted(READ))
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("gs://mine/a/tokens", "(gcsfuse) and write its path, as in /mnt/mine/a/tokens"),
        ("s3://mine/a/tokens", "(mount-s3, which is Mountpoint for Amazon S3)"),
        ("abfss://mine/a", "blobfuse2"),
        ("https://example.org/a.npy", "expected a path"),
        ("file:///data/tokens", "expected the path '/data/tokens'"),
        ("file://localhost/data/tokens", "expected the path '/data/tokens'"),
    ],
)
def test_a_url_to_read_is_answered_with_how_to_mount_it(key: str, url: str, hint: str):
    shown = url.replace("localhost", "")
    with refused(f"{key}: '{shown}' is a URL", hint):
        validate(load_config(None, [f"{key}={url}"]))


def test_a_url_among_the_sources_is_named():
    with refused("data.sources: 's3://mine/b' is a URL", "/mnt/mine/b"):
        validate(load_config(None, ["data.source=tokens", "data.sources={/a: 0.5, 's3://mine/b': 0.5}"]))


@pytest.mark.parametrize("key", sorted(WRITTEN))
@pytest.mark.parametrize(
    ("url", "hint"), [("gs://mine/runs", "file system that all hosts share"), ("file:///runs", "the path '/runs'")]
)
def test_a_url_to_write_to_is_refused_and_no_folder_is_made(
    key: str, url: str, hint: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]
):
    status = train.main(["--set", f"{key}={url}"])
    refused_by_command(status, *capfd.readouterr(), f"{key}: '{url}' is a URL", hint)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--input", "gs://mine/*.jsonl", "--out", "t"], ("--input: 'gs://mine/*.jsonl'", "gcsfuse")),
        (["--input", "a.txt", "--out", "s3://mine/t"], ("--out: 's3://mine/t'", "file system that all hosts share")),
        (["--input", "a.txt", "--out", "t", "--tokenizer", "gs://m/t.json"], ("--tokenizer: 'gs://m/t.json'", "/mnt/")),
        (["--inspect", "file:///data/t"], ("--inspect: 'file:///data/t'", "'/data/t'")),
        (["--verify", "hf://datasets/x"], ("--verify: 'hf://datasets/x'", "expected a path")),
    ],
)
def test_prepare_takes_no_urls(
    arguments: list[str], parts: tuple[str, ...], elsewhere: Path, capfd: pytest.CaptureFixture[str]
):
    (elsewhere / "a.txt").write_text("text")
    refused_by_command(prepare.main(arguments), *capfd.readouterr(), *parts)
    assert [entry.name for entry in elsewhere.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("path", ["runs", "/mnt/bucket/runs", "~/runs", "a:b", "x:/y", "../gs"])
def test_paths_pass(path: str):
    validate(load_config(None, [f"run.dir={path}", "run.compile_cache=gs://mine/xla"]))
