"""A unit's documents as tokens: encoded, divided into training and held-out, written, and recorded.

The record is written last, so a unit with a record is finished and is never made twice. Units are not flushed to disk,
which would take longer than making them when they are small: damage from a power failure is detected by size or digest,
and the unit is made anew.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.data.prepare.input.documents import Document, documents, place_of
from jaxpar.data.prepare.job import Job
from jaxpar.data.prepare.output.atomic_files import new_file, write_file
from jaxpar.data.prepare.output.pieces import LARGEST_PIECE, Cuts, find_cuts
from jaxpar.data.tokens.digests import DIGEST_BYTES, digest
from jaxpar.data.tokens.token_index import HELDOUT, TRAIN
from jaxpar.data.tokens.tokenizer_file import load_tokenizer

_BATCH_DOCUMENTS, _BATCH_LETTERS = 512, 2**18
_REPORTED = 10
"""Most broken documents of a unit whose places are kept."""


@dataclass(frozen=True)
class UnitSplit:
    """A unit's part of one split."""

    documents: int
    tokens: int
    text_bytes: int
    tokens_digest: str
    lengths_digest: str


@dataclass(frozen=True)
class UnitRecord:
    """The record of a finished unit."""

    splits: dict[str, UnitSplit]
    """A split for which the unit has no document is absent, and has no files."""
    empty: int
    broken: int
    first_broken: dict[str, str]
    """`input:place` of some broken documents to the reason."""
    digest: str = field(default="", compare=False)
    """Digest of the other fields."""

    def encode(self) -> bytes:
        """The text of the record."""
        plain = asdict(self) | {"digest": ""}
        plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
        return json.dumps(plain, sort_keys=True).encode()


