"""`prepare.json`: the inputs and options of a token folder. A preparation continues only with the same ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.reading.typed import spell
from jaxpar.config.spelling import quoted
from jaxpar.data.prepare.input.files import Input
from jaxpar.data.prepare.job import WORK
from jaxpar.data.prepare.options import Options
from jaxpar.data.prepare.output.atomic_files import write_file
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_index import INDEX

RECORD = "prepare.json"
VERSION = 2


def check_usable(out: Path) -> None:
    """Refuse a folder that is neither new, nor empty, nor from an unfinished preparation.

    Raises:
        UserError: it is something else.
        OSError: it cannot be read.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--out {quoted(str(out))} is not a folder; expected a new or empty one")
    names = sorted(entry.name for entry in out.iterdir())
    # A kill may leave part of the record under a temporary name.
    others = [name for name in names if name != WORK and not name.startswith(f"{RECORD}.")]
    if others and RECORD not in names:
        more = ", ..." if len(others) > 3 else ""
        raise UserError(
            f"--out {quoted(str(out))}: the folder holds other files ({', '.join(others[:3])}{more}); expected a "
            "new or "
            "empty one, or one that was begun"
        )


def begin_or_resume(options: Options, inputs: list[Input], decisive: dict[str, object]) -> None:
    """Write the record into a new folder, or compare it with that of an unfinished one.

    Args:
        options: name the folder.
        inputs: the files to read.
        decisive: the options that determine the output.

    Raises:
        UserError: the folder was begun with other inputs or options.
        OSError: it cannot be read or written.
    """
    path = options.out / RECORD
    plain = {
        "version": VERSION,
        "options": decisive,
        "inputs": [asdict(file) for file in inputs],
    }
    if not path.exists():
        write_file(path, _encode(plain))
        return
    _compare(options, _decode(path), plain)


def _encode(plain: dict[str, object]) -> bytes:
    sealed = plain | {"digest": digest(json.dumps(plain, sort_keys=True).encode())}
    return (json.dumps(sealed, indent=1, sort_keys=True) + "\n").encode()


def _decode(path: Path) -> dict[str, Any]:
    damaged = UserError(f"{path} is damaged; remove the folder, and prepare it again")
    try:
        raw = read_file(path)
        plain = json.loads(raw)
        del plain["digest"]
    except (ValueError, KeyError, TypeError, RecursionError):  # a UserError is a ValueError
        raise damaged from None
    if _encode(plain) != raw:
        raise damaged
    if plain.get("version") != VERSION:
        raise UserError(
            f"{path} was written by another release (version {quoted(plain.get('version'))}); use another --out"
        )
    return plain


def _compare(options: Options, old: dict[str, Any], new: dict[str, Any]) -> None:
    state = "was made" if (options.out / INDEX).exists() else "was begun"
    for name, value in new["options"].items():
        if value != old["options"].get(name):
            text = f"--{name.replace('_', '-')}"
            if name == "before":
                detail = f"its documents do not begin with the tokens {value}, as this release writes them"
            elif name in ("tokenizer", "chat_template", "filter", "decontaminate"):
                what = "text" if name == "decontaminate" else name.replace("_", " ")
                detail = f"{text} is another {what} than it {state} with"
            else:
                detail = f"{text} is {spell(value)}, and it {state} with {spell(old['options'].get(name))}"
            raise UserError(f"--out {quoted(str(options.out))}: {detail}; use another --out, or remove that folder")
    before = {file["path"]: file for file in old["inputs"]}
    after = {file["path"]: file for file in new["inputs"]}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        what = "is new" if path not in before else "is gone" if path not in after else "was changed"
        raise UserError(
            f"--out {quoted(str(options.out))}: input {path} {what} since the folder {state}; use another --out, or "
            "remove that folder"
        )
