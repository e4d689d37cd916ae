"""Conversations in the forms of ShareGPT, Alpaca and OpenAI, and messages that say whether they are trained on."""

import pytest

from jaxpar.data.chat.conversation import conversation_of
from tests.data.chat_files import prepared_chat, spelled, turns

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
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, *turns("a", "b")[1:]]},
            turns("a", "b"),
        ),
        ({"id": "tulu_1", "messages": turns("a", "b"), "source": "ai2"}, turns("a", "b")),
    ],
)
def test_records_of_other_forms_are_conversations(tmp_path, line, messages):
    folder, plain = prepared_chat(tmp_path / "out", [line]), prepared_chat(tmp_path / "plain", [{"messages": messages}])
    assert spelled(folder) == spelled(plain) and spelled(folder, counted=True) == spelled(plain, counted=True)


def test_calls_in_openais_format_are_what_templates_expect():
    """Arguments are objects; a `function_call` is a call of a tool, and `functions` are tools."""
    function = {"name": "add", "parameters": {"type": "object"}}
    text, call = {"name": "add", "arguments": '{"a": 1}'}, {"name": "add", "arguments": {"a": 1}}
    said = {"role": "assistant", "content": None}
    tool = {"type": "function", "function": call}
    answers = [{"role": "function", "name": "add", "content": "1"}, *turns("x", "one")[1:]]
    earlier = {"messages": [*turns("a"), said | {"function_call": text}, *answers], "functions": [function]}
    wanted = [*turns("a"), said | {"tool_calls": [tool]}, answers[0] | {"role": "tool"}, answers[1]]
    assert conversation_of(earlier).messages == wanted
    assert conversation_of(earlier).tools == [{"type": "function", "function": function}]
    today = [*turns("a"), said | {"tool_calls": [{"type": "function", "function": text}]}, wanted[2], wanted[3]]
    assert conversation_of({"messages": today}).messages == wanted
