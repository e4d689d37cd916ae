"""Tokens of a work unit, a fixed slice of the input: encoded, split into training and validation, written, recorded.

The record is written last: a unit with a record is finished, and skipped when the command continues. Files are not
fsynced, which would take longer than to make a small unit: damage from a power failure is detected by size or digest,
and the unit is made again.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import numpy as np

from jaxpar.config.parts import LABELS_FORMAT, PAIRS_FORMAT
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.data.prepare.input.compression import Progress
from jaxpar.data.prepare.input.documents import location
from jaxpar.data.prepare.job import Job
from jaxpar.data.prepare.output.atomic_files import new_file, write_file
from jaxpar.data.prepare.output.chosen import chosen_documents
from jaxpar.data.prepare.output.encoders import (
    BATCH_LETTERS,
    Chat,
    Encoded,
    Labelled,
    NotEncodable,
    Pairs,
    PlainText,
    Text,
)
from jaxpar.data.prepare.workers import Report
from jaxpar.data.tokens.digests import DIGEST_BYTES, digest
from jaxpar.data.tokens.ngrams import NGrams
from jaxpar.data.tokens.text_codec import TextCodec
from jaxpar.data.tokens.token_index import TRAIN, VALIDATION
from jaxpar.data.tokens.tokenizer_file import Tokenizer, load_tokenizer

_BATCH_DOCUMENTS = 512
TOKENS, LENGTHS, LOSS_MASK = "tokens", "lengths", "counted"
"""The files of a unit's split: tokens, the length of each document, and the loss mask (uint8)."""
_REPORTED = 10
"""Maximum number of invalid documents of a unit that its record lists."""


@dataclass(frozen=True)
class UnitSplit:
    """A unit's part of one split."""

    documents: int
    """Documents; two for a pair of answers."""
    tokens: int
    counted: int
    """Tokens in the loss mask."""
    text_bytes: int
    digests: dict[str, str]
    """Digest of each file: `TOKENS`, `LENGTHS`, and for conversations and pairs of answers `LOSS_MASK`."""


@dataclass(frozen=True)
class UnitRecord:
    """The record of a finished unit."""

    splits: dict[str, UnitSplit]
    """A split for which the unit has no document is absent, and has no files."""
    empty: int
    broken: int
    contaminated: int
    """Documents left out because they have an n-gram of an evaluation."""
    first_broken: dict[str, str]
    """`input index:byte offset` of the first invalid documents to the reason."""
    digest: str = field(default="", compare=False)
    """Digest of the other fields."""

    def to_json(self) -> bytes:
        """The record as JSON."""
        plain = asdict(self) | {"digest": ""}
        plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
        return json.dumps(plain, sort_keys=True).encode()


