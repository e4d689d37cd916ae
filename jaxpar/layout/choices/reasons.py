"""The reason for a choice in words, for tables of a plan."""

from __future__ import annotations

from pallas_kernels.choice import NEEDS_GPU


def why(reason: str, rejected: dict[str, str]) -> str:
    """The reason for a choice, and against each of the others; names with one reason share a clause.

    On a CPU nothing is said about kernels for GPUs.
    """
    names: dict[str, list[str]] = {}
    for name, against in rejected.items():
        if not against.startswith(NEEDS_GPU):
            names.setdefault(against, []).append(name)
    clauses = (
        f"not {', '.join(which)}: {against if len(which) == 1 else _of_several(against)}"
        for against, which in names.items()
    )
    return "; ".join([reason, *clauses])


def _of_several(against: str) -> str:
    """A reason that begins with "it", of several."""
    return f"each {against.removeprefix('it ')}" if against.startswith("it ") else against
