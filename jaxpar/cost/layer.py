"""Seconds of one decoder layer, for one microbatch on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil
from types import MappingProxyType
from typing import Annotated

from jaxpar.config.counting import head_dim, value_dim, window_of
from jaxpar.cost.dense import Dense
from jaxpar.cost.experts import Experts
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layer_messages import LayerMessages
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import SCORES_BLOCK, USUAL_ATTENTION, Device
from jaxpar.cost.work import Counted, Work, total
from jaxpar.hardware.sources import derived
from jaxpar.layers.declaration.activations import LAYER_INPUT
from jaxpar.layers.declaration.part import RESIDUAL, Core, Elementwise, Matmuls, Part, Recurrence, Traffic
from jaxpar.memory.layer_shape import RECEIVED, ROUTED
from pallas_kernels.attention.work import visited_blocks

HEAD_NORMS: Annotated[
    tuple[float, float],
    derived("the program of configs/llama3_8b.yaml with model.qk_norm for 8 H100s, cut to 4 layers"),
] = (2.0, 6.0)
"""Times that norms of each head move queries and keys, beyond what their rotation does: forward, and backward with
their recomputation. XLA writes the norms in float32 forward, and backward makes passes of their own for the sums of
squares, the sums of rows and the gradient of the scale."""
NORMS_OF_HEADS = (True, "rotated", "unweighted", "layernorm")
"""Values of `model.qk_norm` that normalise each head by itself."""


@dataclass(frozen=True)
class LayerTime:
    """The time of a layer: forward by operation, and backward."""

    operations: Mapping[str, Work]
    """Work of each operation by the activation that it makes, in order."""
    made: Mapping[str, str]
    """The operation that makes each activation but the layer's input."""
    backward: Work
    weight: float
    """Seconds of the backward that are spent on gradients of weights which a split backward computes apart."""
    resent: Mapping[str, float] = MappingProxyType({})
    """By operation that sends tokens to experts: seconds that a backward which sends them again waits for them."""
    message: float = 0.0
    """Seconds of one message of tokens, of a slice."""
    normed: Mapping[str, float] = MappingProxyType({})
    """By operation whose output is normed and rotated by head: seconds of that. The backward computes it again from the
    output, so that what makes the output again does not."""

    @property
    def forward(self) -> Work:
        """The work of the whole forward."""
        return total(self.operations.values())

    def again(self, names: frozenset[str]) -> Work:
        """Recomputing the operations that make activations in `names`, or that are in `names`; scales are kept."""
        again = {self.made.get(name, name) for name in names}
        return total([Work(), *(self._again(name, work) for name, work in self.operations.items() if name in again)])

    def _again(self, name: str, work: Work) -> Work:
        if name in self.resent:
            waited = self.resent[name]
            work = work._replace(exchange=waited, beside=max(0.0, work.sends - waited))
        work = work._replace(other=work.other - self.normed.get(name, 0.0))
        return work._replace(scales=0.0)

    def beside_weights(self, forward: float, backward: float) -> tuple[Work, Work]:
        """Forward and backward, where weights take so many seconds to be gathered, and reduced, in it. XLA places
        what nothing waits for from the end of a layer on, beside products, and two of the exchange's messages find
        none: the last that would have been hidden."""
        works = []
        for work, taken in ((self.forward, forward), (self.backward, backward)):
            lost = min(2 * self.message, work.beside, taken)
            works.append(work._replace(exchange=work.exchange + lost, beside=work.beside - lost))
        return works[0], works[1]


@lru_cache(maxsize=50_000)
def layer_time(case: LayerCase, device: Device, network: Network) -> LayerTime:
    """The time of a layer, from the operations that its parts declare."""
    layer = _Layer(case, device, network)
    operations: dict[str, Work] = {}
    resent: dict[str, float] = {}
    normed: dict[str, float] = {}
    made = {name: name for name in case.shape.layer.names if name != LAYER_INPUT}
    for part, one in case.shape.layer.operations:
        match one:
            case Elementwise():
                operations[one.output] = layer.elementwise(one)
                resent |= {one.output: layer.experts.again} if one.sends_rows and layer.experts else {}
            case Core() | Recurrence():
                work = layer.core() if isinstance(one, Core) else layer.recurrence(one)
                operations[one.outputs[0]] = work
                made |= {name: one.outputs[0] for name in one.outputs if name in made}
            case Matmuls(inward=True):
                operations |= layer.products(part, one)
                normed |= layer.normed(one)
            case Matmuls():
                name = one.outputs[0] if one.outputs else f"{part.name}_{one.weights[0]}"
                operations[name] = layer.back(part, one)
    backward, weight = layer.backward()
    message = layer.experts.message(layer.experts.slices) if layer.experts else 0.0
    return LayerTime(operations, made, backward, weight, resent, message, normed)


