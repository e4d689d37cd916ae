"""Token files: `.npy`, one dimension, unsigned integers: checked by one scan, then read from disk on access."""

from __future__ import annotations

import difflib
import tokenize
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import LONGEST_POINTER, check_pointer
from jaxpar.config.spelling import quoted
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.file_array import FileArray
from jaxpar.remote.cache import local_path

HEADER_ERRORS = (
    ValueError, TypeError, OverflowError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError, EOFError,
)  # fmt: skip
"""The errors that NumPy raises for damaged headers of `.npy` files, which it reads as Python."""
CHUNK_TOKENS = 1 << 24
_EXPECTED = "expected a .npy file with one dimension of unsigned integers"


def read_token_file(
    path: str, *, key: str, separator: int | None, vocab: int | None, chunk_tokens: int = CHUNK_TOKENS
) -> tuple[TokenStream, int]:
    """A token file as a stream, and its largest token id; reads the file once, in chunks.

    Args:
        path: the `.npy` file.
        key: configuration key that names the file, for error messages.
        separator: end-of-document token id; None makes the file one document.
        vocab: vocabulary size, which token ids must be below; None to allow any 31-bit id.
        chunk_tokens: tokens that are read at once.

    Raises:
        UserError: missing, unreadable, empty, truncated, of another shape or type, or with too large a token id.
    """
    try:
        tokens = _open(local_path(path, key), f"{key}={quoted(path)}")
    except OSError as error:
        raise UserError(f"{key}={quoted(path)} cannot be read ({error.strerror}); {_EXPECTED}") from error
    next_starts, largest = [], 0
    for offset in range(0, len(tokens), chunk_tokens):
        chunk = tokens[offset : offset + chunk_tokens]
        largest = max(largest, int(chunk.max()))
        if separator is not None:
            next_starts.append(np.flatnonzero(chunk == separator) + offset + 1)
    limit, reason = (vocab, f"model.vocab={vocab}") if vocab is not None else (1 << 31, "2**31")
    if largest >= limit:
        raise UserError(f"{key}={quoted(path)} has token id {largest}; expected ids below {reason}")
    starts = np.concatenate([np.zeros(1, np.int64), *next_starts])
    return TokenStream(tokens, starts[starts < len(tokens)]), largest


def _open(path: Path, label: str) -> FileArray:
    """The tokens of the file. Raises `UserError`, whose message begins with `label`."""
    if not path.exists():
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f" (did you mean {quoted(str(path.with_name(near[0])))}?)" if near else ""
        raise UserError(f"{label} does not exist{hint}; {_EXPECTED}, or a folder made by python -m jaxpar.prepare")
    if not path.is_file():
        raise UserError(f"{label} is not a file; {_EXPECTED}")
    size = path.stat().st_size
    if size == 0:
        raise UserError(f"{label} is empty (0 bytes); {_EXPECTED}")
    with path.open("rb") as file:
        check_pointer(file.read(LONGEST_POINTER), path, label)
    try:
        shape, dtype, offset = _header(path)
    except HEADER_ERRORS as error:
        raise UserError(f"{label} has no readable .npy header ({error}); {_EXPECTED}") from error
    if dtype.kind != "u":
        raise UserError(f"{label} holds {dtype}; {_EXPECTED} (save it with tokens.astype(numpy.uint32))")
    if len(shape) != 1:
        raise UserError(f"{label} has shape {shape}; {_EXPECTED} (save it with tokens.reshape(-1))")
    if shape[0] == 0:
        raise UserError(f"{label} holds no tokens; expected at least one")
    needed = offset + shape[0] * dtype.itemsize
    if size < needed:
        raise UserError(
            f"{label} is truncated: its header says {shape[0]} tokens of {dtype}, which need {needed} bytes, "
            f"and the file has {size}; expected the whole file (copy it again)"
        )
    return FileArray(path, offset=offset, count=shape[0], dtype=dtype)


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, dtype and offset of the data of a `.npy` file."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"unsupported .npy format version {version[0]}.{version[1]}")
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
        return shape, dtype, file.tell()
