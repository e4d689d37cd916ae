"""Seconds of one decoder layer, of the embedding and of the head, for one microbatch on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from jaxpar.attention.context import neighbours
from jaxpar.attention.ulysses import repeats
from jaxpar.config.counting import head_dim
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.messages import Network, interleaved, overlapped
from jaxpar.cost.operations import Device
from jaxpar.layers.counting import layer_matmul_parameters
from jaxpar.layers.declaration.activations import LAYER_INPUT
from jaxpar.layers.declaration.part import RESIDUAL, Core, Elementwise, Matmuls, Part, Traffic
from jaxpar.memory.layer_shape import LayerShape


class Work(NamedTuple):
    """Seconds of a part of a step on one device, by what they are spent on."""

    matmul: float = 0.0
    attention: float = 0.0
    other: float = 0.0
    tensor: float = 0.0
    """Messages over the tensor ranks that are not hidden."""
    context: float = 0.0
    """The same, over the context ranks."""
    kernels: float = 0.0
    """Number of kernels that the host launches."""

    @property
    def seconds(self) -> float:
        """The total, if the host launches fast enough."""
        return self.matmul + self.attention + self.other + self.tensor + self.context

    def times(self, factor: float) -> Work:
        """This many times the same."""
        return Work(*(value * factor for value in self))


def total(works: Iterable[Work]) -> Work:
    """The sum."""
    return Work(*map(sum, zip(*works, strict=True)))


@dataclass(frozen=True)
class LayerCase:
    """What a layer's time depends on, apart from hardware and mechanisms."""

    shape: LayerShape
    context_strategy: str
    sequence_parallel: bool
    float8: bool

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

    @property
    def parameters(self) -> int:
        """Weights of the layer's matrices, on this device before any sharding over data ranks."""
        return layer_matmul_parameters(self.shape.model) // self.tensor


def layer_case(
    model: ModelConfig, sequence: int, rows: int, tensor: int, context: int, strategy: str, parallel: bool,
    precision: str,
) -> LayerCase:  # fmt: skip
    """The case of a layer of `model`, whose layers are all alike."""
    shape = LayerShape(model, rows, sequence, context, tensor, 4 if precision == "float32" else 2)
    return LayerCase(shape, strategy, parallel and tensor > 1, precision == "float8")


@dataclass(frozen=True)
class LayerTime:
    """The time of a layer: forward by operation, and backward."""

    operations: Mapping[str, Work]
    """By the activation that it makes, in order."""
    made: Mapping[str, str]
    """The operation that makes each activation but the layer's input."""
    last: frozenset[str]
    """Operations that make no activation: full recomputation does not need to run them."""
    backward: Work
    weight: float
    """Seconds of the backward that are spent on gradients of weights."""

    @property
    def forward(self) -> Work:
        """All of it."""
        return total(self.operations.values())

    def again(self, names: frozenset[str]) -> Work:
        """Recomputing the operations that make activations in `names`, or that are in `names`."""
        again = {self.made.get(name, name) for name in names}
        return total([Work(), *(work for name, work in self.operations.items() if name in again)])


@lru_cache(maxsize=50_000)
def layer_time(case: LayerCase, device: Device, network: Network, does: Mechanisms) -> LayerTime:
    """The time of a layer, from the operations that its parts declare."""
    counted = _Counted(case, device, network, does)
    operations: dict[str, Work] = {}
    for part, one in case.shape.layer.operations:
        match one:
            case Elementwise():
                operations[one.output] = counted.elementwise(one)
            case Core():
                operations[one.outputs[0]] = counted.core()
            case Matmuls(inward=True):
                operations |= counted.products(part, one)
            case Matmuls():
                name = one.outputs[0] if one.outputs else f"{part.name}_{one.weights[0]}"
                operations[name] = counted.back(part, one)
    made: dict[str, str] = {}
    for _, one in case.shape.layer.operations:
        if isinstance(one, Core):
            made |= dict.fromkeys(one.outputs, one.outputs[0])
    made = {name: made.get(name, name) for name in case.shape.layer.names if name != LAYER_INPUT}
    backward, weight = counted.backward()
    return LayerTime(operations, made, frozenset(operations) - set(made.values()), backward, weight)


