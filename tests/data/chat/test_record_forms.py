"""Conversations in the forms of ShareGPT and Alpaca, and messages that say whether they are trained on."""

import pytest

from tests.data.chat_files import prepared_chat, spelled, turns
from tests.sentences import refused

SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ({"conversations": SHAREGPT}, turns("a", "b")),
        ({"system": "s", "conversations": [*SHAREGPT, *SHAREGPT]}, turns("a", "b", "a", "b", system="s")),
        ({"conversations": [{"from": "system", "value": "s"}, *SHAREGPT], "id": 3}, turns("a", "b", system="s")),
        ({"conversations": turns("a", "b")}, turns("a", "b")),
        ({"instruction": "a", "output": "b"}, turns("a", "b")),
        ({"instruction": "a", "input": "", "output": "b", "history": []}, turns("a", "b")),
        ({"instruction": "a", "input": "c", "output": "b", "system": "s"}, turns("a\nc", "b", system="s")),
    ],
)
def test_records_of_sharegpt_and_alpaca_are_conversations(tmp_path, line, messages):
    folder, plain = prepared_chat(tmp_path / "out", [line]), prepared_chat(tmp_path / "plain", [{"messages": messages}])
    assert spelled(folder) == spelled(plain)
    assert spelled(folder, counted=True) == spelled(plain, counted=True)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ({"conversations": [{"from": "robot", "value": "a"}]}, ("message 1", "'robot'", "human", "gpt")),
        ({"conversations": [{"from": "gpt", "value": 3}]}, ("`value` of message 1",)),
        ({"conversations": "a"}, ("`conversations`", "list")),
        ({"instruction": "a", "output": "b", "history": [["a", "b"]]}, ("`history`", "`messages`")),
        ({"instruction": "a", "output": None}, ("`output`", "not text")),
        ({"messages": [*turns("a"), {"role": "assistant", "content": "b", "weight": 0}]}, ("`weight` 1", "nothing")),
        ({"messages": [*turns("a"), {"role": "assistant", "content": "b", "weight": 0.5}]}, ("`weight`", "0 or 1")),
        ({"messages": [*turns("a"), {"role": "assistant", "content": "b", "train": 0}]}, ("`train`", "false or true")),
        ({"messages": [turns("a")[0] | {"train": True}, *turns("a", "b")[1:]]}, ("message 1", "`train`", "'user'")),
    ],
)
def test_records_of_other_forms_that_cannot_be_used_are_named(tmp_path, line, parts):
    with refused("out-input.jsonl:1: ", *parts):
        prepared_chat(tmp_path / "out", [line])
