"""The error of a registry if no allowed implementation supports a request."""

from __future__ import annotations

from collections.abc import Mapping


class Unsupported(ValueError):
    """Says what was named, what was asked for, and why each implementation refused.

    Args:
        what: such as `attention`.
        name: the implementation or family that was named.
        request: what was asked for; its `str` goes into the message.
        refused: a reason by implementation.
    """

    def __init__(self, what: str, name: str, request: object, refused: Mapping[str, str]):
        self.refused = dict(refused)
        super().__init__(f"{what} by {name!r} does not support {request}: {clauses(refused)}")


def clauses(refused: Mapping[str, str]) -> str:
    """Reasons in one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in refused.items())
