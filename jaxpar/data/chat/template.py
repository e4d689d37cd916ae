"""Chat templates: that of a tokenizer, of a file, of a token folder, or ChatML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import cut, named, quoted

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
DEFAULT = "default"
"""The template that is used when no name is configured."""
ADDITIONAL = "additional_chat_templates"
"""Name of the folder of further templates, a file each."""
_SOURCE, _FILE, _LEGACY, _TOKEN = "chat_template", "chat_template.jinja", "chat_template.json", "_token"


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Jinja2 that turns messages into text."""

    source: str
    variables: dict[str, str]
    """The names of special tokens (`bos_token`, ...) to their texts."""
    words: str
    """The file or folder it was read from, for messages."""

    def encode(self) -> bytes:
        """The text of a file that `template_beside` reads."""
        plain = {**self.variables, _SOURCE: self.source}
        return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()


def template_beside(folder: Path) -> ChatTemplate | None:
    """The usual template of a tokenizer's folder (see `templates_beside`); None without any.

    Raises:
        UserError: a file cannot be read, or holds no template, or several of which none is the usual one.
    """
    templates = templates_beside(folder)
    if templates and DEFAULT not in templates:
        first = next(iter(templates.values()))
        raise UserError(
            f"{first.words}: chat templates are named {_names(templates)}, and none {DEFAULT}; expected "
            "--chat-template with one of these names"
        )
    return templates.get(DEFAULT)


def templates_beside(folder: Path) -> dict[str, ChatTemplate]:
    """The templates of a tokenizer's folder by name, the usual one as `default`.

    They are in `chat_template.jinja` and `additional_chat_templates/`, or else in `tokenizer_config.json`, or else in
    `chat_template.json`, as processors of transformers 4 wrote it.

    Raises:
        UserError: a file cannot be read, or holds no template.
    """
    config = _read_config(folder / CHAT)
    variables = _variables(config)
    files = {DEFAULT: folder / _FILE} | {file.stem: file for file in sorted((folder / ADDITIONAL).glob("*.jinja"))}
    texts = {name: (_read(file), named(file)) for name, file in files.items()}
    if templates := {
        name: ChatTemplate(text, variables, file) for name, (text, file) in texts.items() if text is not None
    }:
        return templates
    for file, values in ((folder / CHAT, config), (folder / _LEGACY, _read_config(folder / _LEGACY))):
        if (source := values.get(_SOURCE)) is not None:
            return {
                name: ChatTemplate(text, variables, named(file))
                for name, text in _templates_by_name(source, file).items()
            }
    return {}


def _templates_by_name(source: object, file: Path) -> dict[str, str]:
    """The templates of a file of JSON: a text, or several by name, as a mapping or a list of `name` and `template`."""
    if isinstance(source, list):
        entries = [one for one in source if isinstance(one, dict) and isinstance(one.get("name"), str)]
        source = {one["name"]: one.get("template") for one in entries}
    templates = source if isinstance(source, dict) else {DEFAULT: source}
    texts = {name: text for name, text in templates.items() if isinstance(text, str)}
    if not texts or len(texts) < len(templates):
        raise UserError(f"{named(file)}: {_SOURCE}: expected a text, or a list of templates with a name each")
    return texts


def chosen_template(choice: str, folder: Path) -> ChatTemplate:
    """The template that `--chat-template` names: `chatml`, one of the tokenizer's by its name, or a file of Jinja2.

    Args:
        choice: the argument.
        folder: of the tokenizer, whose special tokens it may use.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    words = f"--chat-template {quoted(choice)}"
    variables = named_tokens(folder)
    if choice == CHATML:
        return ChatTemplate(CHATML_SOURCE, variables, words)
    source = _read(user_path(choice, "--chat-template"))
    if source is None:
        templates = templates_beside(folder)
        if choice in templates:
            return templates[choice]
        known = f", one of the tokenizer's ({_names(templates)})" if templates else ""
        raise UserError(f"{words} does not exist; expected a file with a template of Jinja2{known}, or {CHATML}")
    return ChatTemplate(source, variables, words)


def named_tokens(folder: Path) -> dict[str, str]:
    """The special tokens that `tokenizer_config.json` in a tokenizer's folder names, as `eos_token`; the text of each.

    Raises:
        UserError: the file cannot be read.
    """
    return _variables(_read_config(folder / CHAT))


def _names(templates: dict[str, ChatTemplate]) -> str:
    return cut(", ".join(map(repr, templates)))


def _variables(config: dict[str, object]) -> dict[str, str]:
    variables = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith(_TOKEN) and isinstance(text, str):
            variables[name] = text
    return variables


def _read_config(path: Path) -> dict[str, object]:
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
