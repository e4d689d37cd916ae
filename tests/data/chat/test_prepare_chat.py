"""Conversations become tokens of which those count that the assistant says, with the end of each of its turns."""

import json
from typing import Any

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.data import open_data
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.data.tokens.token_index import INDEX
from tests.data.chat_files import END, END_TURN, MARKED, VOCAB, prepared_chat, reported_chat, spelled, turns
from tests.data.folders import prepared
from tests.goldens.chat.generate import FOLDER, conversations
from tests.sentences import refused


def called(calls: list[Any], **more: Any) -> dict[str, Any]:
    """A conversation in which the assistant calls tools."""
    said = {"role": "assistant", "content": "b", "tool_calls": calls, **more}
    return {"messages": [*turns("a"), said]}


TWO_TURNS = turns("capital of peru?", "lima.", "and of kenya?", "nairobi.", system="be brief.")


def test_the_assistants_turns_are_counted_with_their_end(tmp_path):
    folder = prepared_chat(tmp_path / "out", [{"messages": TWO_TURNS}, {"prompt": "a", "completion": "b\nc"}])
    assert spelled(folder) == [
        "<|im_start|>system\nbe brief.<|im_end|>\n<|im_start|>user\ncapital of peru?<|im_end|>\n"
        "<|im_start|>assistant\nlima.<|im_end|>\n<|im_start|>user\nand of kenya?<|im_end|>\n"
        f"<|im_start|>assistant\nnairobi.<|im_end|>\n{END}",
        f"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb\nc<|im_end|>\n{END}",
    ]
    assert spelled(folder, counted=True) == [f"lima.{END_TURN}nairobi.{END_TURN}", f"b\nc{END_TURN}"]


def test_a_template_may_mark_what_is_counted_and_marks_without_the_end_of_a_turn_are_reported(tmp_path):
    cut = MARKED.replace("<|im_end|>{% endg", "{% endg", 1)
    cut = cut.replace("{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    for name, template in (("whole", MARKED), ("cut", cut)):
        folder, printed = reported_chat(tmp_path / name, [{"messages": TWO_TURNS}], chat_template=template)
        assert ("{% generation %} blocks leave out" in printed) == (name == "cut")
        said = ["lima.nairobi."] if name == "cut" else [f"lima.{END_TURN}nairobi.{END_TURN}"]
        assert spelled(folder, counted=True) == said
        assert spelled(folder)[0].startswith("system: be brief.<|im_end|>user: capital")


@pytest.mark.parametrize(
    ("source", "answer", "text"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "b", f"assistant: b\n{END}"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}", "b", f"assistant: b{END}"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}", "\n b", f"assistant: b\n{END}"),
    ],
    ids=["no end of a turn", "the end of a document ends a turn", "a template that trims"],
)
def test_the_end_of_a_document_is_counted_where_it_ends_the_turn(tmp_path, source, answer, text):
    folder = prepared_chat(tmp_path / "out", [{"messages": turns("a", answer)}], chat_template=source)
    # The template has no beginning of a turn for the prompt, so the role is a part of what the assistant says.
    assert spelled(folder, counted=True) == [text]
    assert spelled(folder)[0].count(END) == (2 if "eos" in source else 1)


def test_a_value_that_is_nested_deeper_than_calls_of_python_is_rendered(tmp_path):
    deep: list[Any] = []
    for _ in range(1200):  # Python calls at most 1000 deep, and its JSON reads 1500.
        deep = [deep]
    folder = prepared_chat(tmp_path / "out", [called(deep)])
    assert spelled(folder, counted=True) == [f"b{END_TURN}"]


def test_a_mixture_with_text_counts_all_of_the_text(tmp_path):
    chat = prepared_chat(tmp_path / "chat", conversations())
    text = prepared(tmp_path / "text", [f"{n} and more. " * 9 for n in range(9)], tokenizer=FOLDER / "tokenizer.json")
    sources = {str(chat.path): 1.0, str(text.path): 1.0}
    config = DataConfig(source="tokens", sources=sources, sequence_length=96, batch_size=2)
    data = open_data(config, vocab=VOCAB, seed=0)
    shares: dict[bool, list[float]] = {True: [], False: []}
    for example in range(24):
        row = data.train.row(example)
        is_chat = data.train.source_row(example)[0].name == str(chat.path)  # pyright: ignore[reportAttributeAccessIssue]
        shares[is_chat].append(row["mask"].mean())
    assert 0 < max(shares[True]) < 0.6 and min(shares[False]) > 0.9


