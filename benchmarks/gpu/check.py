"""The check of a kernel: its results on a case beside those of float64, as a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import sentence


def add_check(
    journal: Journal, kernel: str, case: str, refused: str | None, compare: Callable[[], dict[str, Any]]
) -> None:
    """Adds the row of a case: why the registry does not support it, what `compare` found, or how that failed."""
    row = {"kernel": kernel, "case": case}
    if refused is not None:
        journal.add("check", **row, refused=refused)
        return
    journal.begin(f"{kernel}: {case}")
    try:
        journal.add("check", **row, **compare())
    except Exception as error:  # a row reports what went wrong, and the others are still checked
        journal.add("check", **row, failed=sentence(error))


def compared(
    names: Sequence[str], have: Sequence[Any], again: Sequence[Any], plain: Sequence[Any], wanted: Sequence[np.ndarray],
    *, varies: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Errors of results by name, and whether they pass: at most twice those of the plain form in the same dtype, and
    the same bits `again` but for those that `varies` names."""
    errors = {name: error_of(a, b) for name, a, b in zip(names, have, wanted, strict=True)}
    allowed = {name: 2 * error_of(a, b) + 1e-6 for name, a, b in zip(names, plain, wanted, strict=True)}
    differ = [name for name, a, b in zip(names, have, again, strict=True) if not np.array_equal(a, b)]
    passed = set(differ) <= set(varies) and all(errors[name] <= allowed[name] for name in names)
    return {"errors": errors, "allowed": allowed, "passed": passed, "same_bits": not differ, "differ": differ}


def error_of(have: Any, wanted: np.ndarray) -> float:
    """max|difference| / max|wanted|; infinite where something is not finite, but for -inf where that is wanted."""
    have, nothing = np.asarray(have, np.float64), np.isneginf(wanted)
    if not (np.isneginf(have) == nothing).all():
        return float("inf")
    have, wanted = (np.where(nothing, 0.0, x) for x in (have, wanted))
    difference = np.abs(have - wanted)
    return float(difference.max() / max(np.abs(wanted).max(), 1e-30)) if np.isfinite(difference).all() else float("inf")
