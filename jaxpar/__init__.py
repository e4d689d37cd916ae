"""jaxpar: train language models on any mesh of GPUs with JAX.

`Trainer` and `load_config` are the notebook's way in; `jaxpar train` (or `python -m jaxpar.train`) is the shell's. Both
are imported lazily, so that `jaxpar train --help` does not pay for importing JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxpar.config import Config, load_config
    from jaxpar.training.run.trainer import Trainer

__version__ = "0.1.0"
__all__ = ["Config", "Trainer", "__version__", "load_config"]

_MODULE_OF = {"Trainer": "jaxpar.training.run.trainer", "Config": "jaxpar.config", "load_config": "jaxpar.config"}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        import importlib

        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'jaxpar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
