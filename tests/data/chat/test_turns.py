"""The assistant's turns that are counted, and what ends them."""

import json

import pytest

from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.template import ChatTemplate
from jaxpar.data.tokens.tokenizer_file import load_tokenizer
from tests.data.chat_files import END, END_TURN, MARKED, prepared_chat, reported_chat, spelled, turns
from tests.data.folders import prepared, write_tokenizer
from tests.sentences import refused

TWO_TURNS = turns("capital of peru?", "lima.", "and of kenya?", "nairobi.", system="be brief.")


def test_messages_that_are_not_to_be_trained_on_are_not_counted(tmp_path):
    first, second = dict(TWO_TURNS[2]), dict(TWO_TURNS[4])
    lines = [
        {"messages": [*TWO_TURNS[:2], first | {"weight": 0}, TWO_TURNS[3], second | {"weight": 1}]},
        {"messages": [*TWO_TURNS[:2], first | {"train": True}, TWO_TURNS[3], second | {"train": False}]},
        {"messages": [*TWO_TURNS[:2], first | {"train": None}, TWO_TURNS[3] | {"weight": 0}, second]},
    ]
    plain = spelled(prepared_chat(tmp_path / "plain", [{"messages": TWO_TURNS}]))
    for name, template in (("found", None), ("marked", MARKED)):
        folder = prepared_chat(tmp_path / name, lines, chat_template=template)
        last, one, both = f"nairobi.{END_TURN}", f"lima.{END_TURN}", f"lima.{END_TURN}nairobi.{END_TURN}"
        assert spelled(folder, counted=True) == [last, one, both]
        assert name == "marked" or spelled(folder) == plain * 3, "the template sees none of it"


def test_what_answers_a_pair_may_leave_out_of_the_loss(tmp_path):
    chosen = [TWO_TURNS[2] | {"weight": 0}, TWO_TURNS[3], TWO_TURNS[4]]
    lines = [{"prompt": TWO_TURNS[:2], "chosen": chosen, "rejected": "no."}]
    folder = prepared_chat(tmp_path / "out", lines, format="preference")
    assert spelled(folder, counted=True) == [f"nairobi.{END_TURN}", f"no.{END_TURN}"]


GLM = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""As THUDM/glm-4-9b-chat's: the role that speaks next ends a turn."""
MARKED_GLM = GLM.replace(
    "{{ '<|' + m.role + '|>\n' + m.content }}",
    "{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}",
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")


@pytest.mark.parametrize(
    "source", [GLM, MARKED_GLM, GLM.replace("m.content }}", "m.content + '\n' }}")], ids=["plain", "marked", "newline"]
)
def test_the_token_of_the_next_role_is_counted_where_it_ends_the_turn(tmp_path, source):
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", more=ROLES)
    folder = prepared_chat(tmp_path / "out", [{"messages": TWO_TURNS}], tokenizer=tokenizer, chat_template=source)
    (counted,) = spelled(folder, counted=True)
    newline = "Ċ" if "'\n' }}" in source else ""
    assert counted == f"lima.{newline}<|user|>nairobi.{newline}{END}"
    encoder = ChatEncoder(ChatTemplate(source, {"eos_token": END}, "a"), load_tokenizer(tokenizer, "a"))
    wanted = {load_tokenizer(tokenizer, "a").token_to_id(one) for one in (END, "<|user|>", "<|observation|>")}
    assert encoder.end_of_turn() == (wanted, ())
    encoder.close()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", True),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}", False),
        ("{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}", False),
    ],
)
def test_a_turn_that_no_token_ends_is_reported(tmp_path, source, told):
    _, printed = reported_chat(tmp_path / "out", [{"messages": TWO_TURNS}], chat_template=source)
    assert ("no special token between what the assistant says and the next" in printed) == told


def test_markers_that_are_no_tokens_are_refused_of_a_template_that_is_chosen_and_reported_of_the_tokenizers(tmp_path):
    bare, lines = write_tokenizer(tmp_path / "bare" / "tokenizer.json"), [{"messages": TWO_TURNS}]
    with refused("--chat-template 'chatml'", "'<|im_start|>', '<|im_end|>'", "--special-tokens"):
        prepared_chat(tmp_path / "out", lines, tokenizer=bare, chat_template="chatml")
    plain = {"chat_template": GLM.replace("<|assistant|>\n", ""), "eos_token": END}
    (bare.parent / "tokenizer_config.json").write_text(json.dumps(plain))
    assert "writes <|user|>, <|assistant|> as text" in reported_chat(tmp_path / "out", lines, tokenizer=bare)[1]


def test_a_trained_tokenizer_has_the_markers_of_a_template(tmp_path):
    text = prepared(tmp_path / "text", ["the capital of peru is lima"] * 3, train_bpe=262, validation_fraction=0.0,
                    special_tokens=("<|im_start|>", "<|im_end|>"))  # fmt: skip
    tokenizer = load_tokenizer(text.path / "tokenizer.json", "a")
    assert [tokenizer.token_to_id(one) for one in (END, "<|im_start|>", END_TURN)] == [0, 1, 2]
    given = {"tokenizer": text.path / "tokenizer.json", "chat_template": "chatml"}
    folder = prepared_chat(tmp_path / "chat", [{"prompt": "a", "completion": "b"}], **given)
    assert spelled(folder, counted=True) == [f"b{END_TURN}"] and folder.index.separator == 0
    for changes, parts in (
        ({"special_tokens": ("a",)}, ("--special-tokens", "--train-bpe")),
        ({"train_bpe": 258, "special_tokens": ("a", "b")}, ("--train-bpe 258", "expected 259")),
        ({"train_bpe": 300, "special_tokens": ("",)}, ("--special-tokens ''",)),
    ):
        with refused(*parts):
            prepared(tmp_path / "none", ["a"], **changes)
