"""The options of a preparation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.parts import ANSWERS_FORMATS, CHAT_FORMAT
from jaxpar.config.spelling import join_or
from jaxpar.data.prepare.choice import Choice
from jaxpar.data.tokens.tokenizer_file import END_NAMES

CHAT_FORMATS = CHAT_FORMAT, *ANSWERS_FORMATS
TEXT_KEY = "text"
SMALLEST_BPE = 257
"""Vocabulary of a byte-level BPE without merges: the bytes and the end-of-document token."""
DEFAULT_VALIDATION_FRACTION = 0.005
DEFAULT_SHARD_TOKENS = 2**29
DEFAULT_EXPANSION = 100
"""Text of any kind unpacks to 3 to 20 times as much."""


@dataclass(frozen=True)
class Options:
    """The options of `python -m jaxpar.prepare`."""

    inputs: tuple[str, ...]
    """Glob patterns of the input files."""
    out: Path
    tokenizer: Path | None = None
    """A `tokenizer.json`; None trains one."""
    train_bpe: int | None = None
    """Vocabulary of the byte-level BPE to train on the input; None reads `tokenizer`."""
    special_tokens: tuple[str, ...] = ()
    """Special tokens of the BPE to train, besides the end-of-document token: the markers of a chat template."""
    text_key: str = TEXT_KEY
    """Key of a JSON line, or column of a Parquet file, that holds the text."""
    format: str | None = None
    """Format of every input; None decides by the names."""
    chat_template: str | None = None
    """A file with the template of conversations, or `chatml`; None takes that of the tokenizer."""
    validation_fraction: float = DEFAULT_VALIDATION_FRACTION
    """Share of the documents that are for validation."""
    separator: str | None = None
    """Token that ends a document, spelled as in the tokenizer; None looks for a common one."""
    choice: Choice = field(default_factory=Choice)
    """The documents to prepare."""
    max_broken: int = 0
    """Documents that may be broken before the preparation stops."""
    max_expansion: int = DEFAULT_EXPANSION
    """Largest ratio of a file's unpacked size to its compressed size; files up to 64 MiB are always read."""
    processes: int = 1
    unit_bytes: int | None = None
    """Bytes of input in a unit of work; None chooses by the size of the input."""
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    """Tokens after which a shard ends."""

    def check(self) -> None:
        """Raises `UserError` for an invalid value or pair of values."""
        if (self.tokenizer is None) == (self.train_bpe is None):
            raise UserError("expected either --tokenizer FILE or --train-bpe VOCAB")
        if self.format in CHAT_FORMATS and self.tokenizer is None:
            raise UserError(
                f"--format {self.format} expects --tokenizer FILE, that of the model to train further: --train-bpe "
                "trains one on text, with the markers of a chat template as --special-tokens"
            )
        if self.special_tokens and self.train_bpe is None:
            raise UserError("--special-tokens are for --train-bpe: expected it too, or a --tokenizer that has them")
        if "" in self.special_tokens:
            raise UserError("--special-tokens '': expected the text of each token")
        if self.format in CHAT_FORMATS and self.text_key != TEXT_KEY:
            raise UserError(
                "--text-key is for text: a conversation is in `messages`, `prompt` and `completion`, `conversations`, "
                "or `instruction` and `output`, a pair in `prompt`, `chosen` and `rejected`, and a marked answer in "
                "`prompt`, `completion` and `label`"
            )
        if self.format not in CHAT_FORMATS and self.chat_template is not None:
            raise UserError(f"--chat-template is for conversations: expected --format {join_or(CHAT_FORMATS)} with it")
        self.choice.check()
        self._check_numbers()

    def _check_numbers(self) -> None:
        least = SMALLEST_BPE + len(set(self.special_tokens) - {self.separator or END_NAMES[0]})
        if self.train_bpe is not None and not least <= self.train_bpe <= 2**24:
            more = ", besides the --special-tokens" if least > SMALLEST_BPE else ""
            raise UserError(
                f"--train-bpe {self.train_bpe}: expected {least} (the bytes and an end-of-document token{more}) or "
                "more, at most 2**24"
            )
        if not 0.0 <= self.validation_fraction < 1.0:
            raise UserError(f"--validation-fraction {self.validation_fraction}: expected from 0 to below 1")
        for name, low, most in (
            ("processes", 1, 4096),
            ("max_broken", 0, 2**62),
            ("max_expansion", 1, 2**30),
            ("unit_bytes", 1, 2**62),
            ("shard_tokens", 1, 2**62),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise UserError(f"--{name.replace('_', '-')} {value}: expected at least {low}")
            if value is not None and value > most:
                raise UserError(f"--{name.replace('_', '-')} {value}: expected at most {most}")

    def decisive(
        self, tokenizer_digest: str | None, template_digest: str | None, *, before: Sequence[int]
    ) -> dict[str, object]:
        """The options that determine the output, as in `prepare.json`; of files, their contents.

        `before` are the tokens with which each document begins: releases that wrote none did not name them.
        """
        return {
            **({"before": list(before)} if before else {}),
            "tokenizer": tokenizer_digest,
            "train_bpe": self.train_bpe,
            "special_tokens": list(self.special_tokens) or None,
            "text_key": self.text_key,
            "format": self.format,
            "chat_template": template_digest,
            "validation_fraction": self.validation_fraction,
            "separator": self.separator,
            **self.choice.decisive(),
            "unit_bytes": self.unit_bytes,
            "shard_tokens": self.shard_tokens,
        }
