"""The documents of a part of an input, one after the other; broken ones have their place and a reason."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.config.parts import ANSWERS_FORMATS, CHAT_FORMAT, LABELS_FORMAT, PAIRS_FORMAT
from jaxpar.config.spelling import quoted
from jaxpar.data.chat.messages import key_names
from jaxpar.data.chat.record_forms import form_of
from jaxpar.data.prepare.input.compression import Progress, open_bytes, reading
from jaxpar.data.prepare.input.files import Input

LONGEST_DOCUMENT = 2**28
"""Most bytes of a line or of a file that is a document. A process needs about seven times as much memory."""
_ROWS = 512

type Unpacked = Callable[[], AbstractContextManager[BinaryIO]]
"""Opens a file's contents, decompressed."""


class Document(NamedTuple):
    """A document, or a broken one with the reason."""

    offset: int
    """Byte offset of the line, index of the row, or 0 if the document is the whole file."""
    text: str
    """The document's text; for a conversation or a pair of them, a line of JSON."""
    broken: str = ""
    """Why there is no text; empty when there is."""


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
        scratch: folder for a Parquet file while it is decompressed.
        max_expansion: as in `open_bytes`.
        progress: as in `open_bytes`; not for a Parquet file, which is decompressed before its first document.

    Raises:
        UserError: the file cannot be read, is cut off, has no such column or a document that is too long, or unpacks to
            too much.
    """
    unpacked = partial(open_bytes, file, max_expansion, None if file.format == "parquet" else progress)
    if file.format == "parquet":
        return _parquet_documents(file, first, last, key, scratch, unpacked)
    if file.format == "text":
        return _file_document(file, unpacked)
    return _line_documents(file, first, last, key, unpacked)


def location(file: Input, offset: int) -> str:
    """`file:line` or similar, for messages; reads the file up to the offset."""
    if file.format == "parquet":
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


def _line_documents(file: Input, first: int, last: int, key: str, unpacked: Unpacked) -> Iterator[Document]:
    for offset, line in _lines(file, first, last if file.divisible else None, unpacked):
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
                else _from_json(offset, text, key)
            )


class NoObject(ValueError):
    """Why a line is not a JSON object."""


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


def check_text_key(inputs: Sequence[Input], key: str) -> None:
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
        other = "" if chat is None else f", or --format {chat}"
        raise UserError(
            f"--text-key {quoted(key)}: the first record of {file.path} has no such key; its keys are "
            f"{key_names(record)}; expected the key of the text{other}"
        )


def _from_json(offset: int, line: str, key: str) -> Document:
    try:
        value = object_of(line)
    except NoObject as error:
        return Document(offset, "", str(error))
    if key not in value:
        return Document(offset, "", f"no key {quoted(key)} (it has {key_names(value)}); --text-key names another one")
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


def _parquet_documents(
    file: Input, first: int, last: int, key: str, scratch: Path, unpacked: Unpacked
) -> Iterator[Document]:
    with _unpacked_file(file, scratch, unpacked) as path:
        parquet = open_parquet(file, path, key)
        groups = range(first, last) if file.compression is None else range(parquet.num_row_groups)
        with parquet, _arrow_errors(file):
            row = sum(parquet.metadata.row_group(group).num_rows for group in range(groups.start))
            for batch in parquet.iter_batches(_ROWS, row_groups=list(groups), columns=[key], use_threads=False):
                for value in _values(batch.column(0)):
                    if isinstance(value, str):
                        yield Document(row, value)
                    else:
                        yield Document(row, "", "null" if value is None else "not UTF-8")
                    row += 1


def open_parquet(file: Input, path: str | Path, key: str) -> Any:
    """A Parquet file that has the column `key`, with text in it.

    Args:
        file: the input, for messages.
        path: where it lies, decompressed.
        key: the column.

    Raises:
        UserError: `pyarrow` is not installed, the file is not Parquet, or has no such column.
    """
    try:
        import pyarrow as arrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(
            f"{file.path} needs the package pyarrow, which is not installed: {install_command('data')}"
        ) from None
    with _arrow_errors(file):
        parquet = ParquetFile(path, page_checksum_verification=True)
    schema = parquet.schema_arrow
    if key not in schema.names:
        columns = ", ".join(repr(name) for name in schema.names[:20])
        raise UserError(f"--text-key {quoted(key)}: {file.path} has no such column; its columns are {columns}")
    if (count := schema.names.count(key)) > 1:
        raise UserError(f"--text-key {quoted(key)}: {file.path} has {count} columns of that name; expected one")
    kind = schema.field(key).type
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    text = (arrow.types.is_string, arrow.types.is_large_string)
    if not any(is_text(kind) for is_text in (*text, arrow.types.is_binary, arrow.types.is_large_binary)):
        raise UserError(f"--text-key {quoted(key)}: that column of {file.path} holds {kind}; expected text")
    return parquet


def _values(column: Any) -> list[str | bytes | None]:
    """The values of a column as text; bytes where they are not UTF-8."""
    import pyarrow as arrow

    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        large = arrow.types.is_large_string(column.type)
        values = column.view(arrow.large_binary() if large else arrow.binary()).to_pylist()
    return [_as_text(value) if isinstance(value, bytes) else value for value in values]


def _as_text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


@contextmanager
def _unpacked_file(file: Input, scratch: Path, unpacked: Unpacked) -> Iterator[str | Path]:
    """Path of the decompressed file: Parquet is read from its end."""
    if file.compression is None:
        yield file.path
        return
    with tempfile.NamedTemporaryFile(dir=scratch, prefix="unpacked-", suffix=".tmp") as copy:
        with reading(file), unpacked() as content:
            shutil.copyfileobj(content, copy, 2**20)
        copy.flush()
        yield copy.name


@contextmanager
def _arrow_errors(file: Input) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        with reading(file):
            yield
    except ArrowException as error:
        raise UserError(f"{file.path} cannot be read as Parquet ({str(error).splitlines()[0][:160]})") from error
