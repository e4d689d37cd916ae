"""Functions of a user's file, `FILE.py:NAME`, which a configuration may name: running one runs the file. A server
that draws, which gets the prompts, and the folder that gets its weights."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.schema import Config
from jaxpar.config.spelling import did_you_mean, quoted


def is_user_code(text: str) -> bool:
    """Whether a text names a function in a file."""
    return text.rpartition(":")[0].endswith(".py")


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


def refuse_stored_code(config: Config, overrides: Sequence[str], where: str) -> None:
    """Refuse code, a server or its folder in a stored configuration, unless the user names it again in `overrides`.

    Args:
        config: the configuration, with `overrides`.
        overrides: `section.key=value` of the user.
        where: the checkpoint or plan that has the configuration, for the message.

    Raises:
        UserError: a key names a function, a server or a folder that the user did not.
    """
    data, rl = config.data, config.rl
    named = {
        "data.path": [data.path or ""], "data.validation_path": [data.validation_path or ""],
        "rl.rewards": [*rl.rewards], "rl.environment": [rl.environment or ""], "rl.tools": rl.tools,
    }  # fmt: skip
    again = {one.partition("=")[0] for one in overrides}
    for key, texts in named.items():
        code = [text for text in texts if is_user_code(text)]
        if code and key not in again:
            raise UserError(
                f"{key}: {quoted(code[0])} in {where} is code, which a stored configuration does not get to run; "
                f"expected --set {key}=... that names it again, if you trust it"
            )
    if config.run.mirror is not None and "run.mirror" not in again:
        raise UserError(
            f"run.mirror: {quoted(config.run.mirror)} in {where} is a store, to which a stored configuration does not "
            "get to write; expected --set run.mirror=... that names it again, if you trust it, or null"
        )
    asked = {
        "url": "a server, to which a stored configuration does not get to send prompts",
        "key_file": "a file, whose contents a stored configuration does not get to send",
        "folder": "a folder, to which a stored configuration does not get to write weights",
    }
    for name, what in asked.items():
        key, value = f"rl.sampler.{name}", getattr(rl.sampler, name)
        if value is not None and key not in again:
            raise UserError(
                f"{key}: {quoted(value)} in {where} is {what}; expected --set {key}=... that names it again, if you "
                "trust it"
            )
