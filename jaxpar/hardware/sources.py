"""The source of a number in the model of time, which its annotation names.

    TREE: Annotated[float, cited("NCCL's cost model, src/graph/tuning.cc")] = 0.92

`python -m jaxpar.plan --show-model` lists all of them (`jaxpar.planner.report.numbers`).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

Kind = Literal["cited", "measured", "derived", "chosen", "assumed"]


class Source(NamedTuple):
    """Source of a number."""

    kind: Kind
    """`cited`: a paper and its table, a datasheet, the code of a library. `measured`: rows of a file of the
    repository, or a command of it. `derived`: bytes and operations of our programs. `chosen`: a limit or a
    tolerance, which is part of no time. `assumed`: nobody measured it."""
    text: str
    """The source, and what of it is assumed; begins with the file or the command where it was measured here."""


cited = partial(Source, "cited")
measured = partial(Source, "measured")
derived = partial(Source, "derived")
chosen = partial(Source, "chosen")
assumed = partial(Source, "assumed")
