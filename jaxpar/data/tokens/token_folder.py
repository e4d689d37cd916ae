"""Token folders: an index, a tokenizer, and documents as tokens in shards (`docs/data.md`).

Sizes, names and everything small are checked when a folder is opened. Tokens are checked block by block, and starts of
documents shard by shard: all of them at once in a folder of up to `CHECKED_AT_OPEN` bytes, otherwise each when it is
first used, so that damage is never trained on, however large the folder, and opening takes no time. `python -m
jaxpar.prepare --verify` checks everything.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import quoted
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.digests import digest, parse_sums
from jaxpar.data.tokens.document_starts import DocumentStarts, ShardStarts
from jaxpar.data.tokens.file_array import FileArray
from jaxpar.data.tokens.sharded_tokens import CheckedTokens, ShardedTokens
from jaxpar.data.tokens.text_codec import TextCodec
from jaxpar.data.tokens.token_index import INDEX, SPLITS, SUMS, TRAIN, VALIDATION, File, Index, Shard, read_index
from jaxpar.hardware.open_files import allow_more_files
from jaxpar.remote.cache import local_path

CHECKED_AT_OPEN = 2**30
"""Bytes up to which opening a folder checks all of it, at about 1 GB/s."""


@dataclass(frozen=True)
class TokenFolder:
    """An open token folder."""

    path: Path
    index: Index
    train: TokenStream
    validation: TokenStream | None
    """Validation documents, if there are any."""

    @property
    def identity(self) -> str:
        """The folder's identity, independent of its path: the digest of its index."""
        return self.index.digest

    @property
    def codec(self) -> TextCodec:
        """Text to tokens and back."""
        return TextCodec(self.path / self.index.tokenizer.name)

    def check(self) -> None:
        """Compare every byte with the index. Raises `UserError`."""
        for stream in (self.train, self.validation):
            if stream is not None:
                assert isinstance(stream.tokens, ShardedTokens) and isinstance(stream.starts, DocumentStarts)
                stream.tokens.check()
                stream.starts.check()
                if stream.loss_mask is not None:
                    assert isinstance(stream.loss_mask, ShardedTokens)
                    stream.loss_mask.check()


def open_token_folder(path: str | Path, *, key: str) -> TokenFolder:
    """Open the token folder at `path`.

    Args:
        path: the folder.
        key: its configuration key or command-line flag, for messages.

    Raises:
        UserError: a file of the folder is missing, damaged, of another size, or outside it; the sentence names it.
    """
    folder = local_path(path, key)
    try:
        return _open(folder)
    except UserError as error:
        raise UserError(f"{key}={quoted(str(path))}: {error}") from None
    except OSError as error:
        raise UserError(
            f"{key}={quoted(str(path))}: {error.filename or folder} cannot be read ({error.strerror})"
        ) from error


def _open(folder: Path) -> TokenFolder:
    index = read_index(folder)
    for name, size in index.files():
        _check_file(folder, name, size)
    for file in (index.tokenizer, index.chat):
        if file is not None:
            _read_checked(folder, file)
    open_of_each = 2 if index.chat is None else 3
    allow_more_files(open_of_each * sum(len(index.shards(split)) for split in SPLITS))
    validation = _stream(folder, index, VALIDATION) if index.splits[VALIDATION] else None
    opened = TokenFolder(folder, index, _stream(folder, index, TRAIN), validation)
    if sum(size for _, size in index.files()) <= CHECKED_AT_OPEN:
        opened.check()
    return opened


def _check_file(folder: Path, name: str, size: int) -> None:
    """Check that a path is a regular file in the folder itself, of the right size."""
    path = folder / name
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy or make the folder again") from None
    if not stat.S_ISREG(status.st_mode) or path.resolve().parent != folder.resolve():
        raise UserError(f"{path} is not a file of the folder itself; links that leave the folder are not followed")
    if status.st_size != size:
        raise UserError(f"{path} has {status.st_size} bytes, and {INDEX} says {size}; copy or make the folder again")


def _read_checked(folder: Path, file: File) -> bytes:
    content = read_file(folder / file.name)
    if digest(content) != file.digest:
        raise UserError(f"{folder / file.name} is damaged (its digest is not that of {INDEX}); make the folder again")
    return content


def _stream(folder: Path, index: Index, split: str) -> TokenStream:
    shards = index.shards(split)
    tokens = [_values(folder, shard.tokens, shard.token_count, index.dtype, index.vocab) for shard in shards]
    loss_mask = [
        _values(folder, shard.counted, shard.token_count, "uint8", 3 if index.labelled else 2)
        for shard in shards
        if shard.counted is not None
    ]
    return TokenStream(
        ShardedTokens(tokens, np.dtype(index.dtype)),
        DocumentStarts([_starts(folder, shard) for shard in shards]),
        ShardedTokens(loss_mask, np.dtype("uint8")) if loss_mask else None,
    )


def _values(folder: Path, file: File, count: int, kind: str, limit: int) -> CheckedTokens:
    """The `count` values of a shard's file, which are of type `kind` and below `limit`."""
    path, dtype = folder / file.name, np.dtype(kind).newbyteorder("<")
    sums = (folder / (file.name + SUMS)).read_bytes()
    if digest(sums) != file.digest:
        raise UserError(
            f"{folder / (file.name + SUMS)} is damaged (its digest is not that of {INDEX}); make the folder again"
        )
    offset = file.bytes - count * dtype.itemsize
    in_file = FileArray(path, offset=offset, count=count, dtype=dtype)
    values = CheckedTokens(in_file, sums=parse_sums(sums), limit=limit)
    values.between(0, 1)  # Checks the block that holds the header.
    if in_file.raw(0, offset) != npy_header(dtype, count):
        raise UserError(f"{path} is not a .npy file of {count} values of {kind}")
    return values


def _starts(folder: Path, shard: Shard) -> ShardStarts:
    dtype = np.dtype("<i8")
    header = npy_header(dtype, shard.document_count)
    path, wanted = folder / shard.starts.name, len(header) + dtype.itemsize * shard.document_count
    if shard.starts.bytes != wanted:
        raise UserError(f"{path} has {shard.starts.bytes} bytes, and {shard.document_count} numbers need {wanted}")
    in_file = FileArray(path, offset=len(header), count=shard.document_count, dtype=dtype)
    return ShardStarts(in_file, header=header, digest=shard.starts.digest, tokens=shard.token_count)


def npy_header(dtype: np.dtype, count: int) -> bytes:
    """The header of a `.npy` file of `count` values."""
    header = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": (count,)})
    return header.getvalue()
