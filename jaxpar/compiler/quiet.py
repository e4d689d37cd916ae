"""What native code writes to the screen, kept out of the way.

The plugin for GPUs complains where there is no driver, which is no news; Gloo counts its connections in the output
stream, in pieces and from several threads.
"""

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


@contextmanager
def native_output_aside() -> Iterator[None]:
    """Send what native code (and Python) writes to the output stream to the error stream: JSON to come stands alone."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
