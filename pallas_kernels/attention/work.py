"""The products of a kernel launch, stored in the name of the scope in which it runs.

A compiled program has the names of scopes at its custom calls, and nothing else that identifies the mask of a kernel or
which gradients it makes: whoever reads a program or a profile reads the name.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.masks import Mask

FORWARD = ("scores", "output")
"""Products of a forward: of queries and keys, and of weights and values."""
BACKWARD = ("scores", "slopes", "dv", "dk", "dq")
"""Products of a backward in one launch: the scores again, the gradient of the weights, and those of the inputs."""
_OF_VALUES = ("output", "slopes", "dv")
"""Products along, or of, the width of a value."""
_SCOPE = re.compile(r"attention((?:\.[a-z]+)+?)(\.causal)?(?:\.window(\d+))?")
_VISITED = re.compile(r"attention_blocks\.(\d+)of(\d+)")


@dataclass(frozen=True)
class Work:
    """Matrix products of a launch, and between which pairs of queries and keys."""

    products: tuple[str, ...]
    """Names in `FORWARD` or `BACKWARD`."""
    causal: bool = True
    window: int | None = None

    @property
    def name(self) -> str:
        """Name of the scope, such as `attention.scores.output.causal.window4096`."""
        kinds = [] if not self.causal else ["causal"]
        kinds += [] if self.window is None else [f"window{self.window}"]
        return ".".join(("attention", *self.products, *kinds))

    @classmethod
    def named(cls, name: str) -> Work | None:
        """The work in the name of a scope; None for another scope."""
        match = _SCOPE.fullmatch(name)
        if (
            match is None
            or not (products := tuple(match[1][1:].split(".")))
            or not {*products} <= {*FORWARD, *BACKWARD}
        ):
            return None
        return cls(products, match[2] is not None, None if match[3] is None else int(match[3]))

    @property
    def repeated(self) -> tuple[str, ...]:
        """Products that something else made before: in a backward the scores, and beside a launch for dq the slopes."""
        if "output" in self.products:
            return ()
        return ("scores", "slopes") if "dq" not in self.products and "slopes" in self.products else ("scores",)

    def flops(self, product: str, pairs: float, width: int, value_width: int) -> float:
        """FLOPs of one of the products over some pairs; a multiply-add is two."""
        return 2.0 * pairs * (value_width if product in _OF_VALUES else width)

    def pairs(self, queries: int, keys: int) -> float:
        """Kept pairs of one row and head, if queries are spread evenly over the indices of the keys.

        Exact where queries and keys are a whole row. Where a rank has some of the queries, or one of the parts of a
        ring, it is the mean over ranks and parts; in a ring with a window, only about that. What is known at run time
        alone, documents and prefixes, counts as if it were not there.
        """
        seen = keys if self.window is None else min(self.window, keys)
        visible = seen * (seen + 1) // 2 + (keys - seen) * seen
        if not self.causal:
            visible += visible - keys
        return queries * visible / keys


def multiplies(mask: Mask, *products: str) -> Any:
    """The scope to launch a kernel in that makes these products."""
    return jax.named_scope(Work(products, mask.causal, mask.window).name)


def visited_blocks(causal: bool, window: int | None, keys: int, query_block: int, kv_block: int) -> int:
    """Pairs of blocks of queries and keys of a row of which the mask keeps some; documents and prefixes count as if
    they were not there."""
    visited = 0
    for first in range(0, keys, query_block):
        last = min(keys, first + query_block) - 1
        low = 0 if window is None else max(0, first - window + 1)
        high = last if causal else keys - 1 if window is None else min(keys - 1, last + window - 1)
        visited += high // kv_block - low // kv_block + 1
    return visited


def visiting(mask: Mask, keys: int, query_block: int, kv_block: int) -> AbstractContextManager[object]:
    """A scope for the choice whether a pair of blocks is computed, which states the pairs that are, of all.

    Exact where queries are a whole row; else the mean, as in `Work.pairs`.
    """
    visited = visited_blocks(mask.causal, mask.window, keys, query_block, kv_block)
    return jax.named_scope(f"attention_blocks.{visited}of{-(-keys // query_block) * -(-keys // kv_block)}")


def visited_share(scope: str) -> float | None:
    """The share of pairs of blocks that the name of a scope states; None for another scope."""
    match = _VISITED.fullmatch(scope)
    return None if match is None else int(match[1]) / int(match[2])
