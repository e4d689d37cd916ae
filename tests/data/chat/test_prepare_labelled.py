"""Marked answers become a document each, and rows have it with its prompt and another's answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.data import open_data
from jaxpar.data.pairs import LabelledRows
from tests.data.chat_files import END, END_TURN, prepared_chat, reported_chat, spelled, turns
from tests.data.preference_files import prepared_marked, prepared_pairs
from tests.sentences import refused

LINES: list[dict[str, Any]] = [
    {"prompt": "capital of peru?", "completion": "lima.", "label": True},
    {"prompt": turns("capital of chad?"), "completion": turns("a", "no.")[1:], "label": False},
    {"prompt": "capital of mali?", "completion": "bamako.", "label": True},
]


def config(folder: Path, **more: Any) -> DataConfig:
    return DataConfig(**{"source": "tokens", "path": str(folder), "sequence_length": 256, **more})


def opened(folder: Path) -> LabelledRows:
    (part,) = open_data(config(folder), vocab=None, seed=3).paired
    assert isinstance(part.rows, LabelledRows)
    return part.rows


def said(country: str, answer: str) -> str:
    return f"<|im_start|>user\ncapital of {country}?<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n{END}"


def test_each_answer_is_a_document_of_which_what_follows_the_prompt_counts(tmp_path: Path):
    folder, text = reported_chat(tmp_path / "out", LINES, format="labelled")
    assert folder.index.version == 8 and folder.index.labelled
    assert "3 documents to train on" in text and "loss.name=kto" in text
    assert spelled(folder) == [said("peru", "lima."), said("chad", "no."), said("mali", "bamako.")]
    assert spelled(folder, counted=True) == [f"{one}{END_TURN}" for one in ("lima.", "no.", "bamako.")]


def test_rows_have_each_answer_with_its_mark_and_its_prompt_with_anothers_answer(tmp_path: Path):
    rows = opened(prepared_marked(tmp_path / "out", LINES).path)
    decode = open_data(config(tmp_path / "out"), vocab=None, seed=3).decode
    assert decode is not None
    found = {}
    for example in range(rows.rows_per_epoch):
        row = rows.row(example)
        assert row["segments"].max() == 2 * row["pairs"]
        for pair in range(row["pairs"]):
            one, other = (np.flatnonzero(row["segments"] == 2 * pair + side) for side in (1, 2))
            texts = [decode(row["labels"][own][row["mask"][own] > 0]).strip() for own in (one, other)]
            assert row["label"][one[0]] in (1, -1) and not row["label"][one[1:]].any()
            assert not row["label"][other].any()
            begin = [row["tokens"][own][: np.flatnonzero(row["mask"][own])[0] + 1] for own in (one, other)]
            np.testing.assert_array_equal(*begin)
            found[texts[0]] = (row["label"][one[0]], texts[1])
    assert found == {"lima.": (1, "no."), "no.": (-1, "bamako."), "bamako.": (1, "lima.")}


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ({"prompt": "a", "completion": "b"}, ("no `label`", "completion")),
        ({"prompt": "a", "completion": "b", "label": "yes"}, ("`label` is neither true nor false",)),
        ({"completion": "b", "label": True}, ("no `prompt`",)),
        ({"prompt": "a", "completion": turns("a"), "label": True}, ("`completion` has no message", "assistant")),
    ],
)
def test_a_line_that_is_no_marked_answer_is_named_with_the_reason(tmp_path: Path, line: Any, parts: tuple[str, ...]):
    with refused("--max-broken is 0", "out-input.jsonl:4", *parts):
        prepared_marked(tmp_path / "out", [*LINES, line])


def test_folders_that_do_not_go_together_are_refused(tmp_path: Path):
    marked, of_pairs = prepared_marked(tmp_path / "marked", LINES).path, prepared_pairs(tmp_path / "pairs").path
    with refused("data.validation_path", "no marked answers"):
        open_data(config(marked, validation_path=str(of_pairs)), vocab=None, seed=0)
    with refused("one marked answer", "at least 2"):
        opened(prepared_marked(tmp_path / "one", LINES[:1]).path)
    with refused("'label'", "--format labelled"):
        prepared_chat(tmp_path / "text", LINES, format="jsonl")
