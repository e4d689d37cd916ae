"""`--clusters K --out FOLDER`: the documents of a token folder of text in K token folders within it.

`clusters.json` is written last and says what they were made of. The same command finds them finished, or makes them
again where it was killed; they depend on the documents, K, the seed and the model of the vectors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import batched
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from rich.console import Console

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named, quoted
from jaxpar.data.clusters.kmeans import balanced, centers_of
from jaxpar.data.clusters.vectors import Documents, Embed, NGrams
from jaxpar.data.clusters.writing import write_split
from jaxpar.data.prepare.output.atomic_files import write_file
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.data.tokens.token_index import INDEX, TRAIN, VALIDATION, Index, encode
from jaxpar.data.tokens.tokenizer_file import TOKENIZER
from jaxpar.pages.units import percent, plural

RECORD = "clusters.json"
SAMPLE = 16_384
"""Most documents from which centers are made."""
_BATCH = 1024


@dataclass(frozen=True)
class Clustering:
    """Settings of clustering."""

    k: int
    seed: int = 0
    embed: Embed | None = None
    """Vectors of documents; None for those of their n-grams."""
    model: str | None = None
    """The digest of the model of `embed`."""


def cluster_folder(folder: Path, clustering: Clustering, console: Console, key: str = "--out") -> list[Path]:
    """Make the token folder of each cluster; returns their paths.

    Raises `UserError` for fewer than two clusters or more than documents, for conversations, and where the folder has
    other clusters.
    """
    opened = open_token_folder(folder, key=key)
    _check(opened, clustering.k, folder, key)
    facts = {"clusters": clustering.k, "seed": clustering.seed, "model": clustering.model, "folder": opened.identity}
    paths = [folder / f"cluster-{one}" for one in range(clustering.k)]
    if (folder / RECORD).exists():
        _check_same(folder, facts)
        console.print(f"{named(folder)} has its {clustering.k} clusters", markup=False, soft_wrap=True)
        return paths
    train, validation = _clusters(opened, clustering)
    indexes = [_write(opened, path, train == one, validation == one) for one, path in enumerate(paths)]
    total = sum(index.tokens_in(TRAIN) for index in indexes)
    for path, index in zip(paths, indexes, strict=True):
        tokens = index.tokens_in(TRAIN)
        words = (
            f"{plural(tokens, 'token')} ({percent(tokens, total)}) in {plural(index.documents_in(TRAIN), 'document')}"
        )
        more = f"{plural(index.tokens_in(VALIDATION), 'token')} for validation"
        console.print(f"{named(path)}: {words}, {more}", markup=False, highlight=False, soft_wrap=True)
    write_file(folder / RECORD, _encode(facts))
    return paths


def _check(opened: TokenFolder, k: int, folder: Path, key: str) -> None:
    if k < 2:
        raise UserError(f"--clusters {k}: expected 2 or more; one cluster is {key}={quoted(str(folder))} itself")
    if opened.index.chat is not None:
        raise UserError(f"--clusters are of text, and {key}={quoted(str(folder))} has conversations; expected text")
    if k > len(opened.train.starts):
        raise UserError(
            f"--clusters {k}: {key}={quoted(str(folder))} has {plural(len(opened.train.starts), 'document')} to train "
            "on; expected at most one cluster for each"
        )


def _encode(facts: dict[str, object]) -> bytes:
    sealed = facts | {"digest": digest(json.dumps(facts, sort_keys=True).encode())}
    return (json.dumps(sealed, indent=1, sort_keys=True) + "\n").encode()


def _check_same(folder: Path, facts: dict[str, object]) -> None:
    """Refuse clusters that were made with other facts."""
    path = folder / RECORD
    raw = read_file(path)
    if raw == _encode(facts):
        return
    try:
        before = json.loads(raw)
        named_facts = {name: before[name] for name in facts}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{named(path)} is damaged; remove it, and the same command makes the clusters again") from None
    other = next((name for name in facts if facts[name] != named_facts[name]), "digest")
    raise UserError(
        f"{named(path)}: these clusters were made with {other} {before.get(other)}, and now it is {facts.get(other)}; "
        "expected the same, or that the file is removed"
    )


def _clusters(opened: TokenFolder, clustering: Clustering) -> tuple[np.ndarray, np.ndarray]:
    """The cluster of each document to train on, and of each validation document: for that the most similar one."""
    stream, k = opened.train, clustering.k
    sizes = stream.lengths
    draw = np.random.default_rng(clustering.seed)
    sample = np.sort(draw.permutation(len(sizes))[: max(SAMPLE, k)])
    documents = list(_documents(stream, sample))
    embed = clustering.embed or NGrams.from_documents(documents)
    vectors = np.concatenate([embed(batch) for batch in batched(documents, _BATCH)])
    centers = centers_of(vectors, sizes[sample], k, clustering.seed)
    similarity = lambda stream: np.concatenate([embed(batch) @ centers.T for batch in batched(_all(stream), _BATCH)])
    train = balanced(similarity(stream), sizes)
    validation = np.zeros(0, np.int64) if opened.validation is None else similarity(opened.validation).argmax(1)
    return train, validation


def _all(stream: TokenStream) -> Iterator[np.ndarray]:
    return _documents(stream, np.arange(len(stream.starts)))


def _documents(stream: TokenStream, chosen: Int64[np.ndarray, " n"]) -> Iterator[np.ndarray]:
    """The tokens of documents."""
    starts, lengths = stream.starts[:], stream.lengths
    for document in chosen.tolist():
        yield stream.tokens[int(starts[document]) : int(starts[document] + lengths[document])]


def _write(opened: TokenFolder, path: Path, train: np.ndarray, validation: np.ndarray) -> Index:
    """The token folder of a cluster, whose documents are marked; its index is written last."""
    path.mkdir(exist_ok=True)
    write_file(path / TOKENIZER, read_file(opened.path / opened.index.tokenizer.name))
    index, splits = opened.index, {}
    for split, stream, chosen in ((TRAIN, opened.train, train), (VALIDATION, opened.validation, validation)):
        documents: Documents = [] if stream is None else list(_documents(stream, np.flatnonzero(chosen)))
        splits[split] = write_split(path, split, documents, opened)
    tokenizer = replace(index.tokenizer, name=TOKENIZER)
    index = replace(index, splits=splits, tokenizer=tokenizer, skipped=dict.fromkeys(index.skipped, 0))
    write_file(path / INDEX, encode(index))
    return index
