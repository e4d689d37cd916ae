"""Redirects what native code writes to the screen.

The CUDA plugin logs errors where there is no driver, which is expected. Gloo prints its connections to stdout, in
pieces and from several threads.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_screen() -> Iterator[None]:
    """Capture what native code writes to stderr; show it if the block fails."""
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
def native_output_to_stderr() -> Iterator[None]:
    """Redirect stdout of native code (and Python) to stderr, so that stdout has only the JSON."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