class _Layer:
    """The seconds of a layer's operations, and of their backward."""

    def __init__(self, case: LayerCase, device: Device, network: Network):
        self.case, self.device, self.shape, self.half = case, device, case.shape, case.item / 2
        self.messages, self.dense = LayerMessages(case, network), Dense(case, device, network)
        self.experts: Experts | None = None
        if case.shape.model.experts is not None:
            self.experts = Experts(case.shape, device, network, case.slices, case.own_rows, case.expert_loop)
        made = self.shape.layer.activations
        self.routed = {one.name: self.shape.numbers(one) for one in made if {ROUTED, RECEIVED} & {*one.dims}}
        self.widths = {one.name: self.shape.width(one.dims) for one in made if one.name not in self.routed}
        self.groups = {
            (part.name, one): self._group(part, one)
            for part, one in self.shape.layer.operations
            if isinstance(one, Matmuls)
        }

    def _group(self, part: Part, group: Matmuls) -> Counted:
        """A group of matmuls: of experts, of a router, or of all tokens."""
        axes = part.weights[part.factors_of(group.weights[0])[0]].axes
        if self.experts is not None and "experts" in axes:
            return self.experts.counted(part, group)
        if self.experts is not None and "router" in axes:
            return self.dense.router(part, group)
        return self.dense.counted(part, group)

    def returned(self, share: float) -> dict[str, float]:
        """Seconds of a share of the messages of tokens forward, for `Work`."""
        assert self.experts is not None, "rows that are sent"
        return {"exchange": self.experts.exposed[0] * share, "beside": self.experts.hidden[0] * share}

    def moved(self, traffic: Traffic, numbers: float, back: bool = False) -> float:
        """Bytes of elementwise work on so many numbers."""
        return 2 * (traffic.backward if back else traffic.forward) * self.half * numbers

    def numbers(self, output: str) -> float:
        """Bytes of an activation; between the blocks, as the software splits it there."""
        one = next((one for one in self.shape.layer.activations if one.name == output), None)
        if output in self.routed:
            return float(self.routed[output]) * self.shape.rounds
        return self.case.between if one is None or one.between else float(self.case.tokens * self.widths[output])

    # ---- forward

    def elementwise(self, one: Elementwise) -> Work:
        """Norms and non-linearities, and the way of tokens to their experts."""
        if one.traffic is None:
            return Work()
        other = self.device.bytes_seconds(self.moved(one.traffic, self.numbers(one.output)))
        if not one.sends_rows or self.experts is None:
            return Work(other=other)
        return Work(other=other, **self.returned(self.experts.outward_share))

    def products(self, part: Part, group: Matmuls) -> dict[str, Work]:
        """One matmul with all matrices of a group and the work on its outputs, divided among these by width."""
        counted, sent = self.groups[part.name, group], 0.0
        if counted.sent_bytes is not None:
            sent = self.shape.gathered(part, group) * self.messages.gathered(counted.sent_bytes)
        rotated, passes = self.rotations(group), self._layout(group) + counted.moved
        works: dict[str, Work] = {}
        widths = {name: self.shape.matrix(part.weights[part.factors_of(name)[-1]])[1] for name in group.weights}
        for name, weight in zip(group.outputs, group.weights, strict=True):
            share, factors = widths[weight] / sum(widths.values()), self.dense.low_rank(part, group, weight)
            moved = rotated.get(name, 0.0) + passes * share + (factors.moved if factors else 0.0)
            matmul = counted.forward * share + (factors.forward if factors else 0.0)
            other = self.device.bytes_seconds(moved)
            works[name] = Work(matmul, 0.0, other, sent * share, scales=counted.scales * share)
        return works

    def rotations(self, group: Matmuls, back: bool = False) -> dict[str, float]:
        """Bytes of the rotation of each output that is rotated, which reads and writes each number once, and of norms
        of each head beside it."""
        normed = HEAD_NORMS[back] if self.shape.model.qk_norm in NORMS_OF_HEADS else 0.0
        each = self.half * 2.0 * (2.0 + normed) * self.case.tokens
        return {name: each * self.widths[name] for name in group.rotated}

    def normed(self, group: Matmuls) -> dict[str, float]:
        """`LayerTime.normed` of a group's outputs."""
        if self.shape.model.qk_norm not in NORMS_OF_HEADS:
            return {}
        return {name: self.device.bytes_seconds(moved) for name, moved in self.rotations(group).items()}

    def _layout(self, group: Matmuls) -> float:
        """Bytes of laying out outputs by head."""
        if not group.by_head:
            return 0.0
        return 4.0 * self.half * self.case.tokens * sum(self.widths[name] for name in group.outputs)

    def back(self, part: Part, group: Matmuls) -> Work:
        """The matmul back into the residual stream."""
        counted = self.groups[part.name, group]
        factors = [one for name in group.weights if (one := self.dense.low_rank(part, group, name))]
        matmul = counted.forward + sum(one.forward for one in factors)
        moved = counted.moved + sum(one.moved for one in factors)
        moved += self.moved(RESIDUAL, self.case.between) if group.adds else 0.0
        other = self.device.bytes_seconds(moved)
        if counted.sent_bytes is None and self.experts is not None:
            return Work(matmul, 0.0, other, **self.returned(1 - self.experts.outward_share))
        return Work(matmul, 0.0, other, self.messages.half, scales=counted.scales)

    def core(self) -> Work:
        """Attention itself, with its messages of context ranks: recomputing it sends them again."""
        return Work(attention=self.attention[0], context=self.context[0])

    def recurrence(self, one: Recurrence, times: int = 1) -> Work:
        """A state that is carried along rows, in float32; its products run so many `times`, and once more on context
        ranks, which fold their tokens before they pass on states."""
        times += self.shape.context > 1
        flops = times * one.chunked * self.case.tokens / self.case.tensor
        return Work(flops / self.device.matmul_rate(4), context=self.messages.states(one))

    @cached_property
    def attention(self) -> tuple[float, float]:
        """Seconds of attention itself, forward and backward."""
        case, shape, kernels = self.case, self.shape, self.case.attention or USUAL_ATTENTION
        # One matmul of scores has the width of a query, the other that of a value.
        heads, widths = shape.model.heads // shape.tensor, (head_dim(shape.model), value_dim(shape.model))
        asked = shape.rows, max(1, heads), case.part, shape.keys_per_query
        if kernels == "xla":
            return self._blocks(max(1, heads), sum(widths) // 2)
        return self.device.flash(*asked, widths[0], kernels, case.item, widths[1])

    def _blocks(self, heads: int, width: int) -> tuple[float, float]:
        """Seconds of the forward and the backward of attention in plain JAX, with `heads` query heads."""
        case, shape, model = self.case, self.shape, self.shape.model
        block = min(SCORES_BLOCK, shape.sequence)
        visited = visited_blocks(model.causal, window_of(model), shape.sequence, block, block)
        met = visited * block / ceil(shape.sequence / block)
        return self.device.blocks(shape.rows, heads, case.part, met, width, case.item, max(1, heads // shape.kv_heads))

    @cached_property
    def context(self) -> tuple[float, float]:
        """Messages of context ranks, forward and backward."""
        return self.messages.context()

    # ---- backward

    def backward(self) -> tuple[Work, float]:
        """Returns the work of the backward, and `LayerTime.weight`."""
        works, apart, moved = [Work()], 0.0, 0.0
        for part, one in self.shape.layer.operations:
            if isinstance(one, Matmuls):
                work, weight, passes = self._matmuls_back(part, one)
                works.append(work)
                moved += passes
                apart += 0.0 if part.routed else weight
            elif isinstance(one, Elementwise) and one.traffic is not None:
                moved += self.moved(one.traffic, self.numbers(one.output), back=True)
            elif isinstance(one, Core):
                works.append(Work(attention=self.attention[1], context=self.context[1]))
            elif isinstance(one, Recurrence):
                works.append(self.recurrence(one, times=3))  # what chunks made of their states is made again
        return total([*works, Work(other=self.device.bytes_seconds(moved))]), apart

    def _matmuls_back(self, part: Part, group: Matmuls) -> tuple[Work, float, float]:
        """The backward of a group of matmuls without passes over memory, the seconds of it that gradients of weights
        take, and bytes of the passes: casts, rotation, layout, addition, biases. Frozen matrices have none, and their
        factors have."""
        counted, frozen = self.groups[part.name, group], self.case.frozen
        factors = [one for name in group.weights if (one := self.dense.low_rank(part, group, name))]
        weight = sum(one.weight for one in factors) if frozen else counted.weight
        inward = counted.inward + sum(one.inward for one in factors)
        moved = counted.moved_back + sum(self.rotations(group, back=True).values()) + self._layout(group)
        moved += sum(one.moved_back for one in factors)
        if group.adds:
            moved += self.moved(RESIDUAL, self.case.between, back=True)
        for index, name in enumerate(group.weights):
            if f"{name}_bias" in part.weights and not frozen:
                numbers = self.numbers(group.outputs[index]) if group.inward else self.case.between
                moved += 2.0 * self.half * numbers
        work = Work(inward + weight, scales=counted.scales_back)
        if counted.sent_bytes is not None:
            width = self.shape.gathered(part, group)
            sent = self.messages.backward(group.inward, width, counted.sent_bytes, inward)
            work = work._replace(tensor=sent)
        elif self.experts is not None and not group.inward:
            work = work._replace(exchange=self.experts.exposed[1], beside=self.experts.hidden[1])
        return work, weight, moved
