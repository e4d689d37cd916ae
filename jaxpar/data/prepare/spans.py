"""`--spans FILE --out FOLDER`: marks spans of characters, each of a kind, in the documents of a token folder.

A line of the file is `{"text": "...", "spans": [[begin, end, kind], ...]}`; the text is that of a document. A span has
the tokens with a character of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named, quoted
from jaxpar.data.prepare.output.atomic_files import write_file
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.span_file import Spans, encode_spans, span_file
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.data.tokens.token_index import SPLITS
from jaxpar.units import plural

type Marked = list[tuple[int, int, str]]
"""First token, the one behind the last, and kind of each span of a document, in order."""


def mark_spans(file: Path, folder: Path, console: Console) -> None:
    """Write the spans of each split.

    Raises `UserError` where a line is not as above, or no document has its text; nothing is written then.
    """
    opened = open_token_folder(folder, key="--out")
    if opened.index.chat is not None:
        raise UserError(f"--spans are of text, and --out {quoted(str(folder))} has conversations; expected text")
    by_tokens = dict(_lines(file, opened))
    missing, names = set(by_tokens), sorted({kind for _, marked in by_tokens.values() for *_, kind in marked})
    of_splits: dict[str, np.ndarray] = {}
    for split, stream in zip(SPLITS, (opened.train, opened.heldout), strict=True):
        if stream is None:
            continue
        placed: list[tuple[int, int, int]] = []
        for first, length in zip(stream.starts[:].tolist(), stream.lengths.tolist(), strict=True):
            key = _key(stream.tokens[first : first + length])
            missing.discard(key)
            _, marked = by_tokens.get(key, (0, []))
            placed += [(first + begin, first + end, names.index(kind)) for begin, end, kind in marked]
        of_splits[split] = np.array(placed, np.int64).reshape(-1, 3).T
    if missing:
        line = min(by_tokens[key][0] for key in missing)
        raise UserError(
            f"{file}:{line}: no document of {named(folder)} has this text; expected the text it was made of"
        )
    for split, (first, stop, kind) in of_splits.items():
        spans, path = Spans(first, stop, kind, tuple(names)), span_file(folder, split)
        try:
            write_file(path, encode_spans(spans, opened.identity))
        except OSError as error:
            raise UserError(f"{named(path)} cannot be written ({error.strerror or error})") from error
        console.print(f"{plural(len(first), 'span')} in {split}", markup=False)


def _lines(file: Path, opened: TokenFolder) -> Iterator[tuple[str, tuple[int, Marked]]]:
    """For the tokens of each line's text the line and its spans."""
    codec, tokenizer = opened.codec, opened.codec.tokenizer
    tokenizer.encode_special_tokens = True
    try:
        content = read_file(file, None, f"--spans {quoted(str(file))}")
    except OSError as error:
        raise UserError(f"--spans {quoted(str(file))} cannot be read ({error.strerror})") from error
    for at, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
        try:
            record: Any = json.loads(line.decode())
            text, spans = (
                record["text"],
                [(index(begin), index(end), str(kind)) for begin, end, kind in record["spans"]],
            )
            encoded = tokenizer.encode(text, add_special_tokens=False)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(
                f"{file}:{at}: expected a line of JSON in UTF-8 with `text` and `spans`, a list of [begin, end, kind]"
            ) from None
        tokens = np.array([*codec.before, *encoded.ids, opened.index.separator], opened.index.dtype)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        yield _key(tokens), (at, _of_tokens(sorted(spans), offsets, len(codec.before), f"{file}:{at}"))


def _of_tokens(spans: Marked, offsets: np.ndarray, before: int, where: str) -> Marked:
    """Spans of tokens from those of characters."""
    placed: Marked = []
    for begin, end, kind in spans:
        inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
        if not 0 <= begin < end or not len(inside):
            raise UserError(f"{where}: the span [{begin}, {end}] has no character of the text; expected begin < end")
        first, stop = before + int(inside[0]), before + int(inside[-1]) + 1
        if placed and first < placed[-1][1]:
            raise UserError(
                f"{where}: the span [{begin}, {end}] has a token of another; expected spans that do not overlap"
            )
        placed.append((first, stop, kind))
    return placed


def _key(tokens: np.ndarray) -> str:
    return digest(tokens.astype("<u4").tobytes())
