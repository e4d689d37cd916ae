"""JAX's names of ops: paths of scopes and primitives, such as `jit(f)/transpose(jvp(gather))/all_gather`."""

from __future__ import annotations

import re

RECOMPUTED = ("rematted_computation", "recompute")
"""Scopes of work that runs a second time: JAX's, and one for kernels that recompute inside their derivative."""

_WRAPPER = re.compile(r"\w+\((.*)\)$")


def segments(op_name: str) -> list[str]:
    """Parts of the path."""
    return _split(op_name, "/")


def innermost(segment: str) -> str:
    """A scope's name without JAX's wrappers: `f` of `transpose(jvp(f))`."""
    while match := _WRAPPER.match(segment):
        segment = match[1]
    return segment


def scopes(op_name: str) -> list[str]:
    """All scopes of the path without JAX's wrappers, outermost first."""
    return [innermost(segment) for segment in segments(op_name)]


def recomputed(op_name: str) -> bool:
    """Whether JAX's scopes mark this as recomputed for the backward pass."""
    return not set(RECOMPUTED).isdisjoint(scopes(op_name))


def combined_names(op_name: str) -> list[str]:
    """The names that the name of an op made of several lists, as `prefix/(a:b:c)`; the name itself otherwise."""
    *prefix, last = segments(op_name)
    if not (last.startswith("(") and last.endswith(")")):
        return [op_name]
    parts = [name for part in _split(last[1:-1], ":") for name in combined_names(part)]
    return ["/".join([*prefix, part]) for part in parts]


def _split(text: str, separator: str) -> list[str]:
    """Parts of `text` between separators that stand outside parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
