"""The facts that the time of a layer depends on: its shape and how it is split."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import LoraConfig, ModelConfig
from jaxpar.cost.layout import Layout
from jaxpar.cost.matmul_quantization import MatmulQuantization
from jaxpar.cost.operations import Attention
from jaxpar.layers.declaration.adaptation import OFF
from jaxpar.layers.declaration.columns import side_columns
from jaxpar.layers.declaration.part import Matmuls
from jaxpar.memory.layer_shape import NOT_QUANTIZED, LayerShape, exchange_by
from jaxpar.mesh.parameters import ParamSpec


@dataclass(frozen=True)
class LayerCase:
    """The facts that a layer's time depends on, apart from hardware and mechanisms."""

    shape: LayerShape
    context_strategy: str
    quantization: MatmulQuantization | None = None
    """How its dense matmuls run in FP8; None where they run in the compute dtype."""
    magnitude_ranks: int = 1
    """Ranks over which the largest magnitude of a tensor is taken."""
    slices: int | Literal["auto"] = "auto"
    """Parts in which tokens are sent to their experts: `parallel.experts.slices`."""
    attention: Attention | None = None
    """The kernels of attention that run; None for `USUAL_ATTENTION`."""

    own_rows: str = "auto"
    """Treatment of rows of a rank's local experts: `parallel.experts.own_rows`."""
    expert_loop: bool = False
    """Whether products of experts run as a loop of plain XLA, for want of a kernel."""
    state_messages: str = "auto"
    """How context ranks pass on states: `parallel.overlap.state_messages`."""

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
        """Numbers per token of a residual stream."""
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
        """Numbers of a residual stream on this device."""
        return float(self.tokens * self.embed) / self.tensor

    @cached_property
    def parameters(self) -> int:
        """Weights of the layer's matrices, on this device before any sharding over data ranks; without experts."""
        return self._dense(self.shape.layer.matrices) + self.factors

    @cached_property
    def experts(self) -> int:
        """Weights of its experts on this device likewise: of those that the expert rank has."""
        return self._routed(self.shape.layer.matrices)

    @cached_property
    def joined(self) -> tuple[int, int]:
        """Messages of its matrices, and of those of its experts: XLA joins neighbours up to the size of the largest
        matrix (`layout.compiler_choices`)."""
        dense, routed = ([size([one]) for one in self.shape.layer.matrices] for size in (self._dense, self._routed))
        largest, messages = max(*dense, *routed, 1), list[int]()
        for sizes in (dense, routed):
            count, sent = 0, largest
            for size in filter(None, sizes):
                joins = sent + size <= largest
                count, sent = count + (not joins), size + joins * sent
            messages.append(max(1, count))
        return messages[0], messages[1]

    @cached_property
    def quantized_parameters(self) -> float:
        """The parameters among `parameters` that are stored, and gathered, as codes of 8 bits."""
        return self._stored(lambda group, quantization: quantization.quantizes(group), self._dense)

    @cached_property
    def quantized_experts(self) -> float:
        """The same of `experts`."""
        return self._stored(lambda group, quantization: group in self.shape.quantization.groups, self._routed)

    def _stored(
        self, quantized: Callable[[str, MatmulQuantization], bool], size: Callable[[list[ParamSpec]], int]
    ) -> float:
        """Weights that are stored as codes, of the matrices of quantized groups that are no products of two."""
        quantization = self.quantization
        if quantization is None or not quantization.once:
            return 0.0
        matrices = [
            part.weights[name]
            for part in self.shape.layer.parts
            for group in part.groups
            if quantized(group.name, quantization)
            for name in group.weights
            if not part.is_factored(name)
        ]
        return quantization.stored * size(matrices)

    @property
    def exact(self) -> LayerCase:
        """The same layer, multiplied in the compute dtype."""
        return replace(self, quantization=None, shape=replace(self.shape, quantization=NOT_QUANTIZED))

    def quantization_of(self, group: Matmuls) -> MatmulQuantization | None:
        """How a dense group of matmuls runs in FP8; None where it does not."""
        return self.quantization if self.quantization is not None and self.quantization.quantizes(group.name) else None

    def _dense(self, matrices: Iterable[ParamSpec]) -> int:
        """Weights on a device of those without experts. One of the two factors of a matrix, routers, and matrices to
        latent vectors are not split over tensor ranks."""
        full = split = 0
        for spec in matrices:
            if "experts" not in spec.axes and set(spec.axes) <= {"embed", "rank", "router", "latent"}:
                full += spec.size
            elif "experts" not in spec.axes:
                split += spec.size
        return full + split // self.tensor

    def _routed(self, matrices: Iterable[ParamSpec]) -> int:
        """Weights on a device of the matrices of experts."""
        return sum(spec.size for spec in matrices if "experts" in spec.axes) // (self.tensor * self.shape.expert)

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
        """The parameters among `parameters` that have gradients and are updated. Those of `experts` all are."""
        return self.factors if self.frozen else self.parameters


def layer_cases(model: ModelConfig, sequence: int, layout: Layout, lora: LoraConfig = OFF) -> dict[str, LayerCase]:
    """The case of a layer of each kind, in rows of `sequence` tokens."""
    attention, beside = dict(layout.attention), side_columns(model).width(layout.tensor)
    item = 4 if layout.precision == "float32" else 2
    cases = {}
    for kind, kind_model in kind_models(model).items():
        expert = 1 if kind_model.experts is None else layout.expert  # without experts all ways to split them are one
        exchange = exchange_by(kind_model, layout.expert_exchange, layout.expert_capacity, expert, layout.tensor)
        shape = LayerShape(
            kind_model, layout.microbatch, sequence, layout.context, layout.tensor, item, lora, expert,
            layout.expert_capacity, exchange, layout.imbalance, layout.exchange_dtype, layout.expert_quantization,
            beside,
        )  # fmt: skip
        cases[kind] = LayerCase(
            shape, layout.context_strategy, layout.matmul_quantization, layout.devices // layout.pipe,
            layout.expert_slices, attention.get(kind), layout.expert_own_rows, layout.expert_loop,
            layout.state_messages,
        )  # fmt: skip
    return cases
