"""The template of a tokenizer's folder, which may have several by name, in any of the files that hold one."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.data.chat.template import CHAT, chosen_template, template_beside
from tests.sentences import refused

RAG, TOOLS = {"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}


def write(folder: Path, name: str, template: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    text = template if name.endswith(".jinja") else json.dumps({"chat_template": template, "eos_token": "</s>"})
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    "files",
    [
        {CHAT: "a"},
        {CHAT: [RAG, {"name": "default", "template": "a"}]},
        {CHAT: {"rag": "r", "default": "a"}},
        {CHAT: [{"name": ["a"], "template": "b"}, {"name": {}}, "d", {"name": "default", "template": "a"}]},
        {"chat_template.json": "a"},
        {"chat_template.json": "b", CHAT: "a"},
        {"chat_template.jinja": "a", CHAT: [RAG, TOOLS], "chat_template.json": "b"},
        {"chat_template.jinja": "a", "additional_chat_templates/rag.jinja": "r"},
    ],
    ids=lambda files: " ".join(files),
)
def test_the_usual_template_is_found_in_each_file(files: dict[str, Any], tmp_path: Path):
    for name, template in files.items():
        write(tmp_path, name, template)
    found = template_beside(tmp_path)
    assert found is not None and found.source == "a"
    assert found.variables == ({"eos_token": "</s>"} if CHAT in files else {})


@pytest.mark.parametrize(
    "files",
    [
        {CHAT: [RAG, TOOLS]},
        {"chat_template.json": {"rag": "r", "tool_use": "t"}},
        {"additional_chat_templates/rag.jinja": "r", "additional_chat_templates/tool_use.jinja": "t"},
    ],
    ids=lambda files: " ".join(files),
)
def test_of_named_templates_without_a_usual_one_the_user_names_one(files: dict[str, Any], tmp_path: Path):
    for name, template in files.items():
        write(tmp_path, name, template)
    with refused("'rag'", "'tool_use'", "default", "--chat-template"):
        template_beside(tmp_path)
    assert chosen_template("tool_use", tmp_path).source == "t"
    with refused("--chat-template 'raq'", "'rag'", "chatml"):
        chosen_template("raq", tmp_path)
    (tmp_path / "own.jinja").write_text("o")
    assert chosen_template(str(tmp_path / "own.jinja"), tmp_path).source == "o"


def test_what_is_no_template_is_refused_by_its_file(tmp_path: Path):
    for template in (3, [], {}, [{"name": "default", "template": None}], [{"name": {}, "template": "b"}, "c"]):
        write(tmp_path, CHAT, template)
        with refused(CHAT, "chat_template"):
            template_beside(tmp_path)
