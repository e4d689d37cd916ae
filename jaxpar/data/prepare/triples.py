"""`--triples FILE --out FOLDER`: marks relations of a knowledge graph between spans of a token folder's documents.

A line of the file is `{"text": "...", "triples": [[[begin, end], relation, [begin, end], hop], ...]}`: head, relation,
tail, and the edges from one to the other. The text is that of a document. A span has the tokens with a character of it.
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
from jaxpar.data.tokens.triple_file import Triples, encode_triples, triple_file
from jaxpar.pages.units import plural

type Triple = tuple[int, int, str, int, int, int]
"""Head and stop, relation, tail and stop, hop."""


def mark_triples(file: Path, folder: Path, console: Console) -> None:
    """Write the triples of each split.

    Raises `UserError` where a line is not as above, or no document has its text; nothing is written then.
    """
    expected = "`triples`, a list of [[begin, end], relation, [begin, end], hop]"
    opened, of_splits = Marks("--triples", expected, _parse, _to_token_triples).read_folder(file, folder)
    every = [triple for documents in of_splits.values() for _, marked in documents for triple in marked]
    names = sorted({relation for _, _, relation, *_ in every})
    for split, documents in of_splits.items():
        shifted = sorted(
            (first + head, first + head_stop, names.index(relation), first + tail, first + tail_stop, hop)
            for first, marked in documents
            for head, head_stop, relation, tail, tail_stop, hop in marked
        )
        columns = np.array(shifted, np.int64).reshape(-1, 6).T
        path = triple_file(folder, split)
        try:
            write_file(path, encode_triples(Triples._make((*columns, tuple(names))), opened.identity))
        except OSError as error:
            raise UserError(f"{named(path)} cannot be written ({error.strerror or error})") from error
        console.print(f"{plural(len(shifted), 'triple')} in {split}", markup=False)


def _parse(record: dict[str, Any]) -> list[Triple]:
    return [
        (index(head), index(head_end), str(relation), index(tail), index(tail_end), index(hop))
        for (head, head_end), relation, (tail, tail_end), hop in record["triples"]
    ]


def _to_token_triples(triples: list[Triple], text: TextTokens) -> list[Triple]:
    """Triples of tokens from those of characters."""
    marked: list[Triple] = []
    for head, head_end, relation, tail, tail_end, hop in triples:
        if hop < 1:
            raise UserError(f"{text.line}: a triple has hop {hop}; expected 1, for spans with an edge between, or more")
        marked.append((*text.span(head, head_end), relation, *text.span(tail, tail_end), hop))
    return marked
