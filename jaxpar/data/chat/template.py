"""Chat templates: that of a tokenizer, of a file, of a token folder, or ChatML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import named, quoted

CHAT = "tokenizer_config.json"
"""Name of the file of a template: beside a tokenizer, and in a token folder."""
CHATML = "chatml"
CHATML_SOURCE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
_SOURCE, _FILE, _TOKEN = "chat_template", "chat_template.jinja", "_token"


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Jinja2 that turns messages into text."""

    source: str
    variables: dict[str, str]
    """The names of special tokens (`bos_token`, ...) to their texts."""
    words: str
    """Where it is from, for messages."""

    def encode(self) -> bytes:
        """The text of a file that `template_beside` reads."""
        plain = {**self.variables, _SOURCE: self.source}
        return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()


def template_beside(folder: Path) -> ChatTemplate | None:
    """The template of a tokenizer's folder: `chat_template.jinja`, or that of `tokenizer_config.json`; None without.

    Raises:
        UserError: a file cannot be read, or holds no template.
    """
    config = _read_config(folder / CHAT)
    variables = _variables(config)
    source = _read(folder / _FILE)
    if source is not None:
        return ChatTemplate(source, variables, named(folder / _FILE))
    source = config.get(_SOURCE)
    if isinstance(source, list):  # Several by name, of which one is the usual one.
        default = (each for each in source if isinstance(each, dict) and each.get("name") == "default")
        source = next(default, {}).get("template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise UserError(f"{named(folder / CHAT)}: {_SOURCE}: expected a text, or a list with one named 'default'")
    return ChatTemplate(source, variables, named(folder / CHAT))


def chosen_template(choice: str, folder: Path) -> ChatTemplate:
    """The template that `--chat-template` names: a file of Jinja2, or `chatml`.

    Args:
        choice: the argument.
        folder: of the tokenizer, whose special tokens it may name.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    words = f"--chat-template {quoted(choice)}"
    variables = _variables(_read_config(folder / CHAT))
    if choice == CHATML:
        return ChatTemplate(CHATML_SOURCE, variables, words)
    source = _read(user_path(choice, "--chat-template"))
    if source is None:
        raise UserError(f"{words} does not exist; expected a file with a template of Jinja2, or {CHATML}")
    return ChatTemplate(source, variables, words)


def _variables(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith(_TOKEN) and isinstance(text, str):
            found[name] = text
    return found


def _read_config(path: Path) -> dict[str, Any]:
    text = _read(path)
    config = {} if text is None else parse_json(text, named(path))
    if not isinstance(config, dict):
        raise UserError(f"{named(path)}: expected a mapping of keys")
    return config


def _read(path: Path) -> str | None:
    """The text of a file; None where there is none."""
    try:
        return read_text_file(path, LONGEST_WRITTEN, named(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(path)} cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})") from None
