"""Evaluation tasks: their kinds, settings and examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxpar.config.errors import UserError
from jaxpar.config.paths import is_name
from jaxpar.evaluation.matching import check_pattern


@dataclass(frozen=True)
class Choice:
    """An example of a multiple choice."""

    context: str
    choices: tuple[str, ...]
    """The choices, at least two texts."""
    answer: int
    """The number of the right one, from 0."""
    id: str | int | None = None
    """Identifier of the example; not used."""

    def __post_init__(self) -> None:
        if len(self.choices) < 2 or not all(map(_is_text, self.choices)):
            raise UserError(f"choices: expected at least two texts that are not empty, got {len(self.choices)}")
        if not 0 <= self.answer < len(self.choices):
            raise UserError(f"answer: expected the number of a choice, 0 to {len(self.choices) - 1}, got {self.answer}")
        _check_texts(context=self.context)


@dataclass(frozen=True)
class Question:
    """An example of a generation task."""

    prompt: str
    answer: str | tuple[str, ...]
    """The correct text, or several correct texts."""
    id: str | int | None = None
    """Identifier of the example; not used."""

    def __post_init__(self) -> None:
        if not self.answers or not all(map(_is_text, self.answers)):
            raise UserError("answer: expected a text that is not empty, or a list of such")
        _check_texts(prompt=self.prompt)

    @property
    def answers(self) -> tuple[str, ...]:
        """All texts that are correct answers."""
        return (self.answer,) if isinstance(self.answer, str) else self.answer


@dataclass(frozen=True)
class Document:
    """A text whose likelihood is measured."""

    text: str
    id: str | int | None = None
    """Identifier of the example; not used."""

    def __post_init__(self) -> None:
        _check_texts(text=self.text)


@dataclass(frozen=True)
class MultipleChoice:
    """The likeliest choice after a context."""

    data: str
    """The file of the examples, JSON lines, beside this one."""
    kind: Literal["multiple_choice"] = "multiple_choice"
    name: str | None = None
    """Name of the task, by default that of the file."""
    preamble: str = ""
    """Comes before each context, for example solved examples."""
    delimiter: str = " "
    """Text between a context and a choice."""


@dataclass(frozen=True)
class Generation:
    """A text that must be right."""

    data: str
    """The file of the examples, JSON lines, beside this one."""
    kind: Literal["generation"] = "generation"
    name: str | None = None
    """Name of the task, by default that of the file."""
    preamble: str = ""
    """Comes before each prompt, for example solved examples."""
    tokens: int = 64
    """The most new tokens."""
    stop: tuple[str, ...] = ("\n",)
    """Strings that end a text."""
    pattern: str | None = None
    """A regular expression: the text that its first group, or all of it, matches first is compared."""
    ignore_case: bool = False
    ignore_punctuation: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= 2**20:
            raise UserError(f"tokens: expected from 1 to {2**20}, got {self.tokens}")
        if self.pattern is not None:
            check_pattern(self.pattern)


@dataclass(frozen=True)
class Perplexity:
    """The likelihood of texts."""

    data: str
    """The file of the documents: JSON lines, or plain text, which is one document; beside this one."""
    kind: Literal["perplexity"] = "perplexity"
    name: str | None = None
    """Name of the task, by default that of the file."""
    stride: int | None = None
    """Tokens by which windows slide; null makes them disjoint."""

    def __post_init__(self) -> None:
        if self.stride is not None and self.stride < 1:
            raise UserError(f"stride: expected at least 1 or null, got {self.stride}")


type Settings = MultipleChoice | Generation | Perplexity
type Example = Choice | Question | Document

EXAMPLES: dict[str, tuple[type[Settings], type[Example]]] = {
    "multiple_choice": (MultipleChoice, Choice),
    "generation": (Generation, Question),
    "perplexity": (Perplexity, Document),
}
"""Settings and examples of each kind of task."""


@dataclass(frozen=True)
class Task:
    """A task with its examples."""

    name: str
    settings: Settings
    examples: tuple[Example, ...]
    """Examples of the settings' kind, at least one."""

    @property
    def texts(self) -> list[str]:
        """The text of each example with its right answer, without the preamble."""
        delimiter = self.settings.delimiter if isinstance(self.settings, MultipleChoice) else ""
        return [_full_text(example, delimiter) for example in self.examples]


def _full_text(example: Example, delimiter: str) -> str:
    match example:
        case Choice():
            return f"{example.context}{delimiter}{example.choices[example.answer]}"
        case Question():
            return f"{example.prompt}{example.answers[0]}"
        case Document():
            return example.text


def _is_text(text: str) -> bool:
    return bool(text) and is_name(text)


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        if not is_name(text) or (name != "context" and not text):
            raise UserError(f"{name}: expected a text in UTF-8 without NUL{', not empty' * (name != 'context')}")
