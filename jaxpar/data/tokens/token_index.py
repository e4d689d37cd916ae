"""`index.json` of a token folder: its contents, and their digests.

The index carries its own digest and there is exactly one text for given contents, so a changed byte anywhere in the
folder is noticed: the index names a digest of every small file, and for each file of tokens the digest of its sums
(`digests.py`), which are stored next to it so that a block can be checked when it is first used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from jaxpar.config.errors import UserError
from jaxpar.config.parts import LABELS_FORMAT, PAIRS_FORMAT
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.config.spelling import quoted
from jaxpar.data.tokens.digests import DIGEST_BYTES, SUM_BYTES, blocks_in, digest
from jaxpar.pages.units import plural

INDEX = "index.json"
FORMAT = "jaxpar-tokens"
VERSION, CHAT_VERSION, PAIRS_VERSION, LABELS_VERSION = VERSIONS = 5, 6, 7, 8
"""Versions of folders of text, of conversations (with two more kinds of files), of pairs of conversations, and of
marked ones. Versions 1 to 4 had another name for the validation documents."""
VERSION_OF = {None: CHAT_VERSION, PAIRS_FORMAT: PAIRS_VERSION, LABELS_FORMAT: LABELS_VERSION}
"""The version of a folder of conversations, by the format of answers."""
TRAIN, VALIDATION = SPLITS = ("train", "validation")
SUMS = ".sums"
"""Suffix of the file of sums after the name of its file of tokens."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_HEX = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}\Z")


@dataclass(frozen=True)
class File:
    """A file of the folder."""

    name: str
    """A plain name, without folders."""
    bytes: int
    digest: str
    """BLAKE2b-256 in hex: of the file's bytes, or, for a file of tokens, of its sums."""


@dataclass(frozen=True)
class Shard:
    """Documents one after the other, each with its end-of-document token."""

    tokens: File
    """`.npy`, one dimension; its sums are in the file of the same name and `.sums`."""
    starts: File
    """`.npy`, int64: where in the shard each document starts."""
    token_count: int
    document_count: int
    text_bytes: int
    """Bytes of the documents' text in UTF-8."""
    counted: File | None = None
    """`.npy`, uint8, with sums as `tokens` has: 1 for each token that is a target of the loss, 0 for others; None
    where all are targets. 2 instead of 1 in conversations that are marked as undesirable."""

    def summed(self) -> Iterator[File]:
        """The files that have a file of sums beside them."""
        yield self.tokens
        if self.counted is not None:
            yield self.counted


@dataclass(frozen=True)
class Index:
    """The contents of a token folder."""

    dtype: Literal["uint16", "uint32"]
    vocab: int
    """Tokens are below it."""
    separator: int
    """Token that ends each document."""
    tokenizer: File
    splits: dict[str, dict[str, Shard]]
    """Split (`train`, `validation`) to the name of a shard to the shard; shards are in the order of their names."""
    skipped: dict[str, int]
    """Documents that were left out, by the reason (`empty`, `broken`)."""
    chat: File | None = None
    """The template that conversations were rendered with, in the form of a `tokenizer_config.json`; None for text."""
    paired: bool = False
    """Whether documents come in pairs within a shard: one that was chosen, and after it one that was rejected."""
    labelled: bool = False
    """Whether each document is marked, as desirable or not."""
    format: Literal["jaxpar-tokens"] = FORMAT
    version: int = VERSION
    digest: str = field(default="", compare=False)
    """BLAKE2b-256 of the other fields; filled in by `encode`."""

    @property
    def answers(self) -> str | None:
        """The format of the answers that preferences are of; None where there are none."""
        return PAIRS_FORMAT if self.paired else LABELS_FORMAT if self.labelled else None

    def shards(self, split: str) -> list[Shard]:
        """The shards of a split, in order."""
        shards = self.splits[split]
        return [shards[name] for name in sorted(shards)]

    def tokens_in(self, split: str) -> int:
        """Tokens of a split."""
        return sum(shard.token_count for shard in self.shards(split))

    def documents_in(self, split: str) -> int:
        """Documents of a split."""
        return sum(shard.document_count for shard in self.shards(split))

    def text_bytes_in(self, split: str) -> int:
        """Bytes of text of a split."""
        return sum(shard.text_bytes for shard in self.shards(split))

    def files(self) -> Iterator[tuple[str, int]]:
        """Name and size of every file that belongs to the folder, the index itself left out."""
        yield self.tokenizer.name, self.tokenizer.bytes
        for split in self.splits:
            for shard in self.shards(split):
                for file in shard.summed():
                    yield file.name, file.bytes
                    yield file.name + SUMS, blocks_in(file.bytes) * SUM_BYTES
                yield shard.starts.name, shard.starts.bytes
        if self.chat is not None:
            yield self.chat.name, self.chat.bytes


def encode(index: Index) -> bytes:
    """The text of `index.json`; it is unique for given contents."""
    plain = asdict(index)
    del plain["digest"]
    if index.chat is None:  # A folder of text does not have the key.
        del plain["chat"]
    for key in ("paired", "labelled"):  # Each is in the text of its version alone.
        if not plain[key]:
            del plain[key]
    for shards in plain["splits"].values():
        for shard in shards.values():
            if shard["counted"] is None:
                del shard["counted"]
    plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
    return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()


