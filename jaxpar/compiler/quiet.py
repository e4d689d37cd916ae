"""A quiet import of JAX: the plugin for GPUs complains on the screen where there is no driver, and that is no news."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_screen() -> Iterator[None]:
    """Keep what native code writes to the error stream; if the block fails, show it."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            if failed:
                kept.seek(0)
                os.write(2, kept.read())
