"""What the bytes and the costs of a layer's activations depend on: one device's share of one microbatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxpar.config.counting import gated, head_dim, kv_heads
from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema import Config

FLOAT32_BYTES = 4
ITEM_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
"""Bytes of one number, by dtype."""


@dataclass(frozen=True)
class LayerShape:
    """A decoder layer on one device, for one microbatch."""

    rows: int
    """Rows of a microbatch that a device takes part in."""
    sequence: int
    """Tokens of a whole row."""
    embed: int
    heads: int
    """Of the whole model, as all counts here: `tensor` splits them."""
    kv_heads: int
    head_dim: int
    mlp: int
    gated: bool
    """Whether the feed-forward has a gate (SwiGLU, GeGLU)."""
    norm_placement: str = "pre"
    """`pre`, `post` or `sandwich`, as `model.norm_placement`."""
    context: int = 1
    """Ranks that a row's tokens are split over."""
    tensor: int = 1
    """Ranks that heads and hidden width are split over, and between matmuls the sequence (sequence parallelism)."""
    window: int | None = None
    """Tokens that attention sees at most; None means all before."""
    item_bytes: int = 2
    """Bytes of one number of an activation; `attention_lse` is float32 whatever this is."""

    @property
    def tokens(self) -> int:
        """Tokens inside attention and feed-forward."""
        return self.rows * self.sequence // self.context

    @property
    def part_tokens(self) -> int:
        """Tokens between blocks, where sequence parallelism splits them."""
        return self.tokens // self.tensor

    @property
    def query_width(self) -> int:
        """Numbers per token of the query heads of a device."""
        return self.heads * self.head_dim // self.tensor

    @property
    def kv_width(self) -> int:
        """Numbers per token of its key heads, or value heads: one head where there are fewer than ranks."""
        return max(1, self.kv_heads // self.tensor) * self.head_dim

    @property
    def hidden_width(self) -> int:
        """Numbers per token of its part of the feed-forward."""
        return self.mlp // self.tensor

    @property
    def keys_per_query(self) -> float:
        """Tokens that a token attends to on average, under a causal mask (and `window`), in a row without documents."""
        seen = self.sequence if self.window is None else min(self.window, self.sequence)
        return (seen * (seen + 1) / 2 + (self.sequence - seen) * seen) / self.sequence


def layer_shape(config: Config, axes: AxisSizes, rows: int) -> LayerShape:
    """The shape of a layer of `config` on a mesh of `axes`, with so many rows per device and microbatch."""
    model = config.model
    return LayerShape(
        rows=rows,
        sequence=config.data.sequence_length,
        embed=model.embed,
        heads=model.heads,
        kv_heads=kv_heads(model),
        head_dim=head_dim(model),
        mlp=model.mlp,
        gated=gated(model),
        norm_placement=model.norm_placement,
        context=axes.context,
        tensor=axes.tensor,
        window=model.window,
        item_bytes=ITEM_BYTES[config.precision.compute],
    )


def activation_bytes(shape: LayerShape) -> dict[str, int]:
    """Bytes of each named activation of a layer, on one device and for one microbatch, in the order of computation.

    What lies between the blocks is split over the tensor ranks by sequence, what lies inside them by heads or hidden
    width; `attention_lse` is one float32 per query head and token.
    """
    between = shape.part_tokens * shape.embed * shape.item_bytes
    query = shape.tokens * shape.query_width * shape.item_bytes
    key = shape.tokens * shape.kv_width * shape.item_bytes
    hidden = shape.tokens * shape.hidden_width * shape.item_bytes
    sizes = {
        "layer_input": between,
        "attention_input": between,
        "query": query,
        "key": key,
        "value": key,
        "attention_output": query,
        "attention_lse": shape.tokens * (shape.heads // shape.tensor) * FLOAT32_BYTES,
        "attention_projected": between,
        "attention_residual": between,
        "mlp_input": between,
        "mlp_gate": hidden,
        "mlp_up": hidden,
        "mlp_activated": hidden,
        "mlp_hidden": hidden,
        "mlp_projected": between,
    }
    without = {
        "pre": {"attention_projected", "mlp_projected"},
        "post": {"attention_input", "attention_residual"},
        "sandwich": {"attention_residual"},
    }[shape.norm_placement]
    if not shape.gated:
        without |= {"mlp_gate", "mlp_activated"}
    return {name: size for name, size in sizes.items() if name not in without}
