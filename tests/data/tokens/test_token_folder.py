"""A token folder is used as it was made or not at all; what is wrong with it is named."""

import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest

from jaxpar.data.packing import PackedRows
from jaxpar.data.tokens import token_folder
from jaxpar.data.tokens.digests import BLOCK_BYTES
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.data.tokens.token_index import INDEX
from tests.data.folders import contents, decoded, prepared, texts, write_tokenizer
from tests.sentences import refused

DOCUMENTS = texts(120)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("folder") / "tokens", DOCUMENTS)


@pytest.fixture
def folder(made, tmp_path):
    """A copy to damage."""
    return shutil.copytree(made.path, tmp_path / "tokens")


def sentence_of(folder):
    with refused(f"data.path='{folder}': ") as caught:
        open_token_folder(folder, key="data.path")
    return str(caught.value)


def test_the_documents_come_back(made):
    train, validation = decoded(made)
    assert sorted(train + validation) == sorted(DOCUMENTS)
    assert [text for text in DOCUMENTS if text in set(train)] == train, "in the order of the input"
    assert len(made.index.shards("train")) > 2
    assert validation


def test_tokens_are_not_kept_in_memory(tmp_path):
    made = prepared(tmp_path / "tokens", ["x" * 1000 + str(number) for number in range(1500)], shard_tokens=10**7)
    size = sum(shard.tokens.bytes for shard in made.index.shards("train"))
    tracemalloc.start()
    try:
        opened = open_token_folder(made.path, key="data.path")
        PackedRows(opened.train, sequence_length=64, packed=True, seed=3).row(7)
        assert tracemalloc.get_traced_memory()[1] < size / 2 > 4 * BLOCK_BYTES
    finally:
        tracemalloc.stop()


def test_any_file_that_is_flipped_cut_or_missing_is_named(made, folder):
    for name, raw in contents(made.path).items():
        if name == "prepare.json":
            continue
        for at in {0, 9, len(raw) // 2, len(raw) - 1}:
            (folder / name).write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
            assert str(folder / name) in sentence_of(folder), (name, at)
            (folder / name).write_bytes(raw[:at])
            assert str(folder / name) in sentence_of(folder), (name, at)
        (folder / name).unlink()
        assert name in sentence_of(folder)
        (folder / name).write_bytes(raw)
    open_token_folder(folder, key="data.path")


def test_links_that_leave_the_folder_are_not_followed(made, folder):
    inside = folder / "train-00000.npy"
    inside.unlink()
    inside.symlink_to(made.path / "train-00000.npy")
    assert "train-00000.npy" in (printed := sentence_of(folder)) and "links" in printed
    inside.unlink()
    os.mkdir(inside)
    assert "train-00000.npy" in (printed := sentence_of(folder)) and "not a file" in printed


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert len(open_token_folder(tmp_path / "link", key="data.path").train) > 0


def test_a_large_folder_is_checked_block_by_block_when_it_is_used(tmp_path, monkeypatch):
    made = prepared(tmp_path / "tokens", ["x" * 1000 + str(number) for number in range(400)], shard_tokens=10**6)
    path = made.path / "train-00000.npy"
    raw = bytearray(path.read_bytes())
    assert len(raw) > 2 * BLOCK_BYTES
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert "train-00000.npy is damaged" in sentence_of(made.path)
    monkeypatch.setattr(token_folder, "CHECKED_AT_OPEN", 0)
    starts = made.path / "train-00000.starts.npy"
    starts.write_bytes(starts.read_bytes()[:-1] + bytes([starts.read_bytes()[-1] ^ 1]))
    opened = open_token_folder(made.path, key="data.path")
    assert opened.train.tokens[:1000].tolist() == made.train.tokens[:1000].tolist()
    with refused("train-00000.starts.npy", "is damaged"):
        opened.train.starts[:]
    with refused("train-00000.npy", "is damaged", "bytes 524288 to"):
        opened.train.tokens[np.array([len(opened.train) - 1])]
    with refused("train-00000.npy", "is damaged"):
        opened.check()


def test_a_folder_has_more_shards_than_a_process_may_open_files_at_first(made, monkeypatch):
    asked = []
    monkeypatch.setattr(token_folder, "allow_more_files", asked.append)
    open_token_folder(made.path, key="data.path")
    assert asked == [2 * sum(len(made.index.shards(split)) for split in ("train", "validation"))]


def test_a_folder_that_was_not_finished_or_is_another_is_reported_as_no_token_folder(tmp_path):
    assert "no index.json" in (printed := sentence_of(tmp_path)) and "preparation" in printed
    (tmp_path / INDEX).write_text(json.dumps({"files": {}}))
    assert "not the index of a token folder" in sentence_of(tmp_path)


def test_text_is_encoded_and_decoded_with_the_tokenizer_of_the_folder(made):
    tokens = made.codec.encode("held <|endoftext|> out é")
    assert made.index.separator not in tokens, "text that spells a special token is text"
    assert made.codec.decode([*tokens, made.index.separator]) == "held <|endoftext|> out é"


def test_another_tokenizer_gives_another_identity(made, tmp_path):
    other = write_tokenizer(tmp_path / "tokenizer.json", more=("<x>",))
    assert prepared(tmp_path / "tokens", DOCUMENTS, tokenizer=other).identity != made.identity
    assert prepared(tmp_path / "again", DOCUMENTS).identity == made.identity
