"""A tokenizer with a chat template, conversations, and token folders of them, for tests."""

import json
from pathlib import Path
from typing import Any

from jaxpar.data.chat.template import ChatTemplate
from jaxpar.data.prepare import prepare
from jaxpar.data.tokens.token_folder import TokenFolder
from tests.data.folders import options, quiet
from tests.goldens.chat.generate import END, END_TURN, FOLDER, TEMPLATE

TOKENIZER = FOLDER / "tokenizer.json"
VOCAB = 61
MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.role }}: {{ message.content }}<|im_end|>{% endif %}{% endfor %}"
)
"""A template that marks what the assistant says."""


def template(source: str = TEMPLATE) -> ChatTemplate:
    return ChatTemplate(source, {"eos_token": END}, "--chat-template 'a'")


def turns(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """Messages of the user and the assistant in turn."""
    found = [] if system is None else [{"role": "system", "content": system}]
    return found + [
        {"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)
    ]


def write_chat(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prepared_chat(out: Path, lines: list[dict[str, Any]], **changes: Any) -> TokenFolder:
    """A token folder at `out` with these conversations."""
    return reported_chat(out, lines, **changes)[0]


def reported_chat(out: Path, lines: list[dict[str, Any]], **changes: Any) -> tuple[TokenFolder, str]:
    """The same, and what the preparation prints. A template may be given by its text."""
    source, console = write_chat(out.with_name(f"{out.name}-input.jsonl"), lines), quiet()
    given = {"format": "chat", "tokenizer": TOKENIZER, "validation_fraction": 0.0} | changes
    if "{" in (given.get("chat_template") or ""):
        (template := out.with_name(f"{out.name}.jinja")).write_text(given["chat_template"])
        given["chat_template"] = str(template)
    return prepare(options(out, source, **given), console), console.file.getvalue()


def spelled(folder: TokenFolder, counted: bool = False) -> list[str]:
    """Each document to train on, special tokens included; or what of it is counted."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder.path / folder.index.tokenizer.name))
    stream, found = folder.train, []
    for first, length in zip(stream.starts[:].tolist(), stream.lengths.tolist(), strict=True):
        tokens, mask = stream.tokens[first : first + length], stream.loss_mask
        if counted:
            assert mask is not None
            tokens = tokens[mask[first : first + length] > 0]
        found.append("".join(tokenizer.id_to_token(int(token)) for token in tokens))
    return found


__all__ = ["END", "END_TURN", "MARKED", "TOKENIZER", "VOCAB", "prepared_chat", "reported_chat", "spelled", "template",
           "turns"]  # fmt: skip
