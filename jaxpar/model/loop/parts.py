"""Nested dicts taken apart by a mask and put together again."""

from __future__ import annotations

from typing import Any

from jaxpar.mesh.parameters import Nested


def select(tree: Nested[Any], mask: Nested[Any], wanted: bool) -> Nested[Any]:
    """The leaves of `tree` whose `mask` is `wanted`, as nested dicts without empty ones."""
    found = {}
    for name, entry in tree.items():
        if isinstance(entry, dict):
            if part := select(entry, mask[name], wanted):
                found[name] = part
        elif mask[name] == wanted:
            found[name] = entry
    return found


def merge(under: Nested[Any], over: Nested[Any]) -> Nested[Any]:
    """Nested dicts with the leaves of both; those of `over` where both have one."""
    both = dict(under)
    for name, entry in over.items():
        both[name] = merge(both[name], entry) if isinstance(entry, dict) and name in both else entry
    return both
