"""Pairs of answers become two documents each, the chosen one first, of which what follows the prompt counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.data import open_data
from jaxpar.data.pairs import PairRows
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.data.tokens.token_index import INDEX
from tests.data.chat_files import END, END_TURN, MARKED, prepared_chat, reported_chat, spelled, turns
from tests.data.folders import contents
from tests.data.preference_files import pairs, prepared_pairs
from tests.sentences import refused

QUESTION, RIGHT, WRONG = turns("capital of peru?", "lima.")[0], *turns("a", "lima.")[1:], *turns("a", "cusco.")[1:]
TWO_TURNS = turns("capital of peru?", "lima.", "and of kenya?", system="be brief.")


def said(answer: str) -> str:
    return f"<|im_start|>user\ncapital of peru?<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n{END}"


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "capital of peru?", "chosen": "lima.", "rejected": "cusco."},
        {"prompt": [QUESTION], "chosen": [RIGHT], "rejected": [WRONG]},
        {"prompt": [QUESTION], "chosen": "lima.", "rejected": "cusco."},
        {"chosen": [QUESTION, RIGHT], "rejected": [QUESTION, WRONG]},
        {"prompt": "capital of peru?", "chosen": [QUESTION, RIGHT], "rejected": [QUESTION, WRONG], "score": 3},
        {
            "input": {"messages": [QUESTION], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [RIGHT],
            "non_preferred_output": [WRONG],
        },
    ],
    ids=["text", "messages", "messages and text", "whole conversations", "whole conversations and their prompt",
         "openai"],
)  # fmt: skip
def test_each_form_of_a_pair_has_the_same_documents(tmp_path: Path, line: dict[str, Any]):
    folder = prepared_pairs(tmp_path / "out", [line])
    assert folder.index.version == 7 and folder.index.paired and spelled(folder) == [said("lima."), said("cusco.")]
    assert spelled(folder, counted=True) == [f"lima.{END_TURN}", f"cusco.{END_TURN}"]


def test_conversations_that_begin_with_a_message_of_the_system_have_their_prompt_once(tmp_path: Path):
    system = {"role": "system", "content": "be brief."}
    line = {"prompt": QUESTION["content"], "chosen": [system, QUESTION, RIGHT], "rejected": [system, QUESTION, WRONG]}
    assert [text.count("capital of peru?") for text in spelled(prepared_pairs(tmp_path / "out", [line]))] == [1, 1]


@pytest.mark.parametrize("template", [None, MARKED], ids=["found", "marked"])
def test_what_the_assistant_said_in_the_prompt_does_not_count(tmp_path: Path, template: str | None):
    line = {"prompt": TWO_TURNS, "chosen": "nairobi.", "rejected": [*turns("x", "mombasa.")[1:], *turns("no?", "no.")]}
    folder = prepared_pairs(tmp_path / "out", [line], chat_template=template)
    assert spelled(folder, counted=True) == [f"nairobi.{END_TURN}", f"mombasa.{END_TURN}no.{END_TURN}"]
    assert all("lima." in text for text in spelled(folder))


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ({"prompt": "a", "chosen": "b"}, ("no `rejected`", "prompt")),
        ({"prompt": "a", "completion": "b"}, ("no `chosen`", "completion")),
        ({"chosen": "b", "rejected": "c"}, ("no `prompt`",)),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, ("the same",)),
        ({"prompt": [], "chosen": "b", "rejected": "c"}, ("`prompt`", "neither text nor a list")),
        ({"prompt": "a", "chosen": 3, "rejected": "c"}, ("`chosen`", "neither text nor a list")),
        ({"prompt": "a", "chosen": [QUESTION], "rejected": "c"}, ("`chosen` has no message", "assistant")),
        ({"chosen": turns("a", "b"), "rejected": turns("c", "d")}, ("begin with different messages",)),
        ({"prompt": "a", "chosen": f"b{END_TURN}", "rejected": "c"}, ("message 2", "special token")),
        ({"prompt": "a", "chosen": [{"content": "b"}], "rejected": "c"}, ("message 1", "role")),
    ],
)
def test_a_line_that_is_no_pair_is_named_with_the_reason(tmp_path: Path, line: dict[str, Any], parts: tuple[str, ...]):
    with refused("--max-broken is 0", "out-input.jsonl:2", *parts):
        prepared_pairs(tmp_path / "out", [pairs()[0], line])


def test_marks_that_do_not_tell_the_prompts_answers_apart_are_refused(tmp_path: Path):
    joined = "{% generation %}{{ messages | map(attribute='content') | join }}{% endgeneration %}"
    line = {"prompt": TWO_TURNS, "chosen": "a", "rejected": "b"}
    with refused("marks 1 passages", "2 messages"):
        prepared_pairs(tmp_path / "out", [line], chat_template=joined)


def test_pairs_are_reported_and_split_whole_and_a_continued_preparation_has_the_same_bytes(tmp_path: Path):
    given = {"format": "preference", "validation_fraction": 0.3, "shard_tokens": 400}
    folder, text = reported_chat(tmp_path / "out", pairs() * 3, **given)
    assert folder.validation is not None
    for stream in (folder.train, folder.validation):
        assert len(stream.starts) % 2 == 0
    assert f"in {len(folder.train.starts) // 2} pairs to train on" in text and "loss.name=dpo" in text
    questions = [text.split("<|im_start|>assistant")[0] for text in spelled(folder)]
    assert questions[::2] == questions[1::2]
    prepared_chat(tmp_path / "again", pairs() * 3, **given, processes=2)
    same, again = contents(tmp_path / "out"), contents(tmp_path / "again")
    assert {**same, "prepare.json": b""} == {**again, "prepare.json": b""}


def test_an_index_of_pairs_with_an_odd_number_of_documents_is_refused(tmp_path: Path):
    folder = prepared_chat(tmp_path / "out", [{"prompt": "a", "completion": "b"}]).path
    plain = json.loads((folder / INDEX).read_text())
    plain |= {"version": 7, "paired": True}
    del plain["digest"]
    plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
    (folder / INDEX).write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n")
    with refused("1 document;", "even number"):
        open_token_folder(folder, key="data.path")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> PairRows:
    folder = prepared_pairs(tmp_path_factory.mktemp("pairs") / "out").path
    data = open_data(config(folder), vocab=None, seed=3)
    (part,) = data.paired
    assert data.train is part.rows and part.split == "train" and "pairs in" in data.description
    part.rows.reference.values = np.arange(len(part.rows.stream.starts), dtype=np.float32) + 1
    return part.rows


def config(folder: Path, **more: Any) -> DataConfig:
    return DataConfig(**{"source": "tokens", "path": str(folder), "sequence_length": 256, **more})


def test_an_epoch_has_every_pair_once_with_its_reference(rows: PairRows):
    stream, found = rows.stream, []
    assert stream.loss_mask is not None
    for example in range(rows.rows_per_epoch):
        row = rows.row(example)
        assert {name: value.dtype.name for name, value in row.items() if name in ("mask", "reference")} == {
            "mask": "float32", "reference": "float32",
        }  # fmt: skip
        for number in range(2 * int(row["pairs"])):
            own = np.flatnonzero(row["segments"] == number + 1)
            assert (np.diff(own) == 1).all() and (row["positions"][own] == np.arange(len(own))).all()
            document = int(row["reference"][own[0]]) - 1
            assert not row["reference"][own[1:]].any() and document % 2 == number % 2
            found.append(document)
            first, size = int(stream.starts[document : document + 1][0]), int(stream.lengths[document])
            tokens, counted = stream.tokens[first : first + size], stream.loss_mask[first : first + size] > 0
            assert (row["tokens"][own] == tokens[:-1]).all() and (row["mask"][own] == counted[1:]).all()
            assert (row["labels"][own] == np.where(counted[1:], tokens[1:], 0)).all()
        padding = row["segments"] == 0
        assert not row["mask"][padding].any() and row["segments"].max() == 2 * row["pairs"]
    assert found[1::2] == [document + 1 for document in found[::2]]
    assert sorted(found) == list(range(len(stream.starts)))
    order = [int(rows.row(example)["reference"].max()) for example in range(2 * rows.rows_per_epoch)]
    first, second = order[: rows.rows_per_epoch], order[rows.rows_per_epoch :]
    assert first != second and sorted(first) == sorted(second), "the second epoch has the same rows in another order"


def test_pairs_that_are_longer_than_a_row_are_left_out_and_reported(rows: PairRows):
    sizes = (rows.stream.lengths.reshape(-1, 2) - 1).sum(1)
    length = int(np.median(sizes))
    short = PairRows(rows.stream, sequence_length=length, seed=0)
    assert (short.needed[::2] == (sizes <= length)).all()
    assert f"({(sizes > length).sum()} pairs longer than a row are left out)" in short.description
    with refused("data.sequence_length=9", f"at least {sizes.min()}"):
        PairRows(rows.stream, sequence_length=9, seed=0)


def test_folders_that_do_not_go_together_are_refused(tmp_path: Path):
    of_pairs, chat = (
        prepared_pairs(tmp_path / "pairs").path,
        prepared_chat(tmp_path / "chat", [{"messages": TWO_TURNS}]).path,
    )
    for given, parts in (
        ({"path": None, "sources": {str(of_pairs): 1.0, str(chat): 1.0}}, ("data.sources", "not mixed", "data.path")),
        ({"validation_path": str(chat)}, ("data.validation_path", "no pairs")),
        ({"path": str(chat), "validation_path": str(of_pairs)}, ("data.validation_path", "pairs")),
    ):
        with refused(*parts):
            open_data(config(of_pairs, **given), vocab=None, seed=0)
    held = open_data(config(of_pairs, validation_path=str(of_pairs)), vocab=None, seed=0)
    assert [part.split for part in held.paired] == ["train", "train"]
