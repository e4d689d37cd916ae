"""Templates are programs of others: what they render is found in the text, and what they may do has limits."""

from datetime import date

import pytest

from jaxpar.config.errors import UserError
from jaxpar.data.chat import sandbox
from jaxpar.data.chat.conversation import Conversation
from jaxpar.data.chat.messages import Unusable
from jaxpar.data.chat.renderer import Renderer
from tests.data.chat_files import MARKED, template, turns
from tests.goldens.chat.generate import END, TEMPLATE
from tests.sentences import refused

TALK = Conversation(turns("a", "b", "c", "d"))


def marked(source: str, conversation: Conversation = TALK) -> list[str]:
    """The assistant's words, by a template that is rendered in this process."""
    text, ranges = sandbox.Template(source, {"eos_token": END}, date(2025, 1, 1)).training(conversation.messages)
    return [text[first:last] for first, last in ranges]


def printed(source: str, conversation: Conversation = TALK) -> list[str]:
    """The assistant's words, by a template."""
    renderer = Renderer(template(source))
    try:
        text, ranges = renderer.rendered(conversation)
        return [text[first:last] for first, last in ranges]
    finally:
        renderer.close()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (TEMPLATE, ["b<|im_end|>", "d<|im_end|>"]),
        (MARKED, ["b<|im_end|>", "d<|im_end|>"]),
        # Llama 2's manner: no beginning of a turn, and the end of a document behind each.
        (
            "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
            "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}",
            [" b <|endoftext|>", " d <|endoftext|>"],
        ),
        # Nothing ends a turn but a line.
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}",
            ["b\n", "d\n"],
        ),
        # What stands behind the last turn only is not a part of it.
        (TEMPLATE + "{% if not add_generation_prompt %}\n{% endif %}", ["b<|im_end|>", "d<|im_end|>"]),
    ],
)
def test_what_the_assistant_states_is_found(source, wanted):
    assert marked(source) == wanted
    if "| trim" in source:
        assert marked(source, Conversation(turns("a", "\n b ", "c", "  d"))) == wanted


def test_a_template_that_renders_earlier_turns_otherwise_is_refused():
    forgetful = "{% for m in messages %}{{ m.content if loop.revindex < 3 else '...' }};{% endfor %}"
    assert printed(forgetful, Conversation(turns("a", "b"))) == ["b;"]
    with pytest.raises(Unusable, match=r"first 2 messages .* generation"):
        printed(forgetful)


def test_templates_see_what_transformers_gives_them():
    source = (
        "{{ tools | tojson }} {{ strftime_now('%Y') }} {{ eos_token }} {{ unknown }}"
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    renderer = Renderer(template(source))
    text, ranges = renderer.rendered(Conversation(turns("a", "é"), tools=[{"name": "<é>"}]))
    renderer.close()
    assert text == '[{"name": "<é>"}] 2025 <|endoftext|> é' and ranges == [(len(text) - 1, len(text))]


HOSTILE = {
    "attributes of Python": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "a change of its arguments": ("{{ messages.append(1) }}", "unsafe"),
    "its own error": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "much memory in one expression": ("{{ 'a' * 10 ** 10 }}", "1024 MiB of memory"),
    "doubling": (
        "{% set n = namespace(x='a' * 99) %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "1024 MiB of memory",
    ),
    "a long text": ("{% for i in range(99999) %}{{ 'aaaaaaaaaa' * 99 }}{% endfor %}", "8,388,608 characters"),
    "deep recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_in_a_sentence(name):
    source, why = HOSTILE[name]
    with pytest.raises(Unusable, match=f"(?i)chat template .*{why}"):
        printed(source)


def test_a_conversation_that_is_too_long_to_send_is_refused_and_the_next_is_rendered(monkeypatch):
    renderer = Renderer(template("{% for m in messages %}{{ m.content }};{% endfor %}"))
    monkeypatch.setattr("jaxpar.data.chat.renderer.LONGEST_REQUEST", 200)
    with pytest.raises(Unusable, match=r"more than .* characters"):
        renderer.rendered(Conversation(turns("a", "b" * 200)))
    assert renderer.rendered(Conversation(turns("a", "b"))).text == "a;b;"
    renderer.close()


def test_a_process_that_ended_fails_one_conversation_at_most(monkeypatch):
    monkeypatch.setattr("jaxpar.data.chat.renderer.SECONDS", 0.3)
    loops = (
        "{% if messages | length == 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    renderer = Renderer(template(loops + "{% endif %}{% for m in messages %}{{ m.content }};{% endfor %}"))
    with refused("--chat-template 'a'", "0.3 seconds of processor time"):
        renderer.prompt(turns("a"))
    assert renderer.prompt(turns("a", "b")) == "a;b;"
    renderer._process.kill()
    renderer._process.wait()
    assert renderer.prompt(turns("a", "b")) == "a;b;"
    renderer.close()


def test_what_is_no_template_is_refused_before_anything_is_written():
    with pytest.raises(UserError, match=r"--chat-template 'a': .*endfor"):
        Renderer(template("{% for a in messages %}"))
