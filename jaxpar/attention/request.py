"""A run's request for attention: everything on which the choice of an implementation may depend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionRequest:
    """Attention of one layer on one device."""

    platform: str
    """The `jax.Device.platform`: `cpu` or `gpu`."""
    dtype: str
    """Dtype of queries, keys and values."""
    heads: int
    """Query heads on the device."""
    kv_heads: int
    """Key and value heads on the device."""
    head_dim: int
    """Width of a query and of a key."""
    packed: bool
    """Whether documents that share a row are kept apart."""
    window: int | None
    """Tokens that a query sees, itself included; None means no limit. As many after it if not `causal`."""
    softcap: float | None
    """Cap of the scores."""
    prefix: bool
    """Whether the first indices of a row are seen by all of its queries."""
    sequence: int
    """Tokens per row, over all devices."""
    context: int
    """Devices that a row's sequence is split over."""
    causal: bool = True
    """Whether a query sees no later key."""
    value_dim: int | None = None
    """Width of a value and of the output; None means that of a query."""
    rows: int = 1
    """Rows of a microbatch on a device."""
    attends_again: bool = False
    """Whether the backward of a layer recomputes attention's output."""
    sinks: bool = False
    """Whether heads have sinks, which need the log-sum-exp and its derivative."""
    ulysses: int = 1
    """Neighbouring context ranks that exchange sequence for heads under `usp`."""
    permutes: bool = True
    """Whether layers may permute: not in the branching ticks of a pipeline."""
    full_rows: bool = True
    """Whether queries and keys on a device are those of whole rows, in their order."""
    deterministic: bool = False
    """Whether results have to be the same bits in every run."""
    compute_capability: float | None = None
    """Compute capability of the GPU (9.0 is Hopper); None where there is none."""
    gpu: str = ""
    """Name of the GPU, as `jax.Device.device_kind` has it."""
    processors: int | None = None
    """Streaming multiprocessors of the GPU."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element of queries, keys and values."""
        return 4 if self.dtype == "float32" else 2

    @property
    def value_width(self) -> int:
        """Width of the values: `value_dim`, or its default."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries of a layer and of the output, of a device's part of the rows."""
        return self._bytes(self.heads)

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys of a layer and of the values, of a device's part of the rows."""
        return self._bytes(self.kv_heads)

    def _bytes(self, heads: int) -> int:
        widths = self.head_dim + self.value_width
        return self.rows * (self.sequence // self.context) * heads * widths * self.itemsize
