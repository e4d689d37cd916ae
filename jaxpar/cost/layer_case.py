"""What the time of a layer depends on: its shape and how it is split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxpar.config.schema import LoraConfig, ModelConfig
from jaxpar.cost.mechanisms import Attention
from jaxpar.layers.lora import OFF
from jaxpar.memory.layer_shape import NO_CODES, ExpertCodes, LayerShape, exchange_by


@dataclass(frozen=True)
class LayerCase:
    """What a layer's time depends on, apart from hardware and mechanisms."""

    shape: LayerShape
    context_strategy: str
    sequence_parallel: bool
    float8: bool
    slices: int | Literal["auto"] = "auto"
    """Parts in which tokens are sent to their experts: `parallel.expert_slices`."""
    attention: Attention | None = None
    """The kernels of attention that run; None for those of the software (`Mechanisms.attention`)."""

    @property
    def tokens(self) -> int:
        """Tokens inside the blocks."""
        return self.shape.tokens

    @property
    def part(self) -> int:
        """Tokens of a row on this device."""
        return self.shape.sequence // self.shape.context

    @property
    def embed(self) -> int:
        """Numbers per token of the residual stream."""
        return self.shape.embed

    @property
    def item(self) -> int:
        """Bytes of an activation's number."""
        return self.shape.item_bytes

    @property
    def tensor(self) -> int:
        """Ranks that share matrices."""
        return self.shape.tensor

    @property
    def between(self) -> float:
        """Numbers of the residual stream on this device."""
        return float(self.tokens * self.embed) / (self.tensor if self.sequence_parallel else 1)

    @cached_property
    def parameters(self) -> int:
        """Weights of the layer's matrices, on this device before any sharding over data ranks; without experts."""
        # Whole on every tensor rank are one of the two factors of a matrix, routers, and matrices to latent vectors.
        dense = [spec for spec in self.shape.layer.matrices if "experts" not in spec.axes]
        whole = sum(spec.size for spec in dense if set(spec.axes) <= {"embed", "rank", "router", "latent"})
        return whole + (sum(spec.size for spec in dense) - whole) // self.tensor + self.factors

    @cached_property
    def experts(self) -> int:
        """Weights of its experts on this device likewise: of those that the expert rank has."""
        size = sum(spec.size for spec in self.shape.layer.matrices if "experts" in spec.axes)
        return size // (self.tensor * self.shape.expert)

    @property
    def frozen(self) -> bool:
        """Whether low-rank factors alone have gradients and are updated."""
        return self.shape.lora.rank is not None

    @cached_property
    def factors(self) -> int:
        """Weights of the layer's low-rank factors, on this device likewise."""
        shape, parts = self.shape, self.shape.layer.parts
        names = [(part, name) for part in parts for group in part.groups for name in group.weights]
        return sum(inputs * outputs for part, name in names for inputs, outputs in shape.factors(part, name))

    @property
    def trained(self) -> int:
        """Those of `parameters` that have gradients and are updated. Those of `experts` all are."""
        return self.factors if self.frozen else self.parameters


def layer_case(
    model: ModelConfig, sequence: int, rows: int, tensor: int, context: int, strategy: str, parallel: bool,
    precision: str, lora: LoraConfig = OFF, expert: int = 1, exchange: str = "auto", capacity: float = 1.0,
    imbalance: float = 1.0, slices: int | Literal["auto"] = "auto", exchange_wire: str | None = None,
    codes: ExpertCodes = NO_CODES, attention: Attention | None = None,
) -> LayerCase:  # fmt: skip
    """The case of a layer of `model`, whose layers are all alike."""
    item = 4 if precision == "float32" else 2
    exchange = exchange_by(model, exchange, capacity, expert, tensor)
    shape = LayerShape(
        model, rows, sequence, context, tensor, item, lora, expert, capacity, exchange, imbalance,
        exchange_wire, codes,
    )  # fmt: skip
    return LayerCase(shape, strategy, parallel and tensor > 1, precision == "float8", slices, attention)
