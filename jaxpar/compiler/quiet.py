"""Keeps what native code logs off the screen.

CUDA's stub logs where there is no driver, when JAX and its CUDA plugin are loaded, and absl that it logs so early.
Neither can be turned off. Gloo prints its connections to stdout, in pieces and from several threads.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
NOISE = re.compile(rb"^.*(?:absl::InitializeLog\(\)|cudart_stub\.cc:).*\n?", re.MULTILINE)


def quiet_imports() -> None:
    """From now on JAX and its CUDA plugin are loaded without lines of `NOISE`; does nothing once JAX is loaded."""
    if "jax" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in ("jax", *PLUGINS) else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                with _without_noise():
                    load(module)
                if name in PLUGINS:  # its library is loaded by this call, when JAX looks for devices
                    module.initialize = _without_noise()(module.initialize)

            spec.loader.exec_module = exec_module
        return spec


@contextmanager
def _without_noise() -> Iterator[None]:
    """Capture what is written to stderr, and print it after the block without lines of `NOISE`."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(screen, 2)
            os.close(screen)
            captured.seek(0)
            os.write(2, NOISE.sub(b"", captured.read()))


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
