"""Documents, already tokens, as the shards of a token folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpar.data.clusters.vectors import Documents
from jaxpar.data.prepare.options import DEFAULT_SHARD_TOKENS
from jaxpar.data.prepare.output.atomic_files import new_file, write_file
from jaxpar.data.tokens.digests import SummingFile, digest
from jaxpar.data.tokens.token_folder import TokenFolder, npy_header
from jaxpar.data.tokens.token_index import SUMS, File, Shard


def write_split(path: Path, split: str, documents: Documents, like: TokenFolder) -> dict[str, Shard]:
    """The shards of a split of a folder whose tokens are those of `like`, by name. Raises `OSError`."""
    return {
        name: _shard(path, name, shard, like)
        for index, shard in enumerate(_shards(documents))
        for name in [f"{split}-{index:05d}"]
    }


def _shards(documents: Documents) -> Iterator[Documents]:
    """Documents in groups, each of which ends with the document with which it has the tokens of a shard."""
    shard, tokens = [], 0
    for document in documents:
        shard.append(document)
        tokens += len(document)
        if tokens >= DEFAULT_SHARD_TOKENS:
            yield shard
            shard, tokens = [], 0
    if shard:
        yield shard


def _shard(path: Path, name: str, documents: Documents, like: TokenFolder) -> Shard:
    lengths = np.array([len(document) for document in documents], "<i8")
    dtype = np.dtype(like.index.dtype).newbyteorder("<")
    text = sum(len(like.codec.decode(document[:-1]).encode()) for document in documents)
    with new_file(path / f"{name}.npy") as raw:
        file, header = SummingFile(raw), npy_header(dtype, int(lengths.sum()))
        file.write(header)
        for document in documents:
            file.write(document.astype(dtype).tobytes())
        sums = file.sums()
    write_file(path / f"{name}.npy{SUMS}", sums)
    tokens = File(f"{name}.npy", len(header) + int(lengths.sum()) * dtype.itemsize, digest(sums))
    starts = np.append(np.zeros(1, "<i8"), np.cumsum(lengths, dtype="<i8")[:-1])
    content = npy_header(starts.dtype, len(starts)) + starts.tobytes()
    write_file(path / f"{name}.starts.npy", content)
    starts_file = File(f"{name}.starts.npy", len(content), digest(content))
    return Shard(tokens, starts_file, int(lengths.sum()), len(documents), text)
