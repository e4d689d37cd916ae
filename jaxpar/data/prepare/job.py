"""The data shared by the processes of a preparation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxpar.data.chat.template import ChatTemplate
from jaxpar.data.prepare.choice import Choice
from jaxpar.data.prepare.input.files import Input
from jaxpar.data.prepare.input.units import Unit

WORK = ".prepare"
"""Folder, within the unfinished token folder, of temporary files."""


@dataclass(frozen=True, kw_only=True)
class TokenForm:
    """The form of the tokens that texts become."""

    tokenizer: Path
    vocab: int
    separator: int
    """The id of the end-of-document token."""
    text_key: str
    """Key of a JSON line, or column of a table, that holds the text."""

    @property
    def dtype(self) -> str:
        """Type of the tokens."""
        return "uint16" if self.vocab <= 2**16 else "uint32"


@dataclass(frozen=True, kw_only=True)
class Job(TokenForm):
    """A preparation whose tokenizer is fixed."""

    out: Path
    """The token folder to make."""
    inputs: list[Input]
    units: list[Unit]
    validation_fraction: float
    max_expansion: int
    """Largest ratio of a file's unpacked size to its compressed size."""
    chat: ChatTemplate | None
    """The chat template of conversations; None for text."""
    choice: Choice
    """The documents to prepare."""
    answers: str | None
    """`PAIRS_FORMAT` where a line of the input is a pair of conversations, one chosen and one rejected; `LABELS_FORMAT`
    where it is one with a mark."""

    @property
    def token_bytes(self) -> int:
        """Size of a token."""
        return 2 if self.dtype == "uint16" else 4

    @property
    def work(self) -> Path:
        """Folder of temporary files."""
        return self.out / WORK

    @property
    def unit_folder(self) -> Path:
        """Folder of the units' tokens and records."""
        return self.work / "units"

    @property
    def screened_folder(self) -> Path:
        """Folder of the units' choices of documents."""
        return self.work / "screened"

    @property
    def shard_folder(self) -> Path:
        """Folder of the shards' records."""
        return self.work / "shards"

    def unit_file(self, unit: int, kind: str) -> Path:
        """A file of a unit: `json` is its record, `train.tokens` and the like hold its tokens."""
        return self.unit_folder / f"{unit:08d}.{kind}"
