"""Paths and hosts that cannot be any, and URLs in place of paths, are one sentence before anything is opened."""

from pathlib import Path

import pytest

from jaxpar import train
from jaxpar.config.checks.paths import check_paths
from jaxpar.config.paths import is_host, user_location, user_path
from jaxpar.config.reading.sections import SECTIONS
from jaxpar.config.reading.typed import field_types
from jaxpar.config.validate import validate
from jaxpar.layout.choices.pipeline import table_text
from jaxpar.prepare import main as prepare
from tests.sentences import refused, refused_by_command
from tests.small_run import small

READ = {"data.routing", "distributed.secret_file", "parallel.schedule"}
WRITTEN = {"run.dir", "islands.folder", "memory.offload_dir"}
STORED = {"run.init_from", "run.mirror", "loss.reference", "data.path", "data.validation_path", "data.tokenizer"}
"""Keys that take the URL of an object store."""
NO_PATHS = {
    "run.name", "run.profile", "run.wandb", "run.compile_cache", "model.preset", "model.keys_of", "data.end_token",
    "data.text_key", "distributed.coordinator", "rl.environment",
}  # fmt: skip
"""Other keys with text; JAX reads and writes its cache of programs at URLs itself."""
CHECKED = ("run.dir", "run.compile_cache", "data.path", "data.validation_path", "data.sources", "memory.offload_dir",
           "distributed.secret_file")  # fmt: skip
"""Keys whose paths are opened as they are written."""


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
    assert texts == READ | WRITTEN | STORED | NO_PATHS


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("~nobody-here/x", ("'~nobody-here'", "not known", "in full")),
        ("a\0b", ("'a\\x00b'", "NUL", "UTF-8")),
        ("a\ud800b", ("'a\\ud800b'", "surrogate", "UTF-8")),
        ("\udcff", ("surrogate",)),
        ("s3://a..b/x", ("'s3://a..b/x' is a URL", "expected a path here")),
        ("s3:/a/x", ("'s3://a/x' is a URL", "expected a path here")),
        ("abfss://mine/a", ("'abfss://mine/a' is a URL", "s3://, gs:// or hf://")),
        ("https://example.org/a.npy", ("'https://example.org/a.npy' is a URL", "expected a path")),
    ],
    ids=ascii,
)
def test_a_path_that_cannot_be_one_is_refused_with_the_way_to_it(path: str, parts: tuple[str, ...]):
    with refused("run.init_from", *parts):
        user_path(path, "run.init_from")


@pytest.mark.parametrize("url", ["file:///data/tokens", "file:/data/tokens", "FILE://localhost/data/tokens"])
def test_a_url_of_a_file_is_its_path(url: str):
    assert user_path(url, "data.path") == user_location(url, "data.path") == Path("/data/tokens")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://", ("names no bucket",)),
        ("s3://KEY:secret@bucket/a", ("user or password",)),
        ("az://bucket/a", ("'az://bucket/a' is a URL", "s3://, gs:// or hf://")),
    ],
)
def test_a_url_that_names_no_store_is_refused_without_its_password(url: str, parts: tuple[str, ...]):
    with refused("data.path", *parts) as caught:
        user_location(url, "data.path")
    assert "secret" not in str(caught.value)


def test_a_url_is_taken_as_it_is_but_for_slashes():
    assert user_location(Path("s3://bucket/a//b/"), "data.path") == "s3://bucket/a/b"
    assert user_location("hf://datasets/name/a@main/x/", "data.path") == "hf://datasets/name/a@main/x"
    assert user_location("hf://gpt2@main", "data.path") == "hf://gpt2@main"