def read_index(folder: Path) -> Index:
    """The index of `folder`, checked for consistency; other files are not read.

    Raises:
        UserError: it is not there, cannot be read, is damaged, or is of another format or version.
    """
    path = folder / INDEX
    try:
        raw = read_file(path)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {INDEX}, so it is not a token folder, or its preparation has not ended; "
            "expected one that python -m jaxpar.prepare has made"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    return decode(raw, str(path))


def decode(raw: bytes, label: str) -> Index:
    """The index with this text.

    Args:
        raw: the file's bytes.
        label: name of the file, for messages.

    Raises:
        UserError: `encode` would not have written this text.
    """
    plain = _parse(raw, label)
    if plain.get("format") != FORMAT:
        raise UserError(f"{label} is not the index of a token folder (its format is not {quoted(FORMAT)})")
    version = plain.get("version")
    if type(version) is int and 1 <= version < VERSION:
        raise UserError(
            f"{label} has version {version} of the format, of an earlier release, and this release reads versions "
            f"{', '.join(map(str, VERSIONS))}; make the folder again"
        )
    if type(version) is int and version not in VERSIONS:
        raise UserError(
            f"{label} has version {version} of the format, and this release reads versions "
            f"{', '.join(map(str, VERSIONS))}"
        )
    _check_names(plain, label)
    index = record_from_plain(Index, plain, label)
    # The text is a function of the contents, so writing it again finds any changed byte, blanks included.
    if encode(index) != raw:
        raise UserError(f"{label} is damaged (its digest is not that of its contents); make the folder again")
    _check(index, label)
    return index


def _parse(raw: bytes, label: str) -> dict[str, object]:
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError):
        raise UserError(f"{label} is damaged (it is not JSON); make the folder again") from None
    if not isinstance(plain, dict):
        raise UserError(f"{label} is not the index of a token folder (it is not a mapping)")
    return plain


def _check_names(plain: dict[str, object], label: str, depth: int = 5) -> None:
    """Names of fields and shards stand in messages, so they must be plain."""
    for name, value in plain.items():
        if not _NAME.match(name):
            raise UserError(f"{label}: {quoted(name[:40])} is not the name of a field or a shard")
        if isinstance(value, dict) and depth:
            _check_names(value, label, depth - 1)


def _check(index: Index, label: str) -> None:
    """Check the consistency of the fields, which a digest does not prove."""
    if set(index.splits) != set(SPLITS) or not index.splits[TRAIN]:
        raise UserError(
            f"{label}: splits: expected {TRAIN}, with at least one shard, and {VALIDATION}; make the folder again"
        )
    if not 0 <= index.separator < index.vocab <= 2 ** (16 if index.dtype == "uint16" else 31):
        raise UserError(
            f"{label}: vocab {index.vocab} with separator {index.separator} and {index.dtype}: expected a separator "
            "below the vocabulary, and a vocabulary that the type holds"
        )
    if any(count < 0 for count in index.skipped.values()):
        raise UserError(f"{label}: skipped: expected counts of at least 0")
    _check_file(index.tokenizer, label)
    chat = [index.chat, *(shard.counted for shards in index.splits.values() for shard in shards.values())]
    if any((file is not None) != (index.version >= CHAT_VERSION) for file in chat):
        raise UserError(
            f"{label}: version {index.version}: expected `chat`, and `counted` in each shard, from version "
            f"{CHAT_VERSION} on and not in version {VERSION}"
        )
    if (index.paired, index.labelled) != (index.version == PAIRS_VERSION, index.version == LABELS_VERSION):
        raise UserError(
            f"{label}: version {index.version}: expected `paired` in version {PAIRS_VERSION} alone, and `labelled` in "
            f"version {LABELS_VERSION} alone"
        )
    if index.chat is not None:
        _check_file(index.chat, label)
    for shards in index.splits.values():
        for name, shard in shards.items():
            _check_shard(shard, index, f"{label}: {name}")
    twice = [name for name, times in Counter(name for name, _ in index.files()).items() if times > 1]
    if twice:
        raise UserError(f"{label} names {twice[0]} twice")


def _check_shard(shard: Shard, index: Index, label: str) -> None:
    _check_file(shard.tokens, label)
    _check_file(shard.starts, label)
    if not 1 <= shard.document_count <= shard.token_count or shard.text_bytes < 0:
        raise UserError(
            f"{label}: {plural(shard.document_count, 'document')} of {plural(shard.token_count, 'token')}; expected "
            "at least one document, and at least one token in each"
        )
    if index.paired and shard.document_count % 2:
        raise UserError(
            f"{label}: {plural(shard.document_count, 'document')}; expected an even number, since they are pairs"
        )
    width = 2 if index.dtype == "uint16" else 4
    files = [(shard.tokens, width * shard.token_count), (shard.starts, 8 * shard.document_count)]
    if shard.counted is not None:
        _check_file(shard.counted, label)
        files.append((shard.counted, shard.token_count))
    for file, needed in files:
        if not 0 < file.bytes - needed < 2**16:
            raise UserError(f"{label}: {file.name} has {file.bytes} bytes; expected {needed} and a header")


def _check_file(file: File, label: str) -> None:
    if not _NAME.match(file.name) or file.name == INDEX:
        raise UserError(f"{label}: {quoted(file.name[:60])} is not the plain name of a file in the folder")
    if not _HEX.match(file.digest) or file.bytes < 0:
        raise UserError(f"{label}: {file.name}: expected a size and a digest of {2 * DIGEST_BYTES} hex digits")
