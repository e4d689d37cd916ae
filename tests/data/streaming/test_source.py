"""`data.source: stream`: the files of a path, processes that tokenize, and a sentence about what cannot be read."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet
import pytest

from jaxpar.compiler.compile import with_known_vocab
from jaxpar.config import Config, DataConfig
from jaxpar.data import Data, batch_rows, open_data
from jaxpar.data.prepare import prepare
from jaxpar.data.prepare.input.documents import share_of_documents
from jaxpar.data.prepare.input.files import Input
from jaxpar.data.streaming.files import Blocks, find_files
from jaxpar.data.streaming.source import default_workers
from jaxpar.training.run_folder.same_run import forbidden_changes
from tests.data.folders import decoded, options, quiet, texts, write_jsonl, write_tokenizer
from tests.sentences import refused

DOCUMENTS = texts(200)


def opened(path: Path, **changes: Any) -> Data:
    tokenizer = path.parent / "tokenizer.json"
    if not tokenizer.exists():
        write_tokenizer(tokenizer)
    options: dict[str, Any] = {"tokenizer": str(tokenizer), "sequence_length": 64, "batch_size": 4, "workers": 1}
    return open_data(
        DataConfig(source="stream", path=str(path), **(options | {"validation_fraction": 0.2} | changes)),
        vocab=None,
        seed=1,
    )


@pytest.mark.long
def test_processes_tokenize_what_a_prepared_folder_has(tmp_path: Path):
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    data = opened(source)
    train, validation = decoded(prepare(options(tmp_path / "folder", source), quiet()))
    batch = batch_rows(data.train, 0, 4, range(4))
    assert batch["tokens"].shape == (4, 64) and data.decode is not None and data.validation is not None
    for row, segments in zip(batch["tokens"], batch["segments"], strict=True):
        for segment in range(1, segments.max() + 1):
            assert any(data.decode(row[segments == segment]) in one for one in train)
    rows = data.validation.stream
    assert sorted(data.decode(rows.tokens[:]).split("0/")) == sorted("".join(validation).split("0/"))
    assert (data.vocab, data.separator) == (257, 256)
    assert "1 file" in data.description and f"{len(validation)} for validation" in data.description
    # A process that is killed is a sentence.
    workers = data.train.workers  # pyright: ignore[reportAttributeAccessIssue]
    os.kill(workers.started[0].process.pid, signal.SIGKILL)
    with refused("a process that tokenizes ended by SIGKILL", "fewer data.workers"):
        for example in range(10_000):
            data.train.row(example)
    workers.close()


def test_a_folder_in_the_layout_of_datasets_has_its_files_of_training(tmp_path: Path):
    data = tmp_path / "corpus" / "data"
    data.mkdir(parents=True)
    table = arrow.table({"text": DOCUMENTS})
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "trainer-notes"):
        arrow.parquet.write_table(table, data / f"{name}.parquet")
    (tmp_path / "corpus" / "dataset_info.json").write_text("{}")
    (tmp_path / "corpus" / "README.md").write_text("about it")
    found = find_files(str(tmp_path / "corpus"), "data.path", "text")
    assert [Path(file.path).name[:11] for file in found] == ["train-00000", "train-00001"]
    (tmp_path / "saved").mkdir()
    saved = str(tmp_path / "saved" / "data-00000-of-00001.arrow")
    with arrow.OSFile(saved, "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    for name in ("state.json", "tokenizer.json", "tokenizer_config.json", "config.json", "cache-0123456789ab.arrow"):
        (tmp_path / "saved" / name).write_text("{}")
    assert [file.path for file in find_files(str(tmp_path / "saved"), "data.path", "text")] == [saved]


def test_few_blocks_read_a_row_group_or_a_compressed_file_again():
    blocks_of = lambda name, compression, lanes=8: len(
        Blocks([Input(name, 37 * 2**20, 0, name.split(".")[1], compression)], lanes)
    )
    assert blocks_of("a.jsonl", None) == 4 * 37 and blocks_of("a.jsonl", None, 64) == 16 * 64
    assert blocks_of("a.parquet", None) == blocks_of("a.jsonl.gz", "gzip") == blocks_of("a.arrow.gz", "gzip") == 32
    files = [Input("a.jsonl.gz", 100 * 2**20, 0, "jsonl", "gzip")]
    assert len(Blocks(files, 64)) == 163
    with refused("data.path: the files make 163 blocks", "data.batch_size: 1024 needs 2048", "jaxpar.prepare"):
        Blocks(files, 1024)
    assert len(Blocks([*files, Input("b.jsonl", 2**30, 0, "jsonl", None)], 1024)) >= 4096


@pytest.mark.long
def test_validation_files_leave_all_of_the_others_to_train_on(tmp_path: Path):
    source, other = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), write_jsonl(tmp_path / "b.jsonl", texts(50, seed=1))
    data = opened(source, validation_path=str(other))
    assert data.validation is not None and len(data.validation.stream.starts) == 50
    assert len(data.train.stream.starts) == len(DOCUMENTS)
    assert opened(source, validation_fraction=0.0).validation is None


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path):
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    with refused("data.tokenizer: null", "expected a tokenizer.json"):
        opened(source, tokenizer=None)
    with refused("data.end_token '<|end|>'", "is not a token of the tokenizer"):
        opened(source, end_token="<|end|>")
    with refused("data.text_key 'body'", "a.jsonl", "its keys are 'id', 'text'"):
        opened(source, text_key="body")
    arrow.parquet.write_table(arrow.table({"text": DOCUMENTS}), tmp_path / "a.parquet")
    with refused("data.text_key 'body'", "a.parquet", "its columns are 'text'"):
        opened(tmp_path / "a.parquet", text_key="body")
    with refused("data.path", "b*.jsonl", "matches no file"):
        opened(tmp_path / "b*.jsonl")
    (tmp_path / "a.txt").write_text("text")
    with refused("a.txt is read as text", "JSON lines, Parquet and Arrow"):
        opened(tmp_path / "a.txt")
    (tmp_path / "nothing").mkdir()
    with refused("nothing' is a folder without files"):
        opened(tmp_path / "nothing", tokenizer=str(tmp_path / "tokenizer.json"))
    with refused("a.jsonl'", "1 file without a document to train on"):
        opened(write_jsonl(tmp_path / "a.jsonl", ["", ""]))
    with source.open("a") as file:
        file.write(json.dumps({"text": "fine"}) + "\nbroken\n")
    with refused("a.jsonl:4: not JSON", "as many spaces instead of it let the run continue", "--max-broken"):
        opened(source, validation_fraction=0.0).train.row(0)


def test_a_run_continues_with_the_same_files_alone(tmp_path: Path):
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    data = opened(source, validation_fraction=0.0)
    facts = {"stream": json.loads(json.dumps(data.positions(0)))} | data.facts
    moved = tmp_path / "moved"
    moved.mkdir()
    write_tokenizer(moved / "tokenizer.json")
    again = opened(write_jsonl(moved / "a.jsonl", DOCUMENTS), validation_fraction=0.0).continued(facts, 0)
    assert again.positions(0) == data.positions(0)
    changed = opened(write_jsonl(source, [*DOCUMENTS, "more"]), validation_fraction=0.0)
    with refused("data.path: the files of", "their sizes, or the tokenizer", "run.init_from"):
        changed.continued(facts, 0)
    for documents in (["X" + DOCUMENTS[0][1:], *DOCUMENTS[1:]], [*DOCUMENTS[:-1], DOCUMENTS[-1][:-1] + "X"]):
        same_size = opened(write_jsonl(source, documents), validation_fraction=0.0)
        with refused("data.path: the files of", "run.init_from"):
            same_size.continued(facts, 0)
    later = facts | {"stream": facts["stream"] | {"order": 2}}
    with refused("the order of version 2", "this release has 1"):
        data.continued(later, 0)


def test_the_files_of_a_run_may_be_moved():
    of = lambda source, name: Config(data=DataConfig(source=source, path=name, tokenizer=name, validation_path=name))
    assert forbidden_changes(of("stream", "a"), of("stream", "b")) == []
    assert len(forbidden_changes(of("prompts", "a"), of("prompts", "b"))) == 3


def test_a_run_continues_with_spaces_in_place_of_a_broken_line(tmp_path: Path):
    source, lines = tmp_path / "a.jsonl", ['{"text": "fine"}'] * 10_000
    source.write_text("\n".join([*lines, "broken", *lines]))
    facts = {"stream": opened(source, validation_fraction=0.0).positions(0)}
    source.write_text("\n".join([*lines, " " * 6, *lines]))
    [file] = find_files(str(source), "data.path", "text")
    documents = share_of_documents(file, 0, 1, key="text", option="data.text_key", scratch=tmp_path)
    assert [document.text for document in documents] == ["fine"] * 20_000
    opened(source, validation_fraction=0.0).continued(facts, 0)


def test_a_task_that_cannot_be_handed_out_is_an_error(tmp_path: Path):
    workers = opened(write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), validation_fraction=0.0).train.workers  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Exception, match="pickle"):
        workers.submit(lambda: None).result(timeout=5)
    workers.close()


def test_processes_of_a_host_share_its_processors(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for processors, tasks, workers in ((64, 1, 16), (64, 8, 7), (8, 8, 7), (4, 1, 3), (1, 1, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=processors: set(range(count)))
        rank = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(tasks)}
        address = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
        assert default_workers(rank | address) == workers
    assert default_workers({}) == 1


def test_a_plan_reads_the_tokenizer_alone(tmp_path: Path):
    data = DataConfig(source="stream", path="not read", tokenizer=str(write_tokenizer(tmp_path / "tokenizer.json")))
    assert with_known_vocab(Config(data=data)).model.vocab == 257
