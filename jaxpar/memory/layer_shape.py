"""The shape of a layer on one device for one microbatch: what bytes and costs of its activations depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from types import MappingProxyType

from jaxpar.config.counting import Chunk, Reach, head_dim, kv_heads, reach, streams_of, value_dim
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema import Config, LoraConfig, ModelConfig
from jaxpar.layers.declaration.activations import LAYER_INPUT, Activation
from jaxpar.layers.declaration.adaptation import OFF, adaptation
from jaxpar.layers.declaration.columns import side_columns
from jaxpar.layers.declaration.part import Layer, Matmuls, Part
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.experts.messages import exchange_of, room_of, row_room
from jaxpar.mesh.parameters import ParamSpec

FLOAT32_BYTES = 4
ITEM_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
"""Bytes of one number, by dtype."""


SPLIT = frozenset(
    {"heads", "linear_heads", "linear_key_heads", "mlp", "expert_mlp", "shared_mlp", "per_layer", "laurel"}
)
"""Logical dims that tensor ranks split evenly; a key head that ranks share is on each of them."""


ROUTED = "routed"
"""The dim of rows that experts multiply, several for each token."""
RECEIVED = "received"
"""The dim of rows as they arrive from the ranks of their tokens, before one is copied for several experts."""


@dataclass(frozen=True)
class ExpertQuantization:
    """Quantization of the routed experts' matmuls."""

    groups: tuple[str, ...] = ()
    """The groups of matmuls that are quantized."""
    by_kernel: bool = False
    """Whether a kernel multiplies the codes of outputs and gradients of rows; else what they stand for is multiplied,
    in the compute dtype."""
    gradients_by_kernel: bool = False
    """The same of gradients of matrices."""


NOT_QUANTIZED = ExpertQuantization()


