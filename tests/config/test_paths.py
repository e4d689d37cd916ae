"""Paths and hosts that cannot be any are one sentence, before anything is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxpar.config.paths import is_host, user_path
from jaxpar.config.validate import validate
from jaxpar.layout.choices.pipeline import table_text
from jaxpar.prepare import main as prepare
from tests.sentences import refused, refused_by_command
from tests.small_run import small

HOSTILE = {
    "~nobody-here/x": ("'~nobody-here'", "not known", "in full"),
    "~": (),
    "a\0b": ("'a\\x00b'", "NUL", "UTF-8"),
    "a\ud800b": ("'a\\ud800b'", "surrogate", "UTF-8"),
    "\udcff": ("surrogate",),
    "s3://a..b/x": ("'s3://a..b/x'", "is a URL", "mount"),
    "gs://bucket": ("is a URL", "mount"),
    "s3:/a/x": ("is a URL",),
    "http//a": (),
    "a:b/c": (),
}


@pytest.mark.parametrize(("path", "parts"), HOSTILE.items(), ids=ascii)
def test_a_path_that_cannot_be_one_is_refused(path, parts):
    if parts:
        with refused("run.dir", *parts):
            user_path(path, "run.dir")
    else:
        assert user_path(path, "run.dir") == Path(path).expanduser()


KEYS = ["run.dir", "run.compile_cache", "data.path", "data.heldout_path", "data.sources", "memory.offload_dir",
        "distributed.secret_file"]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_every_path_of_a_configuration_is_checked(key):
    section, name = key.split(".")
    value = {"~nobody-here/x": 1.0} if name == "sources" else "~nobody-here/x"
    with refused(key, "~nobody-here", "not known"):
        validate(small(**{section: {name: value}}))


@pytest.mark.parametrize("key", KEYS)
def test_no_path_has_control_characters(key):
    section, name = key.split(".")
    value = {"a\x1b[31m": 1.0} if name == "sources" else "a\x1b[31m"
    with refused(key, "a\\x1b[31m", "control characters"):
        validate(small(**{section: {name: value}}))


@pytest.mark.parametrize("name", ["a\0", "\ud800", "a/b", "", "a\x1b[31mb"])
def test_the_name_of_a_run_is_one_of_a_folder(name):
    with refused("run.name", "expected the name of one folder"):
        validate(small(run={"name": name}))


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64, "\ud800", "a\0b"])
def test_a_host_that_cannot_be_one_is_refused(host):
    assert not is_host(host)
    with refused("distributed.coordinator", "host"):
        validate(small(distributed={"coordinator": f"{host}:1234", "processes": 2, "process_id": 0}))


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "[::1]", "::", "a-b.c_d.example", "x" * 63])
def test_a_host_is_a_name_or_an_address(host):
    assert is_host(host)


FLAGS = [
    ("--inspect", "~nobody-here"),
    ("--verify", "a\0b"),
    ("--input", "\udcff", "--out", "o", "--train-bpe", "260"),
    ("--out", "s3://a..b/x", "--input", "*", "--train-bpe", "260"),
    ("--tokenizer", "~nobody-here/x", "--input", "*", "--out", "o"),
    ("--separator", "\udcff", "--input", "*", "--out", "o", "--train-bpe", "260"),
    ("--text-key", "a\0", "--input", "*", "--out", "o", "--train-bpe", "260"),
]


@pytest.mark.parametrize("arguments", FLAGS, ids=lambda arguments: arguments[0])
def test_every_path_of_prepare_is_checked(arguments, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("x")
    refused_by_command(prepare(arguments), *capfd.readouterr(), arguments[0])
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_the_path_of_a_table_is_checked():
    with refused("parallel.schedule", "~nobody-here", "not known"):
        table_text("~nobody-here/x.csv")


def test_prepare_prints_no_control_characters_of_names(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "\x1b[31ma.txt").write_text("a text of some words")
    out = "o\x1b]0;t\x07"
    begin = ["--input", "*.txt", "--out", out, "--train-bpe", "260", "--heldout-fraction", "0", "--processes", "1"]
    for arguments in (begin, begin, ["--inspect", out], ["--verify", out]):
        assert prepare(arguments) == 0
        printed = "".join(capfd.readouterr())
        assert printed.replace("\n", "").isprintable() and "\\x1b" in printed
