"""Tasks from files: YAML with settings, JSON lines with examples, or plain text (`docs/evaluation.md`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST, LONGEST_WRITTEN, read_text_file
from jaxpar.config.reading.typed import record_from_plain, shown
from jaxpar.config.reading.yaml_text import parse_document
from jaxpar.config.spelling import did_you_mean, join_or, named
from jaxpar.evaluation.task import EXAMPLES, Document, Example, Settings, Task

WRITTEN, LINES, TEXT = (".yaml", ".yml"), (".jsonl",), (".txt", ".md")
SUFFIXES = (*WRITTEN, *LINES, *TEXT)
"""Names of files of tasks end in one of these."""
MARKS = {"choices": "multiple_choice", "prompt": "generation", "text": "perplexity"}
"""The kind of task by a field of its examples."""


def is_task_file(word: str) -> bool:
    """Whether what a user named is a file, and not the name of a task of lm-evaluation-harness."""
    return word.lower().endswith(SUFFIXES) or "/" in word


def read_tasks(files: Sequence[str], key: str = "--tasks") -> list[Task]:
    """The tasks of some files, which the option `key` names.

    Raises:
        UserError: a file cannot be read or is wrong, or two tasks have one name; the sentence names file and line.
    """
    tasks: dict[str, Task] = {}
    for file in files:
        path = user_path(file, key)
        try:
            task = read_task(path)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
        if task.name in tasks:
            raise UserError(f"{key}: {named(file)} is the second task named {task.name}; give one of them a `name`")
        tasks[task.name] = task
    return list(tasks.values())


def read_task(file: Path) -> Task:
    """The task of a file. Raises `UserError`."""
    suffix = file.suffix.lower()
    if suffix in WRITTEN:
        return _from_settings(file)
    if suffix in LINES:
        lines = _lines(file)
        first = lines[0][1]
        kind = next((MARKS[mark] for mark in MARKS if isinstance(first, Mapping) and mark in first), None)
        if kind is None:
            raise UserError(
                f"{named(file)}:{lines[0][0]}: expected an object with {join_or(MARKS)}, which decides the kind of task"
            )
        return Task(file.stem, EXAMPLES[kind][0](data=file.name), _examples(file, lines, kind))
    if suffix in TEXT:
        return Task(file.stem, EXAMPLES["perplexity"][0](data=file.name), _document(file))
    raise UserError(f"{named(file)}: expected a file that ends in {join_or(SUFFIXES)}")


def _from_settings(file: Path) -> Task:
    words = named(file)
    plain = {name: _plain(setting.value) for name, setting in parse_document(_text(file, LONGEST), words).items()}
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in EXAMPLES:
        known = f"expected {join_or(EXAMPLES)}"
        got = f"{known}, got {shown(kind)}{did_you_mean(kind, EXAMPLES)}" if "kind" in plain else f"missing; {known}"
        raise UserError(f"{words}: kind: {got}")
    try:
        settings: Settings = record_from_plain(EXAMPLES[kind][0], plain, words)
    except UserError as error:
        raise UserError(_with_name(words, error)) from None
    data = file.parent / user_path(settings.data, f"{words}: data")
    if data.suffix.lower() in TEXT and kind == "perplexity":
        examples = _document(data)
    elif data.suffix.lower() in LINES:
        examples = _examples(data, _lines(data), kind)
    else:
        expected = SUFFIXES[len(WRITTEN) :] if kind == "perplexity" else LINES
        raise UserError(f"{words}: data: {named(settings.data)}: expected a file that ends in {join_or(expected)}")
    return Task(settings.name or file.stem, settings, examples)


def _document(file: Path) -> tuple[Example, ...]:
    text = _text(file, LONGEST_WRITTEN)
    try:
        return (Document(text),)
    except UserError as error:
        raise UserError(f"{named(file)}: {error}") from None


def _lines(file: Path) -> list[tuple[int, object]]:
    """The values of the lines that are not empty, with their numbers; at least one."""
    values = [
        (line_number, parse_json(line, f"{named(file)}:{line_number}", unique=True))
        for line_number, line in enumerate(_text(file, LONGEST_WRITTEN).split("\n"), 1)
        if line.strip()
    ]
    if not values:
        raise UserError(f"{named(file)}: there is no example in it")
    return values


def _examples(file: Path, lines: Sequence[tuple[int, object]], kind: str) -> tuple[Example, ...]:
    examples: list[Example] = []
    for line_number, value in lines:
        words = f"{named(file)}:{line_number}"
        try:
            examples.append(record_from_plain(EXAMPLES[kind][1], value, words))
        except UserError as error:
            raise UserError(_with_name(words, error)) from None
    return tuple(examples)


def _with_name(words: str, error: UserError) -> str:
    """The sentence with the name of the file, which checks of values do not know."""
    return str(error) if str(error).startswith(words) else f"{words}: {error}"


def _plain(value: object) -> object:
    """A value of a document; its mappings hold values with their lines."""
    return {name: _plain(item.value) for name, item in value.items()} if isinstance(value, dict) else value


def _text(file: Path, longest: int) -> str:
    try:
        return read_text_file(file, longest, named(file))
    except FileNotFoundError:
        near = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
        raise UserError(f"{named(file)} does not exist{did_you_mean(file.name, near)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(file)}: cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})") from None
