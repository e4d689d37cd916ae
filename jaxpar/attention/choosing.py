"""Chooses an implementation from a registry, as a key of the configuration names it, and gives the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jaxpar.attention.request import AttentionRequest
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import ALL, kind_clause
from jaxpar.config.plan import Choice
from jaxpar.config.spelling import did_you_mean, join_or, quoted
from pallas_kernels.choice import Registry, Request, Unsupported, clauses


class Entry(Protocol):
    """An implementation in a registry."""

    @property
    def name(self) -> str:
        """Name in a configuration."""
        ...

    @property
    def supports(self) -> Callable[[AttentionRequest], str | None]:
        """Returns None if it supports the request, else the reason: a clause without a full stop."""
        ...


def choose(
    key: str, name: str, entries: Sequence[Entry], request: AttentionRequest, preference: str | None = None
) -> Choice:
    """The entry called `name`, or for `auto` the first that supports the request.

    Args:
        key: Configuration key that `name` is the value of, for errors.
        name: `auto` or the name of an entry.
        entries: The registry, in order of preference.
        request: The request.
        preference: The reason to prefer the first entry.

    Raises:
        UserError: If there is no such entry, if it does not support the request (the reason is repeated), or if under
            `auto` none does.
    """
    names = [entry.name for entry in entries]
    if name not in ("auto", *names):
        raise UserError(
            f"{key} is {name!r}; expected {join_or(['auto', *names])}{did_you_mean(name, ['auto', *names])}"
        )
    reasons = {entry.name: entry.supports(request) for entry in entries}
    refused = {entry: reason for entry, reason in reasons.items() if reason is not None}
    if name != "auto":
        if name in refused:
            raise UserError(f"{key} is {name!r}, which does not support this run: {refused[name]}")
        others = {other: refused.get(other, f"{key} names {name}") for other in names if other != name}
        return Choice(name, f"named by {key}", others)
    supported = [entry for entry in names if entry not in refused]
    if not supported:
        raise UserError(f"{key} is 'auto', but nothing supports this run: {'; '.join(map(': '.join, refused.items()))}")
    chosen = supported[0]
    others = {other: refused.get(other, f"{chosen} is preferred") for other in names if other != chosen}
    reason = "the first in order of preference that supports this run"
    if preference is not None and chosen == names[0]:
        reason = preference
    return Choice(chosen, reason, others)


def choose_kernel(registry: Registry, name: str, request: Request, key: str, kind: str = ALL) -> Choice:
    """The implementation of a registry of kernels called `name`, as the value of `key`, in the layers of a kind.

    Raises:
        UserError: If there is no such implementation, or it does not support the request (the reasons are repeated).
    """
    known = registry.names
    if name not in known:
        raise UserError(f"{key} is {quoted(name)}; expected {join_or(known)}{did_you_mean(name, known)}")
    try:
        chosen = registry.choose(name, request, named_by=f"{key} names")
    except Unsupported as error:
        reasons = error.refused
        why = clauses(reasons) if len(reasons) > 1 else next(iter(reasons.values()))
        asked = "this run" if kind == ALL else f"the layers{kind_clause(kind)}"
        raise UserError(f"{key} is {name!r}, which does not support {asked}: {why}") from None
    return Choice(chosen.name, chosen.reason, chosen.rejected)
