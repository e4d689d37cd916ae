"""Functions of a user's own file, `FILE.py:NAME`: running them runs that file.

The user's own configuration or command names them: `jaxpar.config.user_code` refuses those of stored ones.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.spelling import did_you_mean, quoted


def load_function(text: str, key: str, what: str = "function") -> Callable[..., Any]:
    """The function, or class, that `FILE.py:NAME` names. Raises `UserError` where there is none, or the file fails."""
    file, _, name = text.rpartition(":")
    path = user_path(file, f"{key}: {quoted(text)}")
    spec = importlib.util.spec_from_file_location(f"jaxpar_user_{abs(hash(str(path)))}", path)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look for it there
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise UserError(f"{key}: {quoted(text)}: there is no file {quoted(str(path))}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{key}: {quoted(text)} fails when it is imported ({type(error).__name__}: {error})") from error
    functions = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
    if name not in functions:
        near = did_you_mean(name, functions) or f"; it has {', '.join(functions) or 'none'}"
        raise UserError(f"{key}: {quoted(file)} has no {what} {quoted(name)}{near}")
    return getattr(module, name)
