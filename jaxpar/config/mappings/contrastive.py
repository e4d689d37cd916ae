"""The mapping `loss.contrastive`: a term over relations of a knowledge graph, beside the loss of masked tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, SHARE, at_least


@dataclass(frozen=True)
class ContrastiveConfig:
    """A contrastive term over relations between spans of a row (CKBERT, arXiv:2210.05287)."""

    weight: Annotated[float, at_least(0, 1e6)] = 0.0
    """Factor of the term; 0 leaves it out. `python -m jaxpar.prepare --triples` marks the relations."""
    temperature: Annotated[float, POSITIVE] = 0.1
    """Divisor of the cosine of two spans."""
    hop_decay: Annotated[float, SHARE] = 0.5
    """Weight of a relation of two hops, where that of one has 1; of three hops its square, and so on."""
    relations: dict[str, float] = field(default_factory=dict, hash=False)
    """Weights of relations by name, at least 0: `{treats: 2, see_also: 0}`; 1 for others. A row's term is the weighted
    sum over its relations, divided by the number of those whose weight is not 0."""
    most: Annotated[int, at_least(1, 1024)] = 32
    """Relations of a row that are used, the first ones."""
