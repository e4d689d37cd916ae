"""The files of `data.path`, cut into blocks that are a function of the files and of the number of lanes."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.data.prepare.input.compression import reading
from jaxpar.data.prepare.input.documents import check_text_key
from jaxpar.data.prepare.input.files import Input, find_inputs, form_of
from jaxpar.data.prepare.input.tables import TABLES
from jaxpar.data.streaming.block import KEY_OPTION, Block
from jaxpar.data.tokens.digests import digest
from jaxpar.remote.cache import local_path

FORMATS = ("jsonl", *TABLES)
BLOCK_BYTES, PACKED_BLOCK_BYTES = 2**18, 2**21
"""Most bytes of a file in a block, and of a compressed one, which is read from its beginning, or of Parquet, of which
row groups are."""
PACKED_READ_BYTES = 2**34
"""Bytes of a compressed file that the blocks of an epoch may read together where smaller blocks are needed."""
BLOCKS_PER_LANE, LARGE_BLOCKS_PER_LANE = 16, 4
"""Least number of blocks of a lane in an epoch, of small files; of those that several blocks read, fewer."""
_READERS, _END_BYTES = 16, 2**16
_NO_DATA = re.compile(
    r"(dataset_infos?|dataset_dict|state|config|tokenizer(_config)?|special_tokens_map)\.json|cache-.*\.arrow"
)
"""Files beside those of the data: descriptions and results of the library `datasets`, and a tokenizer."""
_TRAIN = re.compile(r"train(?![a-z])", re.IGNORECASE)


def find_files(path: str, key: str, text_key: str) -> list[Input]:
    """The files of a path, which is a file, a pattern or a folder, sorted.

    A folder has all files below it of known formats, or those alone that are named `train...` or are in a folder of
    that name, if any are.

    Args:
        path: the value of `key`.
        key: `data.path` or `data.validation_path`.
        text_key: key, or column, of the text.

    Raises:
        UserError: there are none, one has another format, or the first of lines lacks the key.
    """
    folder = None if glob.has_magic(path) else local_path(path, key)
    names = _list_folder(folder, key) if folder is not None and folder.is_dir() else [path]
    files = find_inputs(names, None, None, key)
    for file in files:
        if file.format not in FORMATS:
            raise UserError(
                f"{key} {quoted(path)}: {file.path} is read as {file.format}, and data.source: stream reads "
                "JSON lines, Parquet and Arrow; python -m jaxpar.prepare reads it"
            )
    check_text_key(files, text_key, KEY_OPTION)
    return files


def _list_folder(folder: Path, key: str) -> list[str]:
    names = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names += [
            Path(parent, name)
            for name in files
            if form_of(Path(name))[0] in FORMATS and not _NO_DATA.fullmatch(name) and not name.startswith(".")
        ]
    train = [name for name in names if any(map(_TRAIN.match, name.relative_to(folder).parts))]
    if not names:
        raise UserError(
            f"{key} {quoted(str(folder))} is a folder without files of JSON lines (.jsonl, .json), Parquet or Arrow"
        )
    return [str(name) for name in train or names]


class Blocks:
    """The blocks of files, in order; at least two for each lane.

    Args:
        files: at least one.
        lanes: how many read them.

    Raises:
        UserError: compressed files would be read too often for this number of lanes.
    """

    def __init__(self, files: Sequence[Input], lanes: int) -> None:
        self._files = files
        of_lane = sum(file.bytes for file in files) // lanes
        least = -(-2 * lanes // len(files))
        shares = [max(least, -(-file.bytes // _block_bytes(file, of_lane))) for file in files]
        self._shares = [min(share, _max_shares(file)) for share, file in zip(shares, files, strict=True)]
        self._stops = np.cumsum(self._shares)
        if len(self) < 2 * lanes:
            raise UserError(
                f"data.path: the files make {len(self)} blocks, and data.batch_size: {lanes} needs {2 * lanes}; a "
                "compressed file is read from its beginning for each block, so it is not cut further; expected "
                "smaller batches, decompressed files, or data.source: tokens with a folder of python -m jaxpar.prepare"
            )

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> Block:
        if not 0 <= index < len(self):
            raise IndexError(index)
        file = int(np.searchsorted(self._stops, index, side="right"))
        shares = self._shares[file]
        return Block(self._files[file], index - (int(self._stops[file]) - shares), shares)


def _block_bytes(file: Input, of_lane: int) -> int:
    large = file.compression or file.format == "parquet"
    most, blocks = (PACKED_BLOCK_BYTES, LARGE_BLOCKS_PER_LANE) if large else (BLOCK_BYTES, BLOCKS_PER_LANE)
    return max(1, min(most, of_lane // blocks))


def _max_shares(file: Input) -> int:
    if file.compression is None:
        return sys.maxsize
    return max(-(-file.bytes // PACKED_BLOCK_BYTES), PACKED_READ_BYTES // max(file.bytes, 1))


def identity(files: Sequence[Input]) -> str:
    """A digest of the names, the sizes and both ends of the files, which a moved folder has too."""
    with ThreadPoolExecutor(_READERS) as threads:
        return digest(repr(list(threads.map(_facts, files))).encode())


def _facts(file: Input) -> tuple[object, ...]:
    with reading(file), open(file.path, "rb") as content:
        first = content.read(_END_BYTES)
        content.seek(max(file.bytes - _END_BYTES, 0))
        return Path(file.path).name, file.bytes, digest(first), digest(content.read(_END_BYTES))
