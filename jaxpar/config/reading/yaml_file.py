"""YAML files that a user names: read, and checked against a dataclass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_text_file
from jaxpar.config.reading.typed import checked, field_types
from jaxpar.config.reading.yaml_text import Located, parse_document
from jaxpar.config.spelling import did_you_mean, named


def read_document(path: Path) -> dict[str, Located]:
    """The top-level mapping of a file.

    Raises:
        UserError: the file is not there or cannot be read, or is not a mapping in YAML.
    """
    try:
        text = read_text_file(path)
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.glob("*.yaml")]
        raise UserError(f"{named(path)}: there is no such file{did_you_mean(path.name, beside)}") from None
    except UnicodeDecodeError:
        raise UserError(f"{named(path)}: not text in UTF-8, so not YAML") from None
    except OSError as error:
        raise UserError(f"{named(path)}: cannot be read ({error.strerror})") from None
    return parse_document(text, named(path))


def read_record[T](record: type[T], path: Path) -> tuple[T, dict[str, int]]:
    """A dataclass whose fields all have defaults, from a file of its keys; and the line of each key.

    Raises:
        UserError: as `read_document`, or a key is unknown or its value of another type; with file and line.
    """
    known = field_types(record)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, located in read_document(path).items():
        if key not in known:
            raise UserError(f"{named(path)}:{located.line}: {key}: no such key{did_you_mean(key, known)}")
        try:
            values[key] = checked(key, _plain(located.value), known[key])
        except UserError as error:
            raise UserError(f"{named(path)}:{located.line}: {error}") from None
        lines[key] = located.line
    return record(**values), lines


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry.value if isinstance(entry, Located) else entry) for key, entry in value.items()}
    return value