class _Counted:
    """The seconds of a layer's operations, and of their backward."""

    def __init__(self, case: LayerCase, device: Device, network: Network, does: Mechanisms):
        self.case, self.device, self.does, self.shape = case, device, does, case.shape
        self.messages = _Messages(case, network, does)
        self.fused, self.half = does.fused_elementwise, case.item / 2
        self.unfused, self.launches = (1, 2) if self.fused else (3, 6)
        self.operand = 1 if case.float8 else case.item
        self.of_gradient = 4 if does.gradient_type == "float32" else 2
        self.drop, self.drop_back = (3.0, 5.0) if does.dropout else (0.0, 0.0)
        self.widths = {one.name: self.shape.width(one.dims) for one in self.shape.layer.activations}

    def product(self, n: int, k: int) -> float:
        """Seconds of all tokens [k] times a matrix [k, n]."""
        return self.device.matmul(self.case.tokens, n, k, 1, self.case.item, self.operand)

    def gradients(self, n: int, k: int) -> tuple[float, float]:
        """Gradient of the input, and of the weight [k, n], added to an accumulator of float32 where kernels do."""
        case = self.case
        accumulated = 2 * self.of_gradient if self.does.fused_accumulation else case.item
        inward = self.device.matmul(case.tokens, k, n, 1, case.item, self.operand)
        return inward, self.device.matmul(k, n, case.tokens, 1, accumulated, self.operand)

    def casts(self, n: int, k: int) -> tuple[int, int]:
        """Bytes of casts to float8 and of their scales, forward and backward."""
        tokens = self.case.tokens
        return (4 * tokens * k + 4 * n * k, 4 * tokens * n) if self.case.float8 else (0, 0)

    def group(self, part: Part, group: Matmuls) -> tuple[int, int]:
        """Outputs and inputs of a group as one matmul, its matrices concatenated."""
        sides = [self.shape.matrix(part.weights[name]) for name in group.weights]
        return sum(n for _, n in sides), sides[0][0]

    def moved(self, traffic: Traffic, numbers: float, back: bool = False) -> float:
        """Bytes of elementwise work on so many numbers."""
        fused, unfused = (traffic.backward, traffic.unfused_backward) if back else (traffic.forward, traffic.unfused)
        return 2 * (fused if self.fused else unfused) * self.half * numbers

    def numbers(self, output: str) -> float:
        """Bytes of an activation; between the blocks, as the software splits it there."""
        one = next((one for one in self.shape.layer.activations if one.name == output), None)
        return self.case.between if one is None or one.between else float(self.case.tokens * self.widths[output])

    # ---- forward

    def elementwise(self, one: Elementwise) -> Work:
        """Norms and non-linearities."""
        if one.traffic is None:
            return Work()
        numbers = self.numbers(one.output)
        moved = self.moved(one.traffic, numbers) + (self.drop * numbers if one.adds else 0.0)
        kernels = self.launches * one.norms + 2 * self.unfused * one.adds if one.norms else self.unfused
        return Work(other=self.device.bytes_seconds(moved), kernels=kernels)

    def products(self, part: Part, group: Matmuls) -> dict[str, Work]:
        """One matmul with all matrices of a group and the work on its outputs, divided among these by width."""
        n, k = self.group(part, group)
        joined, (cast, _) = self.product(n, k), self.casts(n, k)
        sent = self.messages.gather(joined)
        rope, layout = self._rope(group), self._layout(group)
        turned = sum(self.widths[name] for name in group.rotated)
        works: dict[str, Work] = {}
        for name in group.outputs:
            share = self.widths[name] / n
            rotation = rope * (self.widths[name] / turned) if name in group.rotated else 0.0
            other = self.device.bytes_seconds(rotation + (layout + cast) * share)
            kernels = 2 * self.unfused if group.by_head else 1
            works[name] = Work(joined * share, 0.0, other, sent * share, kernels=kernels)
        return works

    def back(self, part: Part, group: Matmuls) -> Work:
        """The matmul back into the residual stream."""
        n, k = self.group(part, group)
        out, (cast, _) = self.product(n, k), self.casts(n, k)
        added = self.moved(RESIDUAL, self.case.between) + self.drop * self.case.between if group.adds else 0.0
        kernels = 2 * self.unfused if group.adds else 1
        other = self.device.bytes_seconds(added + cast)
        return Work(out, 0.0, other, self.messages.scatter(out), kernels=kernels)

    def core(self) -> Work:
        """Attention itself, with its messages of context ranks: recomputing it sends them again."""
        return Work(attention=self.attention[0], context=self.context[0], kernels=self.core_kernels)

    @property
    def core_kernels(self) -> int:
        """Kernels of attention itself."""
        return 6 if self.does.attention == "scores" else 1

    @cached_property
    def attention(self) -> tuple[float, float]:
        """Seconds of attention itself, forward and backward."""
        case, does, shape = self.case, self.does, self.shape
        heads, width = shape.model.heads // shape.tensor, head_dim(shape.model)
        if does.attention == "scores":
            return self.device.scores(
                shape.rows, heads, case.part, shape.sequence, width, does.dropout, self.fused, case.item
            )
        return self.device.flash(
            shape.rows, max(1, heads), case.part, shape.keys_per_query, width, does.attention, case.item
        )

    @cached_property
    def context(self) -> tuple[float, float]:
        """Messages of context ranks that are not hidden, forward and backward."""
        return self.messages.context(*self.attention)

    def _rope(self, group: Matmuls) -> float:
        """Bytes of the rotation: each number is read and written once; unfused, five times."""
        return 4.0 * self.half * (1 if self.fused else 5) * self._numbers(group.rotated)

    def _layout(self, group: Matmuls) -> float:
        """Bytes of laying out outputs by head."""
        return 4.0 * self.half * self._numbers(group.outputs) if group.by_head else 0.0

    def _numbers(self, outputs: Iterable[str]) -> int:
        return self.case.tokens * sum(self.widths[name] for name in outputs)

    # ---- backward

    def backward(self) -> tuple[Work, float]:
        """(the backward, seconds of it that are spent on gradients of weights)."""
        case, layer = self.case, self.shape.layer
        backs: list[tuple[float, float]] = []
        moved, kernels = 0.0, 0
        for part, one in layer.operations:
            if isinstance(one, Matmuls):
                sides = self.group(part, one)
                backs.append(self.gradients(*sides))
                moved += self._matmuls_back(part, one) + self.casts(*sides)[1]
                kernels += 2 + (2 * self.unfused * len(one.outputs) if one.by_head else 0) + self.unfused * one.adds
                kernels += any(f"{name}_bias" in part.weights for name in one.weights)
            elif isinstance(one, Core):
                kernels += 2 * self.core_kernels
            elif one.traffic is not None:
                numbers = self.numbers(one.output)
                moved += self.moved(one.traffic, numbers, back=True) + (self.drop_back * numbers if one.adds else 0.0)
                kernels += (self.launches if one.norms else 2 * self.unfused) * max(1, one.norms)
                kernels += self.unfused * one.adds
        if not self.does.fused_accumulation:
            moved += (2.0 + 2 * self.of_gradient) * case.parameters
        weight, inward = sum(pair[1] for pair in backs), sum(pair[0] for pair in backs)
        columns = [one.inward for _, one in layer.operations if isinstance(one, Matmuls)]
        sent = self.messages.backward(list(zip(columns, backs, strict=True)))
        other = self.device.bytes_seconds(moved)
        return Work(inward + weight, self.attention[1], other, sent, self.context[1], kernels), weight

    def _matmuls_back(self, part: Part, group: Matmuls) -> float:
        """Bytes of what follows a group of matmuls: rotation, layout, addition, biases."""
        moved = self._rope(group) + self._layout(group)
        if group.adds:
            moved += self.moved(RESIDUAL, self.case.between, back=True) + self.drop_back * self.case.between
        for place, name in enumerate(group.weights):
            if f"{name}_bias" in part.weights:
                numbers = self.case.tokens * self.widths[group.outputs[place]] if group.inward else self.case.between
                moved += 2.0 * self.half * numbers
        return moved


