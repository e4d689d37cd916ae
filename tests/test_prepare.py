"""`python -m jaxpar.prepare` as a command: what it prints, and the one sentence for each mistake."""

import gzip
import shutil

import pyarrow as arrow
import pyarrow.parquet
import pytest

from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.prepare import main
from tests.data.folders import contents, prepared, texts, write_jsonl, write_tokenizer
from tests.sentences import refused_by_command


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An input and a tokenizer."""
    folder = tmp_path_factory.mktemp("files")
    write_jsonl(folder / "a.jsonl", texts(60))
    write_tokenizer(folder / "tokenizer.json")
    return folder


def run(capsys, *arguments):
    """Exit code, output and errors of the command."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *arguments, parts=()):
    """The sentence with which the command refuses, and names `parts`; how far it came may stand on stdout."""
    status, _, errors = run(capsys, *arguments)
    return refused_by_command(status, "", errors, *parts)


def arguments(files, out, *more):
    """A whole command line; what `more` says again wins."""
    given = ["--input", files / "a.jsonl", "--tokenizer", files / "tokenizer.json", "--out", out, "--processes", 1]
    return [*given, *more]


def test_a_folder_is_made_and_reported(capsys, files, tmp_path):
    code, out, errors = run(capsys, *arguments(files, tmp_path / "out", "--validation-fraction", 0.1))
    assert (code, errors) == (0, "")
    assert "1 file, " in out and "documents to train on, " in out and "for validation, " in out
    assert f"--set data.source=tokens --set data.path={tmp_path / 'out'}" in out


def test_documents_are_left_out_by_each_option(capsys, files, tmp_path):
    wanted = texts(60)
    source = write_jsonl(tmp_path / "b.jsonl", [wanted[0], "to drop", "too short", "without"])
    (tmp_path / "f.py").write_text("def good(text):\n    return text != 'too short'\n")
    task = write_jsonl(tmp_path / "task.jsonl", [wanted[1], wanted[2], "brief"])
    options = ["--keep", "^(?!without)", ".", "--drop", "^to drop", "--filter", f"{tmp_path / 'f.py'}:good"]
    options += ["--dedup", "exact", "--decontaminate", task, "--ngram", 8]
    code, out, errors = run(capsys, *arguments(files, tmp_path / "out", "--input", source, *options))
    assert (code, errors) == (0, "")
    assert "1 of 3 texts are shorter than 8 tokens and are not looked for" in " ".join(out.split())
    skipped = open_token_folder(tmp_path / "out", key="--out").index.skipped
    assert skipped.pop("contaminated") >= 2
    assert skipped == {"empty": 0, "broken": 0, "keep": 1, "drop": 1, "filter": 1, "duplicate": 1}


def test_inspect_shows_counts_lengths_and_documents(capsys, tmp_path):
    folder = prepared(tmp_path / "out", texts(60))
    code, out, errors = run(capsys, "--inspect", folder.path, "--documents", 1)
    assert (code, errors) == (0, "")
    assert "uint16 tokens, vocabulary 257, documents end with token 256 ('<|endoftext|>')" in out
    rows = {
        line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith((" train", " validation"))
    }
    for split in ("train", "validation"):
        index = folder.index
        counts = [len(index.shards(split)), index.documents_in(split), index.tokens_in(split)]
        assert [int(cell.replace(",", "")) for cell in rows[split][:3]] == counts
    bars = [line.rsplit(None, 2)[1:] for line in out.splitlines() if line.rstrip().endswith("#")]
    assert sum(int(count) for count, _ in bars) == 60
    assert f"  | {texts(60)[0]}" in out or f"  | {texts(60)[1]}" in out
    assert out.count("Document 1 of ") == 2


def test_verify_states_that_all_is_well_or_what_is_not(capsys, tmp_path):
    folder = prepared(tmp_path / "out", texts(60)).path
    code, out, _ = run(capsys, "--verify", folder)
    assert code == 0 and "are what was written" in out
    raw = bytearray((folder / "train-00001.npy").read_bytes())
    raw[-1] ^= 1
    (folder / "train-00001.npy").write_bytes(raw)
    assert f"{folder / 'train-00001.npy'} is damaged (bytes 0 to" in refused(capsys, "--verify", folder)
    assert "train-00001.npy is damaged" in refused(capsys, "--inspect", folder)


