"""`data.source: stdlib`, text that every machine has: the sources of Python's standard library, bytes as tokens."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import quoted
from jaxpar.data.opened import Data, split_sizes, train_rows, validation_rows
from jaxpar.data.stream import TokenStream

END_OF_DOCUMENT = 256
"""Token after the last byte of each file; tokens 0 to 255 are bytes."""
VOCAB = 257
VALIDATION_FRACTION = 0.08
"""Largest share of the bytes that is for validation."""

_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def open_stdlib(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """The data of `data.source: stdlib`; see `open_data`."""
    if vocab is not None and vocab < VOCAB:
        raise UserError(
            f"model.vocab={vocab} is too small for data.source=stdlib (bytes and an end-of-document token); "
            f"expected at least {VOCAB}, or null"
        )
    train, validation = read_stdlib()
    return Data(
        train=train_rows(train, config, seed, "stdlib"),
        validation=validation_rows(validation, config, "validation stdlib"),
        vocab=vocab or VOCAB,
        separator=END_OF_DOCUMENT,
        decode=decode,
        encode_start=encode,
        description=f"standard library of Python {platform.python_version()}: {split_sizes(train, validation, 'file')}",
    )


def read_stdlib(root: Path | None = None) -> tuple[TokenStream, TokenStream]:
    """The training and the validation stream, one document per `.py` file under `root`, in the order of their paths.

    Args:
        root: folder of the library; by default that of the running Python.

    Raises:
        UserError: there are no sources to split (a Python that was installed without them).
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    sources = {path: (root / path).read_bytes() for path in paths(root)}
    sources = {path: text for path, text in sources.items() if text}
    sizes: Counter[str] = Counter()
    for path, text in sources.items():
        sizes[family(path)] += len(text)
    chosen = validation_families(sizes)
    if not chosen or len(chosen) == len(sizes):
        raise UserError(
            f"data.source=stdlib found {len(sources)} Python source files under {quoted(str(root))}; expected the "
            "whole "
            "standard library (install it, or choose another data.source)"
        )
    train, validation = [], []
    for path, text in sources.items():
        (validation if family(path) in chosen else train).append(text)
    return _stream(train), _stream(validation)


def family(path: str) -> str:
    """The key by which files are split: the top-level module, with `_x` and `_pyx` as `x` (they share much text)."""
    module = path.split("/")[0].removesuffix(".py")
    return module.removeprefix("_py").strip("_") if module.startswith("_py") else module.strip("_") or module


def validation_families(sizes: Mapping[str, int]) -> frozenset[str]:
    """Families for validation, taken in the order of a hash of their names while they fit into the validation share.

    A threshold on the hash alone would take between 3% and 20%: packages differ in size by a factor of a thousand.
    """
    budget = VALIDATION_FRACTION * sum(sizes.values())
    chosen = set()
    for name in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if sizes[name] <= budget:
            budget -= sizes[name]
            chosen.add(name)
    return frozenset(chosen)


def paths(root: Path) -> list[str]:
    """Sources under `root`, sorted, with forward slashes."""
    paths = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        # _sysconfigdata*.py is written when Python is built and differs from machine to machine.
        names = [name for name in files if name.endswith(".py") and not name.startswith("_sysconfigdata")]
        paths += [(Path(folder) / name).relative_to(root).as_posix() for name in names]
    return sorted(paths)


def _stream(texts: list[bytes]) -> TokenStream:
    documents = [
        np.append(np.frombuffer(text, np.uint8).astype(np.uint16), np.uint16(END_OF_DOCUMENT)) for text in texts
    ]
    stops = np.cumsum([len(document) for document in documents], dtype=np.int64)
    return TokenStream(tokens=np.concatenate(documents), starts=np.append(np.int64(0), stops[:-1]))


def encode(text: str, *, special_tokens: bool = False) -> list[int]:
    """Text as tokens: its UTF-8 bytes, among which no special token has a name."""
    del special_tokens
    return list(text.encode())


def decode(tokens: Sequence[int] | np.ndarray) -> str:
    """Tokens as text; the end-of-document token is left out and broken UTF-8 is shown as replacement characters."""
    return bytes(int(token) for token in tokens if token < END_OF_DOCUMENT).decode(errors="replace")