@pytest.mark.parametrize("path", ["~", "http//a", "a:b/c", "a:b", "x:/y", "../gs", "~/runs", "/mnt/bucket/runs"])
def test_paths_pass(path: str):
    assert user_path(path, "run.dir") == Path(path).expanduser()
    validate(small(run={"dir": path, "compile_cache": "gs://mine/xla"}))


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        *((key, "~nobody-here/x", ("~nobody-here", "not known")) for key in CHECKED),
        *((key, "a\x1b[31m", ("a\\x1b[31m", "control characters")) for key in CHECKED),
        *((key, "gs://mine/a", ("'gs://mine/a' is a URL", "docs/object-stores.md")) for key in sorted(READ)),
        *(("run.name", name, ("the name of one folder",)) for name in ("a\0", "\ud800", "a/b", "", "a\x1b[31mb")),
        *(
            ("distributed.coordinator", f"{host}:1234", ("host",))
            for host in ("a..b", ".a", "x" * 64, "\ud800", "a\0b")
        ),
        ("run.mirror", "runs", ("is a path", "s3://bucket/runs")),
        ("run.mirror", "hf://a/b", ("is a URL", "s3:// or gs://")),
    ],
    ids=ascii,
)
def test_every_path_name_and_host_of_a_configuration_is_checked(key: str, value: str, parts: tuple[str, ...]):
    section, name = key.split(".")
    job = {"processes": 2, "process_id": 0} if section == "distributed" else {}
    with refused(key, *parts):
        validate(small(**{section: job | {name: {value: 1.0} if name == "sources" else value}}))


@pytest.mark.parametrize("key", sorted(STORED))
def test_a_url_of_a_store_is_a_value_of_the_keys_that_take_one(key: str):
    section, name = key.split(".")
    check_paths(small(**{section: {name: "s3://mine/a"}}))
    with refused(f"{key}: 'http://mine/a' is a URL"):
        check_paths(small(**{section: {name: "http://mine/a"}}))


def test_a_url_among_the_sources_is_one_too():
    check_paths(small(data={"sources": {"/a": 0.5, "s3://mine/b": 0.5}}))


@pytest.mark.parametrize("key", sorted(WRITTEN))
@pytest.mark.parametrize(
    ("url", "hint"), [("gs://mine/runs", "docs/object-stores.md"), ("file:///runs", "the path '/runs'")]
)
def test_a_url_to_write_to_is_refused_and_no_folder_is_made(key: str, url: str, hint: str, elsewhere: Path, capfd):
    status = train.main(["--set", f"{key}={url}"])
    refused_by_command(status, *capfd.readouterr(), f"{key}: '{url}' is a URL", hint)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "[::1]", "::", "a-b.c_d.example", "x" * 63])
def test_a_host_is_a_name_or_an_address(host: str):
    assert is_host(host)


INTO = ("--input", "*", "--out", "o", "--train-bpe", "260")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--inspect", "~nobody-here"), ()),
        (("--verify", "a\0b"), ()),
        (("--input", "\udcff", "--out", "o", "--train-bpe", "260"), ()),
        (("--tokenizer", "~nobody-here/x", *INTO[:4]), ()),
        (("--separator", "\udcff", *INTO), ()),
        (("--text-key", "a\0", *INTO), ()),
        (("--input", "az://mine/*.jsonl", "--out", "t"), ("'az://mine/*.jsonl'", "s3://, gs:// or hf://")),
        (("--out", "hf://mine/t", "--input", "a.txt"), ("'hf://mine/t'", "s3:// or gs://")),
        (("--inspect", "file:///data/t"), ("'/data/t'",)),
    ],
)
def test_every_path_of_prepare_is_checked(arguments: tuple[str, ...], parts: tuple[str, ...], elsewhere: Path, capfd):
    (elsewhere / "a.txt").write_text("text")
    refused_by_command(prepare(arguments), *capfd.readouterr(), arguments[0], *parts)
    assert [path.name for path in elsewhere.iterdir()] == ["a.txt"]


def test_the_path_of_a_table_is_checked():
    with refused("parallel.schedule", "~nobody-here", "not known"):
        table_text("~nobody-here/x.csv")


def test_prepare_prints_no_control_characters_of_names(elsewhere: Path, capfd: pytest.CaptureFixture[str]):
    (elsewhere / "\x1b[31ma.txt").write_text("a text of some words")
    out = "o\x1b]0;t\x07"
    begin = ["--input", "*.txt", "--out", out, "--train-bpe", "260", "--validation-fraction", "0", "--processes", "1"]
    for arguments in (begin, begin, ["--inspect", out], ["--verify", out]):
        assert prepare(arguments) == 0
        printed = "".join(capfd.readouterr())
        assert printed.replace("\n", "").isprintable() and "\\x1b" in printed
