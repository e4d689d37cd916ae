"""`--inspect FOLDER`: prints the contents of a token folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int64
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.config.spelling import printable, quoted
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.data.tokens.token_index import SPLITS
from jaxpar.pages.units import plural

_BAR = 40
_LETTERS = 300
_SHOWN_TOKENS = 400
"""Most tokens of a document that are decoded and shown."""


def inspect_folder(folder: Path, console: Console, documents: int = 3) -> None:
    """Print counts, a histogram of the documents' lengths, and the first documents of each split, decoded.

    Raises:
        UserError: the folder cannot be opened, or is damaged.
    """
    opened = open_token_folder(folder, key="--inspect")
    index = opened.index
    _line(
        console,
        f"{folder}: {index.dtype} tokens, vocabulary {index.vocab:,}, documents end with token {index.separator} "
        f"({_spelled(opened)})",
    )
    if any(index.skipped.values()):
        _line(
            console,
            "left out: " + ", ".join(f"{count:,} {why}" for why, count in sorted(index.skipped.items()) if count),
        )
    console.print(_statistics(opened))
    for split, stream in zip(SPLITS, (opened.train, opened.validation), strict=True):
        if stream is not None:
            _line(console, f"\nLengths of documents, {split} (tokens, the end-of-document token included)", "bold")
            lengths = stream.lengths
            for text in _histogram(lengths):
                _line(console, text)
            for document, first in enumerate(stream.starts[:documents].tolist()):
                _show(opened, stream, f"Document {document + 1} of {split}", first, int(lengths[document]), console)


def _spelled(opened: TokenFolder) -> str:
    from jaxpar.data.tokens.tokenizer_file import load_tokenizer

    path = opened.path / opened.index.tokenizer.name
    return repr(load_tokenizer(path, str(path)).id_to_token(opened.index.separator))


def _statistics(opened: TokenFolder) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("split", "shards", "documents", "tokens", "bytes of text", "bytes per token", "tokens per document"):
        table.add_column(title, justify="left" if title == "split" else "right")
    index = opened.index
    for split in SPLITS:
        tokens, documents, text = index.tokens_in(split), index.documents_in(split), index.text_bytes_in(split)
        ratios = (f"{text / tokens:.2f}", f"{tokens / documents:,.1f}") if tokens else ("", "")
        table.add_row(split, f"{len(index.shards(split)):,}", f"{documents:,}", f"{tokens:,}", f"{text:,}", *ratios)
    return table


def _histogram(lengths: Int64[np.ndarray, " documents"]) -> list[str]:
    """A line for each doubling of the length."""
    powers = np.frexp(lengths.astype(np.float64))[1] - 1
    documents = np.bincount(powers)
    rows = []
    for power in range(int(powers.min()), len(documents)):
        low, high = 2**power, 2 ** (power + 1) - 1
        bar = "#" * max(round(_BAR * documents[power] / documents.max()), int(documents[power] > 0))
        rows.append(f"{low:>10,} - {high:<10,} {documents[power]:>10,}  {bar}")
    shares = np.quantile(lengths, [0.5, 0.9, 0.99])
    rows.append(
        f"median {shares[0]:,.0f}, 90% up to {shares[1]:,.0f}, 99% up to {shares[2]:,.0f}, longest {lengths.max():,}"
    )
    return rows


def _show(opened: TokenFolder, stream: TokenStream, title: str, first: int, length: int, console: Console) -> None:
    tokens = stream.tokens[first : first + min(length, _SHOWN_TOKENS)]
    text = opened.codec.decode(tokens)
    cut = len(text) > _LETTERS or length > _SHOWN_TOKENS
    _line(console, f"\n{title}, {plural(length, 'token')}", "bold")
    for line in text[:_LETTERS].splitlines():
        printable = "".join(letter if letter.isprintable() or letter == "\t" else "?" for letter in line)
        _line(console, f"  | {printable}")
    if cut:
        _line(console, "  | ...")
    if stream.loss_mask is not None:
        words = opened.codec.decode(tokens[stream.loss_mask[first : first + len(tokens)] > 0])
        _line(console, f"  counted: {quoted(words, _LETTERS)}")


def _line(console: Console, text: str, style: str = "") -> None:
    shown = "\n".join(map(printable, text.split("\n")))
    encoded = shown.encode(console.encoding, "replace").decode(console.encoding)
    console.print(Text(encoded, style=style), soft_wrap=True)
