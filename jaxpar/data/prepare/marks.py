"""Lines of JSON that mark something in the documents of a finished token folder, by characters of their text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named, quoted
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.data.tokens.token_index import SPLITS


@dataclass(frozen=True)
class TextTokens:
    """The tokens of a line's text."""

    offsets: Int64[np.ndarray, "token 2"]
    """The characters of each."""
    before: int
    """Tokens that begin every document."""
    line: str
    """The file and line, for messages."""

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The first token with a character from `begin` to below `end`, and the one behind the last.

        Raises `UserError` where there is none.
        """
        inside = np.flatnonzero((self.offsets[:, 0] < end) & (self.offsets[:, 1] > begin))
        if not 0 <= begin < end or not len(inside):
            raise UserError(
                f"{self.line}: the span [{begin}, {end}] has no character of the text; expected begin < end"
            )
        return self.before + int(inside[0]), self.before + int(inside[-1]) + 1


@dataclass(frozen=True)
class Marks[Parsed, Marked]:
    """A kind of marks of a document."""

    flag: str
    """The option that names the file."""
    expected: str
    """Words for the members of a line."""
    parse: Callable[[dict[str, Any]], Parsed]
    """The marks of a line, by characters; raises where the line has others."""
    mark: Callable[[Parsed, TextTokens], Marked]
    """These by tokens. Raises `UserError`."""

    def read_folder(self, file: Path, folder: Path) -> tuple[TokenFolder, dict[str, list[tuple[int, Marked]]]]:
        """The folder, and by split the first token of each marked document, with its marks.

        Raises:
            UserError: a line is wrong, no document has its text, or the folder is not of text.
        """
        opened = open_token_folder(folder, key="--out")
        if opened.index.chat is not None:
            raise UserError(
                f"{self.flag} are of text, and --out {quoted(str(folder))} has conversations; expected text"
            )
        by_tokens = dict(self._lines(file, opened))
        missing, of_splits = set(by_tokens), {}
        for split, stream in zip(SPLITS, (opened.train, opened.validation), strict=True):
            if stream is None:
                continue
            of_splits[split] = []
            for first, length in zip(stream.starts[:].tolist(), stream.lengths.tolist(), strict=True):
                key = _key(stream.tokens[first : first + length])
                missing.discard(key)
                if key in by_tokens:
                    of_splits[split].append((first, by_tokens[key][1]))
        if missing:
            line = min(by_tokens[key][0] for key in missing)
            raise UserError(
                f"{file}:{line}: no document of {named(folder)} has this text; expected the text it was made of"
            )
        return opened, of_splits

    def _lines(self, file: Path, opened: TokenFolder) -> Iterator[tuple[str, tuple[int, Marked]]]:
        """Line and marks of the tokens of each line's text."""
        codec, tokenizer = opened.codec, opened.codec.tokenizer
        tokenizer.encode_special_tokens = True
        try:
            content = read_file(file, None, f"{self.flag} {quoted(str(file))}")
        except OSError as error:
            raise UserError(f"{self.flag} {quoted(str(file))} cannot be read ({error.strerror})") from error
        for at, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
            try:
                record: Any = json.loads(line.decode())
                parsed = self.parse(record)
                encoded = tokenizer.encode(record["text"], add_special_tokens=False)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise UserError(
                    f"{file}:{at}: expected a line of JSON in UTF-8 with `text` and {self.expected}"
                ) from None
            tokens = np.array([*codec.before, *encoded.ids, opened.index.separator], opened.index.dtype)
            offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
            of_line = TextTokens(offsets, len(codec.before), f"{file}:{at}")
            yield _key(tokens), (at, self.mark(parsed, of_line))


def _key(tokens: np.ndarray) -> str:
    return digest(tokens.astype("<u4").tobytes())
