"""A request for attention: everything on which the choice of an implementation may depend."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from pallas_kernels import choice
from pallas_kernels.masks import Mask


@dataclass(frozen=True)
class Request(choice.Request):
    """Attention of some queries over some keys on one device."""

    heads: int
    kv_heads: int
    width: int
    """Width of a query and a key."""
    value_width: int
    mask: Mask = field(default_factory=Mask)
    batch: int = 1
    queries: int = 1
    """Queries per row."""
    keys: int = 1
    """Keys per row."""
    softcap: float | None = None
    scale: float | None = None
    """Factor of the scores; None means one above 0."""
    lse: bool = False
    """Whether the log-sum-exp is wanted too, with its derivative."""
    full_rows: bool = True
    """Whether queries and keys have the same indices, in their order."""
    runs: bool = False
    """Whether the tokens of each document are neighbours."""
    compares: bool = False
    """Whether the caller compares with plain XLA, on the device at hand, what asks for it (`comparison`)."""
    deterministic: bool = False
    """Whether output and gradients have to be the same bits in every run."""

    @property
    def dense(self) -> bool:
        """Whether nothing but causality empties a block."""
        return self.mask.window is None and not self.mask.segmented

    @property
    def shapes(self) -> str:
        """Shapes of query, key and value, for messages."""
        query = (self.batch, self.queries, self.heads, self.width)
        key = (self.batch, self.keys, self.kv_heads, self.width)
        return f"query {query}, key {key} and value {(*key[:3], self.value_width)}"

    @property
    def elements(self) -> int:
        """Number of elements of the largest of query, key, value and output."""
        widest = max(self.width, self.value_width)
        return max(
            prod((self.batch, self.queries, self.heads, widest)), prod((self.batch, self.keys, self.kv_heads, widest))
        )

    def __str__(self) -> str:
        kinds = [name for name in ("causal", "segmented", "prefix") if getattr(self.mask, name)]
        kinds += [] if self.mask.window is None else [f"window {self.mask.window}"]
        kinds += [] if self.softcap is None else [f"softcap {self.softcap:g}"]
        kinds += [] if self.scale is None else [f"scale {self.scale:g}"]
        return f"{self.shapes} in {self.dtype} on {self.device_text}, {', '.join(kinds) or 'no mask'}"
