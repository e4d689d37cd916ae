"""Files of arrays in an exchange folder, of which each process of a job writes and reads its part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from jaxpar.checkpoint.digests import Entry, file_entries
from jaxpar.checkpoint.errors import reason
from jaxpar.checkpoint.processes import judged
from jaxpar.checkpoint.shared_folder import SharedFolder
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.training.island_jobs.local_weights import Parts
from jaxpar.training.island_jobs.tensor_parts import TensorParts, write_parts

type Listed = tuple[str, str, Entry]
"""The island that wrote a file, the file's name in the folder, and what it should be."""


def written(
    folder: SharedFolder, name_of: Callable[[str], str], parts: Parts, message_dtype: str | None
) -> dict[str, Entry]:
    """Write the parts of this process to a separate file; returns the entries of the files of all processes.

    Collective. Raises `UserError` where one of the processes cannot write.
    """
    file = f"{jax.process_index()}.safetensors"
    name = name_of(file)
    try:
        temporary = folder.begin(name)
        write_parts(temporary, parts, message_dtype)
        folder.finish(temporary, name)
        answer: dict[str, object] = {file: file_entries(folder.path, [name], flush=False)[name]}
    except OSError as error:  # the other processes must learn of it
        answer = {"error": f"{name}: {reason(error)}"}
    files = judged(json_text(answer), _merged)
    if "error" in files:
        raise UserError(f"islands.folder: {named(folder.path)} cannot be written ({files['error']})")
    return {one: Entry(*entry) for one, entry in files.items()}


def damaged(folder: SharedFolder, files: Iterable[Listed]) -> dict[str, str]:
    """Island to the damage of the first damaged one of its files. Collective: each process reads its share."""
    share = sorted(files)[jax.process_index() :: jax.process_count()]
    each = [(island, _damage(folder.path / name, entry)) for island, name, entry in share]
    return judged(json_text({island: why for island, why in each if why is not None}), _merged)


def opened(folder: SharedFolder, names: Iterable[str], message_dtype: str | None = None) -> TensorParts:
    """The parts in these files. Raises `Damage`."""
    return TensorParts([folder.path / name for name in names], message_dtype)


def _damage(path: Path, entry: Entry) -> str | None:
    try:
        if path.stat().st_size != entry.size or file_entries(path.parent, [path.name], flush=False)[path.name] != entry:
            return f"its file {path.name} is damaged"
    except FileNotFoundError:
        return f"its file {path.name} is missing"
    except OSError as error:  # the other processes wait for this one's judgement
        return f"its file {path.name} cannot be read ({reason(error)})"
    return None


def _merged(texts: list[str]) -> dict[str, Any]:
    return {name: value for text in texts for name, value in json.loads(text).items()}
