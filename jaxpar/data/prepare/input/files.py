"""The files to read: found by patterns, each with its format and compression."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.parts import ANSWERS_FORMATS, CHAT_FORMAT, LABELS_FORMAT, PAIRS_FORMAT
from jaxpar.config.paths import is_name, user_location
from jaxpar.config.reading.text_file import LONGEST_POINTER, check_pointer, check_regular
from jaxpar.config.spelling import did_you_mean, named, quoted
from jaxpar.data.prepare.input.matching import matches
from jaxpar.remote.cache import local_path

FORMATS = {
    "text": "a file is a document",
    "lines": "a line is a document",
    "jsonl": "a line is a JSON object with a document",
    "parquet": "a row of a column is a document",
    "arrow": "a row of a column is a document",
    CHAT_FORMAT: "a line is a JSON object with a conversation",
    PAIRS_FORMAT: "a line is a JSON object with two answers, one chosen and one rejected",
    LABELS_FORMAT: "a line is a JSON object with an answer and a mark, whether it is desirable",
}
_BY_SUFFIX = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst", ".tex", ".html", ".py"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".arrow": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
FILES_OPTION = "--input"
"""Option of `python -m jaxpar.prepare` that names the files."""


@dataclass(frozen=True)
class Input:
    """A file to read, as it was found."""

    path: str
    bytes: int
    changed: int
    """Time of the last change, in nanoseconds."""
    format: str
    """The format of the file, one of `FORMATS`."""
    compression: str | None
    """`gzip`, `zstd`, or None."""

    @property
    def divisible(self) -> bool:
        """Whether units may begin within the file."""
        return self.compression is None and self.format in ("lines", "jsonl", CHAT_FORMAT, *ANSWERS_FORMATS)


def find_inputs(
    patterns: Iterable[str], format: str | None, out: Path | None, option: str = FILES_OPTION
) -> list[Input]:
    """The files that the patterns match, without those in `out`, sorted by path, each once.

    Of several paths of one file, over symlinks, the one of fewest folders counts.

    Args:
        patterns: glob patterns; `**` stands for any folders.
        format: one of `FORMATS` for all files; None decides by their names.
        out: folder to leave out, if any.
        option: names the patterns, for messages.

    Raises:
        UserError: a pattern matches no file, or a file's format is not known or it cannot be read.
    """
    names = {name for pattern in patterns for name in _matches(pattern, option)}
    by_file: dict[Path, str] = {}
    for name in sorted(names, key=lambda name: (len(Path(name).parts), name)):
        if not is_name(name):
            raise UserError(f"{option}: the name {quoted(name)} is not UTF-8; expected files with another name")
        by_file.setdefault(_resolved(name, option), name)
    left_out = None if out is None else out.resolve()
    chosen = sorted((name, file) for file, name in by_file.items())
    return [_input(name, format, option) for name, file in chosen if left_out not in file.parents]


def _matches(pattern: str, option: str) -> list[str]:
    exact = _local(pattern, option)
    paths = [str(exact)] if exact.exists() else list(matches(exact))
    files = [name for name in paths if Path(name).is_file()]
    if files:
        return files
    for name in paths:
        try:
            check_regular(name, f"{option} {quoted(name)}")
        except OSError as error:
            raise UserError(f"{option} {quoted(name)} cannot be read ({error.strerror})") from error
    if paths:
        raise UserError(f"{option} {quoted(pattern)} is a folder; expected files, such as '{paths[0]}/*.jsonl'")
    raise UserError(f"{option} {quoted(pattern)} matches no file{_near(exact)}")


def _local(pattern: str, option: str) -> Path:
    """The pattern as one of local files: those that match the pattern of a URL are copied."""
    where = user_location(pattern, option)
    if isinstance(where, Path):
        return where
    parts = where.split("/")
    depth = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder, rest = "/".join(parts[:depth]), "/".join(parts[depth:])
    if not rest:
        return local_path(where, option)
    last, levels = parts[-1], len(parts) - depth
    may_match = lambda name: fnmatchcase(name.rsplit("/", 1)[-1], last) and ("**" in rest or name.count("/") < levels)
    return local_path(folder, option, lambda names: [name for name in names if may_match(name)]) / rest


def _resolved(name: str, option: str) -> Path:
    try:
        return Path(name).resolve()
    except OSError as error:
        raise UserError(f"{option}: {named(name)} cannot be read ({error.strerror})") from error


def _near(pattern: Path) -> str:
    """A hint about a pattern without a match."""
    folder = pattern.parent
    while glob.has_magic(str(folder)):
        folder = folder.parent
    if not folder.is_dir():
        return f"; there is no folder {quoted(str(folder))}"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if not names:
        return f"; the folder {quoted(str(folder))} is empty"
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return did_you_mean(pattern.name, names) or f"; the folder {quoted(str(folder))} holds {shown}"


def form_of(path: Path) -> tuple[str | None, str | None]:
    """The format and the compression of a file, by its name; None where it tells of none."""
    compression = _COMPRESSIONS.get(path.suffix.lower())
    suffix = path.suffix if compression is None else path.with_suffix("").suffix
    return _BY_SUFFIX.get(suffix.lower()), compression


def _input(name: str, format: str | None, option: str) -> Input:
    path = Path(name)
    by_name, compression = form_of(path)
    format = format or by_name
    if format is None:
        other = f", or say --format {', '.join(FORMATS)}" if option == FILES_OPTION else ""
        raise UserError(
            f"{option}: the format of {name} is not known from its name; expected {', '.join(_BY_SUFFIX)} (and "
            f"{' or '.join(_COMPRESSIONS)} after it){other}"
        )
    try:
        status = path.stat()
        if status.st_size < LONGEST_POINTER:
            check_pointer(path.read_bytes(), path, f"{option}: {named(name)}")
    except OSError as error:
        raise UserError(f"{option}: {name} cannot be read ({error.strerror})") from error
    return Input(name, status.st_size, status.st_mtime_ns, format, compression)
