"""The documents of a column of a Parquet or an Arrow file, one in each row."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.config.spelling import quoted
from jaxpar.data.prepare.input.compression import reading
from jaxpar.data.prepare.input.files import Input

TABLES = ("parquet", "arrow")
"""The formats of files that are tables."""
KEY_OPTION = "--text-key"
"""Option of `python -m jaxpar.prepare` that names the key, or the column, of the text."""
_ROWS = 512

type Unpacked = Callable[[], AbstractContextManager[BinaryIO]]
"""Opens a file's contents, decompressed."""
type Rows = Callable[[list[int]], range]
"""Function from the number of rows of each row group to a range of rows."""


class Document(NamedTuple):
    """A document, or a broken one with the reason."""

    offset: int
    """Byte offset of the line, index of the row, or 0 if the document is the whole file."""
    text: str
    """The document's text; for a conversation or a pair of them, a line of JSON."""
    broken: str = ""
    """The reason why there is no text; empty when there is."""


def table_documents(
    file: Input,
    key: str,
    scratch: Path,
    unpacked: Unpacked,
    rows: Rows,
    option: str = KEY_OPTION,
) -> Iterator[Document]:
    """The documents of some rows of a table.

    Args:
        file: the file, in a format of `TABLES`.
        key: the column of the text.
        scratch: folder for the file while it is decompressed.
        unpacked: opens it.
        rows: those wanted.
        option: names the column, for messages.
    """
    _need_arrow(file)
    batches = _parquet_batches if file.format == "parquet" else _arrow_batches
    with _unpacked_file(file, scratch, unpacked) as path, _arrow_errors(file):
        for row, column in batches(file, path, key, rows, option):
            for index, value in enumerate(_values(column), row):
                if isinstance(value, str):
                    yield Document(index, value)
                else:
                    yield Document(index, "", "null" if value is None else "not UTF-8")


def open_parquet(file: Input, path: str | Path, key: str, option: str = KEY_OPTION) -> Any:
    """A Parquet file that has the column `key`, with text in it.

    Args:
        file: the input, for messages.
        path: its location, decompressed.
        key: the column.
        option: names the column, for messages.

    Raises:
        UserError: `pyarrow` is not installed, the file is not Parquet, or has no such column.
    """
    _need_arrow(file)
    from pyarrow.parquet import ParquetFile

    with _arrow_errors(file):
        parquet = ParquetFile(path, page_checksum_verification=True)
    _check_column(file, parquet.schema_arrow, key, option)
    return parquet


def _need_arrow(file: Input) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UserError(
            f"{file.path} needs the package pyarrow, which is not installed: {install_command('data')}"
        ) from None


def _check_column(file: Input, schema: Any, key: str, option: str) -> None:
    import pyarrow as arrow

    if key not in schema.names:
        columns = ", ".join(repr(name) for name in schema.names[:20])
        raise UserError(f"{option} {quoted(key)}: {file.path} has no such column; its columns are {columns}")
    if (count := schema.names.count(key)) > 1:
        raise UserError(f"{option} {quoted(key)}: {file.path} has {count} columns of that name; expected one")
    kind = schema.field(key).type
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    text = (arrow.types.is_string, arrow.types.is_large_string)
    if not any(is_text(kind) for is_text in (*text, arrow.types.is_binary, arrow.types.is_large_binary)):
        raise UserError(f"{option} {quoted(key)}: that column of {file.path} holds {kind}; expected text")


def _parquet_batches(file: Input, path: str | Path, key: str, rows: Rows, option: str) -> Iterator[tuple[int, Any]]:
    """Columns of consecutive rows, each with the number of its first row. Other row groups are not read."""
    with open_parquet(file, path, key, option) as parquet:
        sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        wanted, starts = rows(sizes), [0, *accumulate(sizes)]
        inside = [starts[group] < wanted.stop and starts[group + 1] > wanted.start for group in range(len(sizes))]
        groups = [group for group, read in enumerate(inside) if read]
        if not groups:
            return
        row = starts[groups[0]]
        for batch in parquet.iter_batches(_ROWS, row_groups=groups, columns=[key], use_threads=False):
            low, high = max(wanted.start - row, 0), min(wanted.stop - row, len(batch))
            if high > low:
                yield row + low, batch.column(0).slice(low, high - low)
            row += len(batch)
            if row >= wanted.stop:
                return


def _arrow_batches(file: Input, path: str | Path, key: str, rows: Rows, option: str) -> Iterator[tuple[int, Any]]:
    """`_parquet_batches` for Arrow's format for streams, which `datasets` writes, or of that for files."""
    import pyarrow as arrow

    with arrow.memory_map(str(path)) as content:
        is_file = content.read(6) == b"ARROW1"
        content.seek(0)
        with (arrow.ipc.open_file if is_file else arrow.ipc.open_stream)(content) as reader:
            _check_column(file, reader.schema, key, option)
            column = reader.read_all().column(key)  # in the mapped file: nothing is copied
        wanted = rows([len(column)])
        row = wanted.start
        for chunk in column.slice(wanted.start, len(wanted)).chunks:
            for first in range(0, len(chunk), _ROWS):
                yield row + first, chunk.slice(first, _ROWS)
            row += len(chunk)


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
    return [_decoded_text(value) if isinstance(value, bytes) else value for value in values]


def _decoded_text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


@contextmanager
def _unpacked_file(file: Input, scratch: Path, unpacked: Unpacked) -> Iterator[str | Path]:
    """Path of the decompressed file: a table is not read from its beginning to its end."""
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
        kind = file.format.capitalize()
        raise UserError(f"{file.path} cannot be read as {kind} ({str(error).splitlines()[0][:160]})") from error