def read_record(job: Job, number: int) -> UnitRecord | None:
    """The record of a unit; None where it is not finished, or its record is damaged (then it is made anew, with the
    same result)."""
    path = job.unit_file(number, "json")
    try:
        raw = path.read_bytes()
        record = record_from_plain(UnitRecord, json.loads(raw), str(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return record if record.encode() == raw else None


def is_whole(job: Job, number: int, record: UnitRecord) -> bool:
    """Whether the files of a finished unit have their sizes."""
    for split, part in record.splits.items():
        for kind, size in (("tokens", part.tokens * job.token_bytes), ("lengths", part.documents * 8)):
            path = job.unit_file(number, f"{split}.{kind}")
            if not path.exists() or path.stat().st_size != size:
                return False
    return True


def unit_maker(job: Job) -> Callable[[int], tuple[int, UnitRecord]]:
    """A function that makes the unit of a number."""
    tokenizer = load_tokenizer(job.tokenizer, str(job.tokenizer))
    cuts = find_cuts(tokenizer)

    def make(number: int) -> tuple[int, UnitRecord]:
        record = _make_unit(job, tokenizer, cuts, number)
        write_file(job.unit_file(number, "json"), record.encode(), durable=False)
        return number, record

    return make


def unit_documents(job: Job, number: int) -> Iterator[tuple[int, Document]]:
    """The documents of a unit, each with the number of its input. Raises `UserError` when an input cannot be read."""
    for part in job.units[number]:
        file = job.inputs[part.input]
        bounds = {"scratch": job.work, "max_expansion": job.max_expansion}
        for found in documents(file, part.first, part.last, key=job.text_key, **bounds):
            yield part.input, found


def held_out(raw: bytes, fraction: float) -> bool:
    """Whether a document is held out: a hash of its text decides, so that equal documents are in one split."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big") < fraction * 2**64


def told_places(job: Job, record: UnitRecord) -> list[str]:
    """`file:line: reason` of the broken documents that a record keeps."""
    places = {tuple(map(int, where.split(":"))): reason for where, reason in record.first_broken.items()}
    return [f"{place_of(job.inputs[number], place)}: {reason}" for (number, place), reason in sorted(places.items())]


class Text(NamedTuple):
    """A document to encode."""

    pieces: list[str]
    raw: bytes
    """All of it in UTF-8."""


def _make_unit(job: Job, tokenizer: Any, cuts: Cuts, number: int) -> UnitRecord:
    broken: dict[str, str] = {}
    counts = {"empty": 0, "broken": 0}

    def texts() -> Iterator[Text]:
        for input, found in unit_documents(job, number):
            reason = found.broken
            if not reason:
                try:
                    raw = found.text.encode()
                except UnicodeEncodeError:
                    reason = "half of a surrogate pair, which is no text"
                else:
                    if not raw:
                        counts["empty"] += 1
                        continue
                    if (pieces := cuts.pieces(found.text)) is not None:
                        yield Text(pieces, raw)
                        continue
                    reason = _uncut(len(found.text), cuts)
            counts["broken"] += 1
            if len(broken) < _REPORTED:
                broken[f"{input}:{found.place}"] = reason

    with ExitStack() as stack:
        writers: dict[str, _SplitWriter] = {}
        for batch in _batches(texts()):
            for (_, raw), tokens in zip(batch, _encode(tokenizer, batch, job), strict=True):
                split = HELDOUT if held_out(raw, job.heldout_fraction) else TRAIN
                if split not in writers:
                    writers[split] = _SplitWriter(job, number, split, stack)
                writers[split].add(tokens, len(raw))
        splits = {split: writer.finish() for split, writer in writers.items()}
    return UnitRecord(splits, counts["empty"], counts["broken"], broken)


def _uncut(letters: int, cuts: Cuts) -> str:
    """Why a document of so many characters cannot be encoded."""
    where = "it has no place" if any(cuts) else "its tokenizer has no place"
    return (
        f"{letters:,} characters, and {where} at which cutting it would certainly leave the tokens the same; "
        f"expected at most {LARGEST_PIECE:,}"
    )


class _SplitWriter:
    """The two files of a unit for one split: tokens, and the length of each document."""

    def __init__(self, job: Job, number: int, split: str, stack: ExitStack) -> None:
        self._tokens: BinaryIO = stack.enter_context(new_file(job.unit_file(number, f"{split}.tokens"), durable=False))
        self._lengths: BinaryIO = stack.enter_context(
            new_file(job.unit_file(number, f"{split}.lengths"), durable=False)
        )
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._documents = array("q")
        self._text_bytes = 0

    def add(self, tokens: np.ndarray, text_bytes: int) -> None:
        content = tokens.tobytes()
        self._digest.update(content)
        self._tokens.write(content)
        self._documents.append(len(tokens))
        self._text_bytes += text_bytes

    def finish(self) -> UnitSplit:
        lengths = np.array(self._documents, "<i8")
        content = lengths.tobytes()
        self._lengths.write(content)
        return UnitSplit(
            documents=len(lengths),
            tokens=int(lengths.sum()),
            text_bytes=self._text_bytes,
            tokens_digest=self._digest.hexdigest(),
            lengths_digest=digest(content),
        )


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    batch, letters = [], 0
    for text in texts:
        batch.append(text)
        letters += sum(map(len, text.pieces))
        if letters >= _BATCH_LETTERS or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


def _encode(tokenizer: Any, texts: list[Text], job: Job) -> Iterator[np.ndarray]:
    """The tokens of each text, the end-of-document token last."""
    dtype = np.dtype(job.dtype).newbyteorder("<")
    tokens: list[np.ndarray] = []
    for group in _groups(texts):
        encoded = tokenizer.encode_batch_fast([piece for piece, _ in group], add_special_tokens=False)
        for (_, last), found in zip(group, encoded, strict=True):
            ids = np.array(found.ids, np.uint32)
            if (largest := int(ids.max(initial=0))) >= job.vocab:
                raise UserError(f"{job.tokenizer} made token {largest}, beyond its own vocabulary of {job.vocab}")
            tokens.append(ids.astype(dtype))
            if last:
                yield np.concatenate([*tokens, np.array([job.separator], dtype)])
                tokens = []


def _groups(texts: list[Text]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces that are encoded at once, each with whether it is the last one of its text."""
    group, letters = [], 0
    for text in texts:
        for number, piece in enumerate(text.pieces, 1):
            if group and letters + len(piece) > _BATCH_LETTERS:
                yield group
                group, letters = [], 0
            group.append((piece, number == len(text.pieces)))
            letters += len(piece)
    if group:
        yield group
