"""The records of an exchange between islands: small JSON objects, each written once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jaxpar.checkpoint.digests import Entry
from jaxpar.checkpoint.errors import Damage
from jaxpar.config.strict_json import json_text


@dataclass(frozen=True)
class Contribution:
    """The outer gradient of one island in one round."""

    round: int
    base: str
    """Digest of the outer state that the island began the round with."""
    weights: str
    """Digest of the names and shapes of its arrays."""
    steps: int
    """Inner steps since that state."""
    tokens: int
    """Tokens of the rows of these steps."""
    files: dict[str, Entry]
    """Size and digest of each file."""


@dataclass(frozen=True)
class Closed:
    """The end of a round: whose contributions make the next outer state."""

    round: int
    base: str
    """Digest of the outer state before it."""
    following: str
    """Digest of the outer state after it."""
    accepted: dict[str, str]
    """Island to the digest of the record of its contribution."""
    refused: dict[str, str]
    """Island to why its contribution is not accepted."""
    absent: list[str]
    """Islands that were waited for and gave none."""
    closed_by: str


@dataclass(frozen=True)
class Stored:
    """An outer state in files: weights and momentum."""

    round: int
    """The round that begins with it."""
    digest: str
    """The first state has the digest of its files, a later one that of the state and the contributions that make it."""
    stored_by: str
    files: dict[str, Entry]


def to_bytes(record: Contribution | Closed | Stored) -> bytes:
    """A record as JSON."""
    return (json_text(asdict(record), indent=1, sort_keys=True) + "\n").encode()


def from_bytes[Record](kind: type[Record], content: bytes) -> Record:
    """A record from JSON. Raises `Damage` where it is none of this kind."""
    types = {"int": int, "str": str, "dict": dict, "list": list}
    try:
        values: dict[str, Any] = json.loads(content)
        wanted = {field.name: types[str(field.type).partition("[")[0]] for field in fields(kind)}  # pyright: ignore[reportArgumentType]
        if {name: type(value) for name, value in values.items()} != wanted:
            raise Damage("its record has other fields")
        if "files" in values:
            values["files"] = {
                str(name): Entry(int(size), str(digest)) for name, (size, digest) in values["files"].items()
            }
        return kind(**values)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damage("its record is damaged") from error


def digest_of(value: bytes | Mapping[str, object] | list[object]) -> str:
    """A digest of bytes, or of a JSON value."""
    content = value if isinstance(value, bytes) else json_text(value, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def following_digest(base: str, accepted: Mapping[str, str]) -> str:
    """The digest of the outer state that `accepted` contributions make of the state `base`.

    The update is the same bits wherever it is computed, so the digests of what goes in identify what comes out.
    """
    return digest_of([base, sorted(accepted.items())])