def read_record(job: Job, unit: int) -> UnitRecord | None:
    """The record of a unit; None where it is not finished, or its record is damaged (then the unit is redone, with the
    same result)."""
    path = job.unit_file(unit, "json")
    try:
        raw = read_file(path)
        record = record_from_plain(UnitRecord, json.loads(raw), str(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return record if record.to_json() == raw else None


def has_expected_sizes(job: Job, unit: int, record: UnitRecord) -> bool:
    """Whether the files of a finished unit exist with the sizes that its record states."""
    for split, part in record.splits.items():
        sizes = {TOKENS: part.tokens * job.token_bytes, LENGTHS: part.documents * 8, LOSS_MASK: part.tokens}
        for kind in part.digests:
            path = job.unit_file(unit, f"{split}.{kind}")
            if not path.exists() or path.stat().st_size != sizes[kind]:
                return False
    return True


def unit_maker(job: Job, report: Report) -> Callable[[int], tuple[int, UnitRecord]]:
    """A function that processes work unit `i`; it calls `report((i, bytes))`, compressed bytes since the last call."""
    tokenizer = load_tokenizer(job.tokenizer, str(job.tokenizer))
    encoder = _encoder(job, tokenizer)
    evaluations = NGrams(evaluation_tokens(job), job.choice.ngram)

    def make(unit: int) -> tuple[int, UnitRecord]:
        record = _make_unit(job, encoder, unit, evaluations, lambda size: report((unit, size)))
        write_file(job.unit_file(unit, "json"), record.to_json(), durable=False)
        return unit, record

    return make


def evaluation_tokens(job: Job) -> list[list[int]]:
    """The tokens of the texts of evaluations."""
    codec = TextCodec(job.tokenizer)
    return [codec.encode(text) for text in job.choice.decontaminate]


def _encoder(job: Job, tokenizer: Tokenizer) -> PlainText | Chat:
    if job.chat is None:
        return PlainText(job, tokenizer)
    kind = {PAIRS_FORMAT: Pairs, LABELS_FORMAT: Labelled}.get(job.answers or "", Chat)
    return kind(job, job.chat, tokenizer)


def is_validation(raw: bytes, fraction: float) -> bool:
    """Whether a document is for validation: a hash of its text decides, so that equal documents are in one split."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big") < fraction * 2**64


def invalid_documents(job: Job, record: UnitRecord) -> list[str]:
    """`file:line: reason` of the invalid documents that a record lists."""
    offsets = {tuple(map(int, where.split(":"))): reason for where, reason in record.first_broken.items()}
    return [f"{location(job.inputs[file], offset)}: {reason}" for (file, offset), reason in sorted(offsets.items())]


def _make_unit(job: Job, encoder: PlainText | Chat, unit: int, evaluations: NGrams, progress: Progress) -> UnitRecord:
    broken: dict[str, str] = {}
    skipped = {"empty": 0, "broken": 0, "contaminated": 0}

    def texts() -> Iterator[Text]:
        for input, document in chosen_documents(job, unit, progress):
            text = document.broken or text_of(encoder, document.text)
            if isinstance(text, str):
                skipped["broken"] += 1
                if len(broken) < _REPORTED:
                    broken[f"{input}:{document.offset}"] = text
            elif text.raw:
                yield text
            else:
                skipped["empty"] += 1

    with ExitStack() as stack:
        writers: dict[str, _SplitWriter] = {}
        for batch in text_batches(texts()):
            for text, encoded in zip(batch, encoder.encoded(batch), strict=True):
                if evaluations.contains_any(encoded.tokens):
                    skipped["contaminated"] += 1
                    continue
                split = VALIDATION if is_validation(text.raw, job.validation_fraction) else TRAIN
                if split not in writers:
                    writers[split] = _SplitWriter(job, unit, split, stack)
                writers[split].add(encoded, len(text.raw))
        splits = {split: writer.finish() for split, writer in writers.items()}
    return UnitRecord(splits, skipped["empty"], skipped["broken"], skipped["contaminated"], broken)


def text_of(encoder: PlainText | Chat, text: Any) -> Text | str:
    """The text of a document, or the reason why it is invalid."""
    try:
        return encoder.text(text)
    except UnicodeEncodeError:
        return "a lone UTF-16 surrogate, which is not valid Unicode text"
    except NotEncodable as error:
        return str(error)


class _SplitWriter:
    """The files of a unit for one split."""

    def __init__(self, job: Job, unit: int, split: str, stack: ExitStack) -> None:
        self._kinds = (TOKENS, LENGTHS) if job.chat is None else (TOKENS, LENGTHS, LOSS_MASK)
        self._files: dict[str, BinaryIO] = {
            kind: stack.enter_context(new_file(job.unit_file(unit, f"{split}.{kind}"), durable=False))
            for kind in self._kinds
        }
        self._digests = {kind: hashlib.blake2b(digest_size=DIGEST_BYTES) for kind in self._kinds}
        self._lengths = array("q")
        self._text_bytes = self._counted = 0

    def add(self, encoded: Encoded, text_bytes: int) -> None:
        self._write(TOKENS, encoded.tokens)
        if encoded.counted is None:
            self._counted += len(encoded.tokens)
        else:
            self._write(LOSS_MASK, encoded.counted)
            self._counted += int(np.count_nonzero(encoded.counted))
        self._lengths.extend(encoded.lengths)
        self._text_bytes += text_bytes

    def finish(self) -> UnitSplit:
        lengths = np.array(self._lengths, "<i8")
        self._write(LENGTHS, lengths)
        return UnitSplit(
            documents=len(lengths),
            tokens=int(lengths.sum()),
            counted=self._counted,
            text_bytes=self._text_bytes,
            digests={kind: hasher.hexdigest() for kind, hasher in self._digests.items()},
        )

    def _write(self, kind: str, values: np.ndarray) -> None:
        content = values.tobytes()
        self._digests[kind].update(content)
        self._files[kind].write(content)


def text_batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """The texts in groups that are encoded at once."""
    batch, letters = [], 0
    for text in texts:
        batch.append(text)
        letters += text.letters
        if letters >= BATCH_LETTERS or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch
