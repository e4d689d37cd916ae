"""`--spans FILE --out FOLDER`: marks spans of characters, each of a kind, in the documents of a token folder.

A line of the file is `{"text": "...", "spans": [[begin, end, kind], ...]}`; the text is that of a document. A span has
the tokens with a character of it.
"""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.data.prepare.marks import Marks, TextTokens
from jaxpar.data.prepare.output.atomic_files import write_file
from jaxpar.data.tokens.span_file import Spans, encode_spans, span_file
from jaxpar.pages.units import plural

type Marked = list[tuple[int, int, str]]
"""First token, the one behind the last, and kind of each span of a document, in order."""


def mark_spans(file: Path, folder: Path, console: Console) -> None:
    """Write the spans of each split.

    Raises `UserError` where a line is not as above, or no document has its text; nothing is written then.
    """
    marks = Marks("--spans", "`spans`, a list of [begin, end, kind]", _parse, _to_token_spans)
    opened, of_splits = marks.read_folder(file, folder)
    every = [span for documents in of_splits.values() for _, marked in documents for span in marked]
    names = sorted({kind for *_, kind in every})
    for split, documents in of_splits.items():
        shifted = [
            (first + begin, first + end, names.index(kind))
            for first, marked in documents
            for begin, end, kind in marked
        ]
        columns = np.array(shifted, np.int64).reshape(-1, 3).T
        spans, path = Spans._make((*columns, tuple(names))), span_file(folder, split)
        try:
            write_file(path, encode_spans(spans, opened.identity))
        except OSError as error:
            raise UserError(f"{named(path)} cannot be written ({error.strerror or error})") from error
        console.print(f"{plural(len(shifted), 'span')} in {split}", markup=False)


def _parse(record: dict[str, Any]) -> Marked:
    return sorted((index(begin), index(end), str(kind)) for begin, end, kind in record["spans"])


def _to_token_spans(spans: Marked, text: TextTokens) -> Marked:
    """Spans of tokens from those of characters."""
    shifted: Marked = []
    for begin, end, kind in spans:
        first, stop = text.span(begin, end)
        if shifted and first < shifted[-1][1]:
            raise UserError(
                f"{text.line}: the span [{begin}, {end}] has a token of another; expected spans that do not overlap"
            )
        shifted.append((first, stop, kind))
    return shifted
