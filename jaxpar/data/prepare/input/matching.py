"""Glob patterns whose `**` enters each folder once, so that symlinks in a circle end."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path


def matches(pattern: Path) -> Iterator[str]:
    """Files and folders that match a pattern, as `glob.glob(..., recursive=True)` finds them, but for circles.

    `*`, `?` and `[...]` stand for letters of one name, `**` for any folders, also through symlinks. Names that begin
    with a dot match only a pattern that does.
    """
    begin = Path(pattern.anchor) if pattern.anchor else Path()
    return (str(path) for path in _below(begin, pattern.parts[1:] if pattern.anchor else pattern.parts))


def _below(folder: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """The paths below a folder that match `parts`."""
    if not parts:
        yield folder
        return
    part, others = parts[0], parts[1:]
    if part == "**":
        for inner in _all_folders(folder):
            if others:
                yield from _below(inner, others)
            else:
                yield from (inner / name for name in _names(inner))
    elif glob.has_magic(part):
        for name in fnmatch.filter(_names(folder, hidden=part.startswith(".")), part):
            yield from _below(folder / name, others)
    elif os.path.lexists(folder / part):
        yield from _below(folder / part, others)


def _all_folders(folder: Path) -> Iterator[Path]:
    """A folder and all below it, each once: those that are reached without a symlink first."""
    waiting, links, seen = deque([folder]), deque(), set()
    while waiting or links:
        next_folder = waiting.popleft() if waiting else links.popleft()
        real = os.path.realpath(next_folder)
        if real in seen:
            continue
        seen.add(real)
        yield next_folder
        for name in _names(next_folder):
            inner = next_folder / name
            if inner.is_dir():
                (links if inner.is_symlink() else waiting).append(inner)


def _names(folder: Path, *, hidden: bool = False) -> list[str]:
    """Names in a folder, sorted; none where it is not a folder or cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if hidden or not name.startswith("."))