@dataclass(frozen=True)
class LayerShape:
    """A decoder layer on one device, for one microbatch."""

    model: ModelConfig
    """A model whose layers are all of this kind: see `kind_model`."""
    rows: int
    """Rows of a microbatch that a device processes a part of."""
    sequence: int
    """Tokens of a whole row."""
    context: int = 1
    """Ranks that a row's tokens are split over."""
    tensor: int = 1
    """Ranks that heads and hidden width are split over, and between matmuls the sequence (sequence parallelism)."""
    item_bytes: int = 2
    """Bytes of one number of an activation in compute dtype."""
    lora: LoraConfig = OFF
    """Low-rank factors, which are trained alone if there are any."""
    expert: int = 1
    """Ranks that experts are split over."""
    capacity: float = 1.0
    """Rows that such a rank has room for, as a multiple of an even share: `parallel.experts.capacity`."""
    exchange: str = "all_to_all"
    """Exchange of tokens with the ranks of their experts: `jaxpar.layers.experts.messages.MESSAGES`."""
    imbalance: float = 1.0
    """Rows of the rank with the most, relative to the mean: `parallel.experts.imbalance`."""
    exchange_dtype: str | None = None
    """Format of tokens on their way to experts: `parallel.quantized.tokens`."""
    quantization: ExpertQuantization = NOT_QUANTIZED

    beside: int = 0
    """Columns beside the residual stream (`jaxpar.layers.declaration.columns`)."""

    def expert_item(self, group: str) -> int:
        """Bytes of a number that outputs and gradients of rows of a group of routed experts are products of."""
        return 1 if self.quantization.by_kernel and group in self.quantization.groups else self.item_bytes

    def expert_gradient_item(self, group: str) -> int:
        """Bytes of a number that gradients of matrices of such a group are products of."""
        return 1 if self.quantization.gradients_by_kernel and group in self.quantization.groups else self.item_bytes

    @cached_property
    def layer(self) -> Layer:
        """The declaration of the layer."""
        return declare_layer(self.model)

    @cached_property
    def _adapted(self) -> Mapping[str, Part]:
        """The parts of the layer with the weights that are added to them, by name."""
        return {part.name: adaptation(self.lora).part(part) for part in self.layer.parts}

    @property
    def embed(self) -> int:
        """Numbers per token of a residual stream."""
        return self.model.embed

    @property
    def stream(self) -> int:
        """Numbers per token between two layers: of all residual streams, and beside them."""
        return self.embed * streams_of(self.model) + self.beside

    @property
    def tokens(self) -> int:
        """Tokens inside attention and feed-forward."""
        return self.rows * self.sequence // self.context

    @property
    def part_tokens(self) -> int:
        """Tokens between blocks, where sequence parallelism splits them."""
        return self.tokens // self.tensor

    @property
    def kv_heads(self) -> int:
        """Key heads of a device, or value heads: one, where there are fewer than ranks."""
        return max(1, kv_heads(self.model) // self.tensor)

    @cached_property
    def _dims(self) -> Mapping[str, int]:
        """Size of each logical dim, before tensor ranks split those of `SPLIT`."""
        model = self.model
        return {
            "embed": model.embed, "streams": streams_of(model), "stream": self.stream, "heads": model.heads,
            "kv_heads": self.kv_heads, "head_dim": head_dim(model), "value_dim": value_dim(model), "mlp": model.mlp,
        } | self._latent_dims | {name: size for part in self.layer.parts for name, size in part.dims}  # fmt: skip

    @property
    def _latent_dims(self) -> dict[str, int]:
        latent = self.model.latent_attention
        if latent is None:
            return {}
        return {"kv_latent": latent.kv_rank + latent.rope_dim, "query_latent": latent.query_rank or 0}

    @property
    def routed_rows(self) -> int:
        """Rows that the experts of a device have room for."""
        if self.model.experts is None:
            return 0
        if self.exchange == "all_gather" and self.expert > 1:
            return room_of(self.tokens * self.expert * self.model.experts.per_token, self.expert, self.capacity)
        return self.tensor * self.expert * self._assignment_room

    @property
    def received_rows(self) -> int:
        """Rows that a device has room for as they arrive from the ranks of their tokens."""
        if self.model.experts is None:
            return 0
        if self.exchange == "all_gather":
            return self.tokens * self.expert
        return self.tensor * self.expert * self._row_room

    @property
    def sorted_bytes(self) -> int:
        """Bytes of the rows that the experts of a device multiply, in the order of experts: they are not kept."""
        return self.routed_rows * self.embed * self.item_bytes

    @property
    def _assignment_room(self) -> int:
        """Assignments that a rank's tokens have room for in each list, by `all_to_all`."""
        assert self.model.experts is not None, "a layer with experts"
        return room_of(self.part_tokens * self.model.experts.per_token, self.expert, self.capacity)

    @property
    def _row_room(self) -> int:
        """Rows that they have room for in each list."""
        assert self.model.experts is not None, "a layer with experts"
        return row_room(self.part_tokens, self._assignment_room, self.model.experts, self.expert, self.capacity)

    @property
    def fullest(self) -> float:
        """Rows of the fullest rank, relative to the mean; 1 where experts are not split."""
        return min(self.imbalance, self.expert)

    @property
    def rounds(self) -> int:
        """Rounds of an exchange that the fullest rank needs."""
        return ceil(self.fullest / min(self.capacity, self.expert))

    def width(self, dims: Iterable[str]) -> int:
        """Numbers of an array of `dims` on a device."""
        dims = tuple(dims)
        return prod(self._dims[dim] for dim in dims) // (self.tensor if SPLIT & set(dims) else 1)

    def matrix(self, spec: ParamSpec) -> tuple[int, int]:
        """Inputs and outputs of a matrix on a device, or of that of each expert."""
        dims = list(zip(spec.axes, spec.shape, strict=True))[spec.stack :]
        return self._side(dims[: spec.inputs]), self._side(dims[spec.inputs :])

    def joined(self, part: Part, group: Matmuls) -> list[tuple[int, int]]:
        """Outputs and inputs of the matrices of a group, concatenated, that are no products of two; none without."""
        unfactored = [self.matrix(part.weights[name]) for name in group.weights if not part.is_factored(name)]
        return [(sum(n for _, n in unfactored), unfactored[0][0])] if unfactored else []

    def copies(self, spec: ParamSpec) -> int:
        """Matrices of a weight on a device: one, or one for each of its experts."""
        return spec.routed // self.expert if spec.routed else 1

    def _side(self, dims: list[tuple[str, int]]) -> int:
        """Numbers of some dims of a weight on a device; the rank between two factors is not split."""
        split = self.tensor if SPLIT & {name for name, _ in dims} else 1
        return prod(self.kv_heads if name == "kv_heads" else size for name, size in dims) // split

    def inside(self, part: Part, group: Matmuls) -> int:
        """Numbers of a token that a group's matmuls make or read inside its part, on a device."""
        names = [part.factors_of(name)[-1 if group.inward else 0] for name in group.weights]
        return sum(self.matrix(part.weights[name])[group.inward] for name in names)

    def factors(self, part: Part, name: str) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs on a device of the factors of a matrix; none if it has none."""
        adapted = self._adapted[part.name]
        term = adapted.term(name)
        return () if term is None else tuple(self.matrix(adapted.weights[one]) for one in (term.first, term.second))

    def rows_of(self, part: Part, group: Matmuls) -> int:
        """Rows that a group of matmuls multiplies on a device: tokens, a tensor rank's part of them, or those that are
        sent to experts."""
        if group.between:
            return self.part_tokens
        first = part.weights[part.factors_of(group.weights[0])[0]]
        return self.routed_rows if first.routed else self.tokens

    def gathered(self, part: Part, group: Matmuls) -> float:
        """Width of what tensor ranks gather before a group inward, or scatter after one outward, over that of the
        residual stream."""
        if group.between:
            return 0.0
        first = part.weights[part.factors_of(group.weights[0])[0]]
        return self.matrix(first)[0] / self.embed if first.axes[0] == "latent" else 1.0

    def numbers(self, activation: Activation) -> int:
        """Elements of an activation."""
        for dim, rows in ((ROUTED, self.routed_rows), (RECEIVED, self.received_rows)):
            if dim in activation.dims:
                return rows * self.width(other for other in activation.dims if other != dim)
        return (self.part_tokens if activation.between else self.tokens) * self.width(activation.dims)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each activation: see `activation_bytes`."""
        width = lambda one: FLOAT32_BYTES if one.float32 else self.item_bytes
        return {one.name: self.numbers(one) * width(one) for one in self.layer.activations}

    @cached_property
    def around_matmuls(self) -> int:
        """See `matmul_bytes`."""
        return sum(_around(self, part, group) for part in self.layer.parts if not part.routed for group in part.groups)

    @property
    def keys_per_query(self) -> float:
        """Tokens that a token attends to on average, under the model's mask, in a row without documents."""
        return mean_keys(self.sequence, reach(self.model), self.model.causal)


def mean_keys(sequence: int, limit: Reach, causal: bool = True) -> float:
    """Tokens that each of a row attends to on average, itself included, under a limit."""
    if isinstance(limit, Chunk):
        chunks, rest = divmod(sequence, limit.size)
        return (chunks * limit.size * (limit.size + 1) + rest * (rest + 1)) / 2 / sequence
    seen = sequence if limit is None else min(limit, sequence)
    back = (seen * (seen + 1) / 2 + (sequence - seen) * seen) / sequence
    return back if causal else 2 * back - 1


def layer_shapes(config: Config, axes: AxisSizes, rows: int) -> dict[str, LayerShape]:
    """The shape of a layer of each kind on a mesh of `axes`, with `rows` rows per device and microbatch."""
    item_bytes = ITEM_BYTES[config.precision.compute]
    options = config.parallel.experts
    asked, capacity, imbalance = options.exchange, options.capacity, options.imbalance
    return {
        kind: LayerShape(
            model,
            rows,
            config.data.sequence_length,
            axes.context,
            axes.tensor,
            item_bytes,
            config.lora,
            axes.expert,
            capacity,
            exchange_by(model, asked, capacity, axes.expert, axes.tensor),
            imbalance,
            config.parallel.quantized.tokens,
            beside=side_columns(config.model).width(axes.tensor),
        )
        for kind, model in kind_models(config.model).items()
    }


def exchange_by(model: ModelConfig, asked: str, capacity: float, expert: int, tensor: int) -> str:
    """The exchange of the layers of `model` on these ranks; any name for a model without experts."""
    if model.experts is None:
        return "all_to_all"
    return exchange_of(asked, model.experts, capacity, expert, tensor)[0]


def activation_bytes(shape: LayerShape) -> dict[str, int]:
    """Bytes of each named activation of a layer, on one device and for one microbatch, in the order of computation.

    What lies between the blocks is split over the tensor ranks by sequence, what lies inside them by heads or hidden
    width.
    """
    return dict(shape.sizes)


def between_bytes(shape: LayerShape) -> int:
    """Bytes of what is between two layers: the residual stream, and the columns beside it."""
    return shape.sizes[LAYER_INPUT]


def matmul_bytes(shape: LayerShape) -> int:
    """Bytes of the inputs and of the outputs of matmuls: what a split backward leaves for the gradients of matrices
    that it computes apart."""
    return shape.around_matmuls


def _around(shape: LayerShape, part: Part, group: Matmuls) -> int:
    """Bytes of a group's input, as tensor ranks split it between the blocks or inside, and of its outputs."""
    first = part.weights[part.factors_of(group.weights[0])[0]]
    inward = shape.matrix(first)[0] / shape.embed if first.axes[0] == "latent" else 1
    made = shape.part_tokens if group.between else shape.tokens
    stream = shape.part_tokens * shape.embed * shape.item_bytes
    return round(stream * inward) + made * shape.inside(part, group) * shape.item_bytes


def inside_numbers(shape: LayerShape, part: Part) -> int:
    """Numbers of a token that the matmuls of a part make or read inside it."""
    return sum(shape.inside(part, group) for group in part.groups)


def matrix_numbers(shape: LayerShape) -> int:
    """Weights of a layer's matrices on a device, in compute placement."""
    return sum(prod(shape.matrix(spec)) * shape.copies(spec) for spec in shape.layer.matrices)