def test_a_folder_of_conversations_has_a_version_of_its_own_and_is_checked_whole(tmp_path):
    chat = prepared_chat(tmp_path / "chat", conversations())
    plain = json.loads((chat.path / INDEX).read_bytes())
    assert plain["version"] == 6, "releases that know no masks refuse it"
    assert json.loads((chat.path / "tokenizer_config.json").read_bytes())["eos_token"] == END
    text = prepared(tmp_path / "text", ["some text"] * 3, validation_fraction=0.0)
    written = json.loads((text.path / INDEX).read_bytes())
    assert written["version"] == 5 and "chat" not in written and "counted" not in str(written)
    np.testing.assert_array_equal(np.load(chat.path / "train-00000.counted.npy"), chat.train.loss_mask[:])  # pyright: ignore
    (file,) = chat.path.glob("train-00000.counted.npy")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with refused("train-00000.counted.npy", "is damaged"):
        open_token_folder(chat.path, key="data.path")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ({"text": "a"}, ("none of `messages`", "`conversations`", "'text'")),
        ({"messages": []}, ("`messages` is not a list",)),
        ({"messages": [{"content": "a"}]}, ("message 1", "`role`")),
        ({"messages": [*turns("a", "b"), {"role": "user", "content": 3}]}, ("message 3", "`content`", "not text")),
        ({"messages": turns("a")}, ("`assistant`", "nothing to train on")),
        ({"prompt": "a", "completion": None}, ("`completion`", "not text")),
        ({"messages": turns("a<|im_end|>\n<|im_start|>system\nb", "c")}, ("message 1", "special token", "im_")),
        (called([{"function": {"name": "f", "arguments": {"x": ["<|im_end|>"]}}}]), ("message 2", "'<|im_end|>'")),
        (called([{"<|im_start|>": 1}]), ("message 2", "'<|im_start|>'")),
        (called([{}], name="<|im_end|>"), ("message 2", "special token", "'<|im_end|>'")),
        ({"messages": turns("a", "b"), "tools": [{"name": END}]}, ("`tools`", "special token", f"'{END}'")),
        ({"messages": turns("a", "\ud800")}, ("surrogate",)),
        ({"conversations": [{"from": "robot", "value": "a"}]}, ("message 1", "'robot'", "human", "gpt")),
        ({"conversations": [{"from": "gpt", "value": 3}]}, ("`value` of message 1",)),
        ({"conversations": "a"}, ("`conversations`", "list")),
        ({"instruction": "a", "output": "b", "history": [["a", "b"]]}, ("`history`", "`messages`")),
        ({"instruction": "a", "output": None}, ("`output`", "not text")),
        ({"messages": [*turns("a"), {"role": "assistant", "content": "b", "weight": 0}]}, ("`weight` 1", "nothing")),
        ({"messages": [*turns("a"), {"role": "assistant", "content": "b", "weight": 0.5}]}, ("`weight`", "0 or 1")),
        ({"messages": [*turns("a"), {"role": "assistant", "content": "b", "train": 0}]}, ("`train`", "false or true")),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ("`content` of message 1", "not text")),
        ({"messages": turns("a", "b"), "functions": {}}, ("`functions`", "list")),
        ({"messages": [turns("a")[0] | {"train": True}, *turns("a", "b")[1:]]}, ("message 1", "`train`", "'user'")),
        (["a"], ("an array",)),
    ],
)
def test_a_conversation_that_cannot_be_used_is_named_with_its_line(tmp_path, line, parts):
    with refused("--max-broken", "out-input.jsonl:2: ", *parts):
        prepared_chat(tmp_path / "out", [{"prompt": "a", "completion": "b"}, line])


def test_another_template_is_refused_for_the_same_folder(tmp_path):
    prepared_chat(tmp_path / "out", conversations())
    with refused("--chat-template", "was made with"):
        prepared_chat(tmp_path / "out", conversations(), chat_template="chatml")


def test_the_lengths_of_conversations_are_counted(tmp_path):
    questions = ["a" * 30, "a" * 90, "a" * 200]
    folder, text = reported_chat(tmp_path / "out", [{"messages": turns(one, "b")} for one in questions])
    sizes = folder.train.lengths - 1
    assert f"longest conversation takes {sizes.max()} tokens of a row (more than 64: 2, more than 128: 1)" in text
    assert "data.long_conversations" in text
    _, text = reported_chat(tmp_path / "alike", [{"messages": turns("a" * 90, "b")}] * 2)
    assert "(more than 64: 2)" in text, "also where all are"


def test_the_templates_beginning_is_not_doubled_by_the_tokenizers(tmp_path):
    marked = FOLDER.parent / "evaluation/marked/tokenizer.json"
    begins = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    line = {"messages": turns("a", "b")}
    assert spelled(prepared_chat(tmp_path / "out", [line], tokenizer=marked, chat_template=begins)) == [
        "<bos>a<eos>b<eos>"
    ]
