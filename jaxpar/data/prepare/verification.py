"""`--verify FOLDER`: every byte of a token folder compared with its index."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from jaxpar.config.spelling import named
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.pages.units import plural, seconds


def verify_folder(folder: Path, console: Console) -> None:
    """Check everything. Raises `UserError` that names the first damaged file."""
    began = time.monotonic()
    opened = open_token_folder(folder, key="--verify")
    opened.check()
    files = list(opened.index.files())
    size = sum(size for _, size in files)
    console.print(
        f"{named(folder)}: {plural(len(files), 'file')} and the index, {size:,} bytes, are what was written "
        f"({seconds(time.monotonic() - began)})",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
