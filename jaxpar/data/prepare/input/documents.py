"""The documents of a part of an input, one after the other; broken ones have their place and a reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import BinaryIO

from jaxpar.config.errors import UserError
from jaxpar.config.parts import ANSWERS_FORMATS, CHAT_FORMAT, LABELS_FORMAT, PAIRS_FORMAT
from jaxpar.config.spelling import quoted
from jaxpar.data.chat.messages import key_names
from jaxpar.data.chat.record_forms import form_of
from jaxpar.data.prepare.input.compression import Progress, open_bytes, reading
from jaxpar.data.prepare.input.files import Input
from jaxpar.data.prepare.input.tables import KEY_OPTION, TABLES, Document, Unpacked, table_documents

LONGEST_DOCUMENT = 2**28
"""Most bytes of a line or of a file that is a document. A process needs about seven times as much memory."""


def documents(
    file: Input,
    first: int,
    last: int,
    *,
    key: str,
    scratch: Path,
    max_expansion: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Document]:
    """The documents of a part of a file, in order.

    Args:
        file: the file.
        first: where the part begins: a byte, or the number of a row group of a Parquet file that is not compressed.
        last: where it ends. A line belongs to the part in which it begins. Other files have one part only.
        key: key of a JSON line, or column of a Parquet file.
        scratch: folder for a table while it is decompressed.
        max_expansion: as in `open_bytes`.
        progress: as in `open_bytes`; not for a table, which is decompressed before its first document.

    Raises:
        UserError: the file cannot be read, is cut off, has no such column or a document that is too long, or unpacks to
            too much.
    """
    unpacked = partial(open_bytes, file, max_expansion, None if file.format in TABLES else progress)
    if file.format in TABLES:
        of_groups = file.format == "parquet" and file.compression is None
        stretch = lambda sizes: range(sum(sizes[:first]), sum(sizes[:last])) if of_groups else range(sum(sizes))
        return table_documents(file, key, scratch, unpacked, stretch)
    if file.format == "text":
        return _file_document(file, unpacked)
    return _line_documents(file, _lines(file, first, last if file.divisible else None, unpacked), key)


def share_of_documents(
    file: Input, index: int, shares: int, *, key: str, option: str, scratch: Path
) -> Iterator[Document]:
    """The documents of one of `shares` equal shares of a table or a file of lines; each document is in one of them.

    A share is a stretch of the bytes or the rows (see `share_of_rows`); of lines of a compressed file, which is read
    from its beginning, it is every `shares`-th.

    Args:
        file: the file.
        index: number of the share.
        shares: how many there are.
        key: key of a JSON line, or column of a table.
        option: names the key, for messages.
        scratch: folder for a table while it is decompressed.

    Raises:
        UserError: as `documents`.
    """
    unpacked = partial(open_bytes, file)
    if file.format in TABLES:
        return table_documents(file, key, scratch, unpacked, lambda sizes: share_of_rows(sizes, index, shares), option)
    if file.divisible:
        lines = _lines(file, file.bytes * index // shares, file.bytes * (index + 1) // shares, unpacked)
    else:
        lines = islice(_lines(file, 0, None, unpacked), index, None, shares)
    return _line_documents(file, lines, key, option)


def share_of_rows(sizes: Sequence[int], index: int, shares: int) -> range:
    """The rows of a share of a table.

    A share is as many row groups as the others, or, where there are more shares than row groups, part of one. So a row
    group is read once, or by each of its parts.

    Args:
        sizes: rows of each row group.
        index: number of the share.
        shares: how many there are.
    """
    groups, starts = len(sizes), [0, *accumulate(sizes)]
    if shares <= groups:
        return range(starts[groups * index // shares], starts[groups * (index + 1) // shares])
    if not groups:
        return range(0)
    group = groups * index // shares
    first, stop = (-(-shares * one // groups) for one in (group, group + 1))  # the shares of that row group
    cut = lambda part: starts[group] + sizes[group] * (part - first) // (stop - first)
    return range(cut(index), cut(index + 1))


def location(file: Input, offset: int) -> str:
    """`file:line` or similar, for messages; reads the file up to the offset."""
    if file.format in TABLES:
        return f"{file.path}: row {offset + 1}"
    if file.format == "text":
        return file.path
    lines = 1
    with reading(file), open_bytes(file) as content:
        while offset > 0 and (chunk := content.read(min(offset, 2**20))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return f"{file.path}:{lines}"


def _file_document(file: Input, unpacked: Unpacked) -> Iterator[Document]:
    with reading(file), unpacked() as content:
        raw = content.read(LONGEST_DOCUMENT + 1)
    if len(raw) > LONGEST_DOCUMENT:
        raise UserError(
            f"{file.path} has more than {LONGEST_DOCUMENT} bytes, and is one document; divide it, or give --format "
            "lines if each of its lines is a document"
        )
    try:
        yield Document(0, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        yield Document(0, "", f"not UTF-8 (byte {error.start})")


def _line_documents(
    file: Input, lines: Iterable[tuple[int, bytes]], key: str, option: str = KEY_OPTION
) -> Iterator[Document]:
    for offset, line in lines:
        try:
            text = line.decode("utf-8-sig" if offset == 0 else "utf-8")
        except UnicodeDecodeError as error:
            yield Document(offset, "", f"not UTF-8 (byte {error.start} of the line)")
            continue
        text = text.rstrip("\r\n")
        if file.format == "lines":
            yield Document(offset, text)
        elif text and not text.isspace():
            yield (
                Document(offset, text)
                if file.format in (CHAT_FORMAT, *ANSWERS_FORMATS)
                else _from_json(offset, text, key, option)
            )


class NoObject(ValueError):
    """The reason why a line is not a JSON object."""


def object_of(line: str) -> dict[str, object]:
    """The JSON object of a line. Raises `NoObject`."""
    if line.lstrip().startswith("["):
        raise NoObject("an array, expected a JSON object on each line")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "too deep or long"
        raise NoObject(f"not JSON ({reason})") from None
    if not isinstance(value, dict):
        raise NoObject("not a JSON object")
    return value


def check_text_key(inputs: Sequence[Input], key: str, option: str = KEY_OPTION) -> None:
    """Refuse a key of the text that the first record of the first file of JSON lines does not have.

    Raises:
        UserError: it has other keys, which the sentence names, or the file cannot be read.
    """
    file = next((file for file in inputs if file.format == "jsonl"), None)
    lines = () if file is None else _lines(file, 0, None, partial(open_bytes, file))
    first = next((line for _, line in lines if line.strip()), None)
    try:
        record: dict[str, object] = {key: ""} if first is None else object_of(first.decode("utf-8-sig"))
    except (NoObject, UnicodeDecodeError):
        return  # It is reported as broken, with its line.
    if key not in record:
        assert file is not None
        forms = (PAIRS_FORMAT, "chosen" in record), (LABELS_FORMAT, "label" in record), (CHAT_FORMAT, form_of(record))
        chat = next((form for form, is_form in forms if is_form), None)
        other = "" if chat is None or option != KEY_OPTION else f", or --format {chat}"
        raise UserError(
            f"{option} {quoted(key)}: the first record of {file.path} has no such key; its keys are "
            f"{key_names(record)}; expected the key of the text{other}"
        )


def _from_json(offset: int, line: str, key: str, option: str) -> Document:
    try:
        value = object_of(line)
    except NoObject as error:
        return Document(offset, "", str(error))
    if key not in value:
        return Document(offset, "", f"no key {quoted(key)} (it has {key_names(value)}); {option} names another one")
    if not isinstance(text := value[key], str):
        return Document(offset, "", f"the value of {quoted(key)} is not text")
    return Document(offset, text)


def _lines(file: Input, first: int, last: int | None, unpacked: Unpacked) -> Iterator[tuple[int, bytes]]:
    """The lines that begin from `first` up to, not including, `last`, each with the byte at which it begins."""
    with reading(file), unpacked() as content:
        offset = first
        if first > 0:
            content.seek(first - 1)
            offset = first - 1 + len(_read_line(content, file, first))
        while last is None or offset < last:
            line = _read_line(content, file, offset)
            if not line:
                return
            yield offset, line
            offset += len(line)


def _read_line(content: BinaryIO, file: Input, offset: int) -> bytes:
    line = content.readline(LONGEST_DOCUMENT + 1)
    if len(line) > LONGEST_DOCUMENT:
        raise UserError(
            f"{file.path} has a line of more than {LONGEST_DOCUMENT} bytes (at byte {offset}); expected a document per "
            "line, shorter than that"
        )
    return line
