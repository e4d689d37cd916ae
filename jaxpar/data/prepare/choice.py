"""The options that choose documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.config.spelling import quoted
from jaxpar.config.user_code import is_user_code, load_function
from jaxpar.data.tokens.digests import digest, file_digest

EXACT, MINHASH = METHODS = ("exact", "minhash")
NGRAM = 13
"""Tokens of an n-gram by which a text of an evaluation is recognised, as in GPT-3 (arXiv:2005.14165)."""


@dataclass(frozen=True)
class Choice:
    """The documents to prepare; by default all."""

    keep: tuple[str, ...] = ()
    """Regular expressions; only documents with a match of each stay."""
    drop: tuple[str, ...] = ()
    """Regular expressions; documents with a match of one are left out."""
    filter: str | None = None
    """`FILE.py:NAME`, a function of a text that says whether it stays."""
    dedup: str | None = None
    """`EXACT` or `MINHASH`: of documents that are equal, or similar, the first stays."""
    decontaminate: tuple[str, ...] = ()
    """Texts of evaluations; documents that share an n-gram with one are left out."""
    ngram: int = NGRAM

    @property
    def screens(self) -> bool:
        """Whether the inputs are read once before, to choose."""
        return bool(self.keep or self.drop or self.filter or self.dedup)

    def check(self) -> None:
        """Raises `UserError` for a pattern or a function that cannot be used, or a package that is missing."""
        for name, patterns in (("keep", self.keep), ("drop", self.drop)):
            for pattern in patterns:
                try:
                    re.compile(pattern)
                except (re.error, OverflowError, RecursionError) as error:
                    raise UserError(f"--{name} {quoted(pattern)} is not a regular expression ({error})") from None
        if self.filter is not None:
            if not is_user_code(self.filter):
                raise UserError(f"--filter {quoted(self.filter)}: expected FILE.py:NAME, a function of a text")
            load_function(self.filter, "--filter")
        if self.dedup == MINHASH:
            try:
                import rensa  # noqa: F401
            except ImportError:
                raise UserError(
                    f"--dedup {MINHASH} needs the package rensa, which is not installed: {install_command('data')}"
                ) from None

    def decisive(self) -> dict[str, object]:
        """The choice as in `prepare.json`; of files, their contents."""
        texts = "\0".join((str(self.ngram), *self.decontaminate)).encode("utf-8", "surrogatepass")
        return {
            "keep": list(self.keep) or None,
            "drop": list(self.drop) or None,
            "filter": self.filter and f"{self.filter} {file_digest(Path(self.filter.rpartition(':')[0]).expanduser())}",
            "dedup": self.dedup,
            "decontaminate": digest(texts) if self.decontaminate else None,
        }