class _Messages:
    """The seconds that are not hidden of what tensor and context ranks send in a layer."""

    def __init__(self, case: LayerCase, network: Network, does: Mechanisms):
        self.case, self.does = case, does
        self.slowdown = network.model.overlap_slowdown
        self.ranks, self.heads, self.head_dim = case.shape.context, case.shape.model.heads, head_dim(case.shape.model)
        ring = network.ring(case.tensor, 1)
        whole = float(case.tokens * case.embed * case.item)
        self.parallel = case.sequence_parallel
        self.half = ring.gather(whole) if case.tensor > 1 else 0.0
        self.full = ring.reduce(whole) if case.tensor > 1 else 0.0
        group = 1
        if case.context_strategy == "usp":
            group = neighbours(self.ranks, self.heads // case.tensor, max(1, network.per_host // case.tensor))
        elif case.context_strategy == "ulysses":
            group = self.ranks
        self.group = group
        """Neighbouring context ranks that exchange sequence for heads; a ring runs between the groups."""
        self.over_group = network.ring(group, case.tensor)
        self.between_groups = network.ring(self.ranks // group, case.tensor * group)
        self.over_context = network.ring(self.ranks, case.tensor)

    def _exposed(self, matmul: float, message: float) -> float:
        if self.does.overlap_tensor and message:
            return max(0.0, interleaved(matmul, message, self.slowdown, self.case.tensor) - matmul)
        return message

    def gather(self, matmul: float) -> float:
        """Before a matmul that is split by columns: nothing without sequence parallelism."""
        return self._exposed(matmul, self.half) if self.parallel else 0.0

    def scatter(self, matmul: float) -> float:
        """After a matmul that is split by rows: the sum over the ranks."""
        return self._exposed(matmul, self.half if self.parallel else self.full)

    def backward(self, groups: Sequence[tuple[bool, tuple[float, float]]]) -> float:
        """Of the backward of groups of matmuls: (inward, (gradient of the input, of the weights)).

        Inward, split by columns: the gradient of the input is summed, beside the gradient of the weight where the
        software can; with sequence parallelism the input is gathered again beside the gradient of the input. Outward,
        split by rows: with sequence parallelism the gradient is gathered first.
        """
        if self.case.tensor == 1:
            return 0.0
        exposed = 0.0
        for columns, (inward, weight) in groups:
            if not self.parallel:
                exposed += self._beside(weight, self.full) if columns else 0.0
            elif columns:
                exposed += self._beside(inward, self.half, always=True) + self._beside(weight, self.half)
            else:
                exposed += self._exposed(inward, self.half)
        return exposed

    def _beside(self, compute: float, message: float, always: bool = False) -> float:
        if self.does.overlap_weight_gradient or always:
            return overlapped(compute, message, self.slowdown) - compute
        return message

    def context(self, core: float, core_back: float) -> tuple[float, float]:
        """Forward and backward, by strategy."""
        case = self.case
        if self.ranks == 1:
            return 0.0, 0.0
        heads = case.shape.kv_heads
        part = float(2 * case.tokens * heads * self.head_dim * case.item)
        if case.context_strategy == "allgather":
            forward = self.over_context.gather(part * self.ranks)
            return self._beside_core(core, forward), self._beside_core(core_back, 2 * forward)
        part *= repeats(heads, self.group)
        query = float(case.tokens * self.heads * self.head_dim // case.tensor * case.item)
        exchanged = 2 * self.over_group.exchange(query) + self.over_group.exchange(part)
        # Backward, keys and values are sent round the ring again, and the gradients of both in float32.
        steps, ring = self.ranks // self.group - 1, self.between_groups
        forward, backward = steps * ring.shift(part), steps * ring.shift(part * (1 + 4 / case.item))
        share = steps / (steps + 1)
        return (
            exchanged + self._beside_core(core * share, forward),
            exchanged + self._beside_core(core_back * share, backward),
        )

    def _beside_core(self, core: float, message: float) -> float:
        """What attention over other keys does not hide of a message, if the software overlaps them."""
        if not self.does.overlap_context:
            return message
        return overlapped(core, message, self.slowdown) - core


@lru_cache(maxsize=50_000)
def head_time(case: LayerCase, vocab: int, device: Device, network: Network, does: Mechanisms) -> tuple[Work, Work]:
    """Output head and loss, forward and backward: the head's matmul, and the logits in memory.

    Bytes per logit. Forward: written (2), read and written as float32 (6), read for maximum, sum and label (8);
    backward: read and written as the gradient (8), as 16 bits (6) and read by two matmuls, whose traffic they count.
    A compiler fuses the casts into the reductions: 6 and 6.
    """
    columns = -(-vocab // case.tensor)
    logits = float(case.tokens) * columns
    own, own_back = (6.0, 6.0) if does.compiled else (16.0, 14.0)
    item = case.item
    forward = device.matmul(case.tokens, columns, case.embed, 1, item, item)
    inward = device.matmul(case.tokens, case.embed, columns, 1, item, item)
    weight = device.matmul(columns, case.embed, case.tokens, 1, 8 if does.fused_accumulation else item, item)
    messages = _Messages(case, network, does)
    gather = messages.half if case.sequence_parallel else 0.0
    back = messages.half if case.sequence_parallel else messages.full
    embed = device.bytes_seconds(case.between * 4 + case.between * 10)
    return (
        Work(forward, 0.0, device.bytes_seconds(own * logits) + embed / 2, gather, 0.0, 12),
        Work(inward + weight, 0.0, device.bytes_seconds(own_back * logits) + embed / 2, back, 0.0, 12),
    )
