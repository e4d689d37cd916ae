"""Folders that a client may name in a request: those inside folders that the operator named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxpar.config.spelling import quoted
from jaxpar.serving.refusals import Refusal


def folder_within(path: object, folders: Sequence[Path], key: str, option: str, *, directly: bool = False) -> Path:
    """The folder at the path of a request's `key`, links resolved.

    Args:
        path: as the client sent it.
        folders: resolved folders of the server's `option`, in one of which it must be.
        directly: whether it must be there itself, not in a folder in between.

    Raises:
        Refusal: it is no folder, or is elsewhere.
    """
    refusal = Refusal(400, f"{key}: got {quoted(path, 120)}; expected a folder in that of {option}", key)
    if not isinstance(path, str):
        raise refusal
    try:
        folder = Path(path).resolve()
        above = folder.parents[:1] if directly else folder.parents
        if not folder.is_dir() or not any(parent in above for parent in folders):
            raise refusal
    except (OSError, ValueError) as error:
        raise refusal from error
    return folder