WHOLE = "--input a.jsonl --tokenizer tokenizer.json --out out --processes 1 "


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "--input | --spans | --inspect | --verify"),
        ("--input x --inspect y", "one of --input"),
        ("--input x", "--out is missing"),
        ("--input a.jsonl --out o", "--tokenizer | --train-bpe"),
        ("--input a.jsonl --out o --train-bpe 100", "--train-bpe 100 | 257"),
        ("--inspect x --out o", "--out is for --input | --inspect"),
        ("--inspect x --documents -1", "--documents -1 | 0 to 1000000"),
        ("--inspect gone", "gone | no index.json"),
        (WHOLE + "--train-bpe 400", "--tokenizer | --train-bpe"),
        (WHOLE + "--tokenizer gone.json", "--tokenizer 'gone.json' does not exist"),
        (WHOLE + "--tokenizer a.jsonl", "--tokenizer | not valid JSON"),
        (WHOLE + "--separator <end>", "--separator '<end>' | special tokens"),
        (WHOLE + "--validation-fraction 1.5", "--validation-fraction 1.5 | 0 to below 1"),
        (WHOLE + "--processes 0", "--processes 0 | at least 1"),
        (WHOLE + "--input gone*.txt", "--input 'gone*.txt' matches no file"),
        (WHOLE + "--format chat --text-key body", "--text-key | conversation"),
        (WHOLE + "--text-key body", "a.jsonl | 'id', 'text'"),
    ],
)
def test_a_command_without_sense_makes_nothing(capsys, files, monkeypatch, given, words):
    monkeypatch.chdir(files)
    before = sorted(files.iterdir())
    refused(capsys, *given.split(), parts=words.split(" | "))
    assert sorted(files.iterdir()) == before


def test_a_tokenizer_without_an_end_of_document(capsys, files, tmp_path):
    text = (files / "tokenizer.json").read_text().replace("<|endoftext|>", "<stop>")
    (tmp_path / "t.json").write_text(text)
    given = arguments(files, tmp_path / "out", "--tokenizer", tmp_path / "t.json")
    refused(capsys, *given, parts=("tokenizer", "end-of-document", "--separator", "'<stop>'"))
    assert run(capsys, *given, "--separator", "<stop>")[0] == 0


def test_an_output_folder_that_holds_something_else_is_left_alone(capsys, files, tmp_path):
    (tmp_path / "notes").write_text("mine")
    refused(capsys, *arguments(files, tmp_path), parts=("--out", "(notes)", "a new or empty one"))
    refused(capsys, *arguments(files, tmp_path / "notes"), parts=("--out", "not a folder", "a new or empty one"))
    assert contents(tmp_path) == {"notes": b"mine"}


def test_a_folder_that_was_made_with_other_arguments(capsys, files, tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine"
    shutil.copytree(files, mine)
    assert run(capsys, *arguments(mine, out))[0] == 0
    before = contents(out)
    parts = ("--validation-fraction is 0.3", "0.005", "another --out", "remove that folder")
    refused(capsys, *arguments(mine, out, "--validation-fraction", 0.3), parts=parts)
    other = write_tokenizer(tmp_path / "other.json", more=("<x>",))
    refused(capsys, *arguments(mine, out, "--tokenizer", other), parts=("--tokenizer", "another tokenizer", "--out"))
    write_jsonl(mine / "b.jsonl", texts(3))
    refused(capsys, *arguments(mine, out, "--input", mine / "*.jsonl"), parts=("b.jsonl", "new", "--out"))
    write_jsonl(mine / "a.jsonl", texts(61))
    refused(capsys, *arguments(mine, out), parts=("a.jsonl", "changed", "--out"))
    (mine / "a.jsonl").unlink()
    printed = refused(capsys, *arguments(mine, out, "--input", mine / "b.jsonl"))
    assert "matches no file" in printed
    assert contents(out) == before


def test_a_damaged_record_is_named(capsys, files, tmp_path):
    assert run(capsys, *arguments(files, tmp_path / "out"))[0] == 0
    record = tmp_path / "out" / "prepare.json"
    for text in (record.read_text()[:-30], record.read_text().replace("0.005", "0.006"), "[]"):
        record.write_text(text)
        parts = (str(record), "damaged", "remove the folder")
        refused(capsys, *arguments(files, tmp_path / "out"), parts=parts)


def test_inputs_that_cannot_be_used(capsys, files, tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 999)[:40])
    arrow.parquet.write_table(arrow.table({"id": [1], "body": ["x"]}), tmp_path / "b.parquet")
    (tmp_path / "empty.txt").touch()
    for name, words in (
        ("cut.jsonl.gz", "cut.jsonl.gz is cut off: its compressed data ends too early; copy it again"),
        ("b.parquet", "--text-key 'text': .*b.parquet has no such column; its columns are 'id', 'body'"),
        ("empty.txt", "1 file with no document to train on: 1 are empty"),
    ):
        printed = refused(capsys, *arguments(files, tmp_path / "out" / name, "--input", tmp_path / name)[2:], *[])
        assert all(part in printed for part in words.split(".*")), printed
