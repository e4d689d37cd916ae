"""Seconds of one decoder layer, for one microbatch on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType

from jaxpar.config.counting import head_dim, value_dim
from jaxpar.cost.experts import ExpertTimes
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layer_messages import Exchanged, LayerMessages
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import USUAL_ATTENTION, Device
from jaxpar.cost.quantised import QuantisedTimes
from jaxpar.cost.work import Work, total
from jaxpar.layers.declaration.activations import LAYER_INPUT
from jaxpar.layers.declaration.part import RESIDUAL, Core, Elementwise, Matmuls, Part, Recurrence, Traffic
from jaxpar.memory.layer_shape import RECEIVED, ROUTED

ACCUMULATED = 8.0
"""Bytes of a gradient of a weight in float32, read and written by the product that adds to it."""
HEAD_NORMS = (2.0, 6.0)
"""Times that norms of each head move queries and keys, beyond what their rotation does: forward, and backward with
their recomputation. XLA writes the norms in float32 forward, and backward makes passes of their own for the sums of
squares, the sums of rows and the gradient of the scale. Counted in the program of `configs/llama3_8b.yaml` with
`model.qk_norm` for 8 H100s, cut to 4 layers."""


@dataclass(frozen=True)
class LayerTime:
    """The time of a layer: forward by operation, and backward."""

    operations: Mapping[str, Work]
    """By the activation that it makes, in order."""
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
        """All of it."""
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
        found = []
        for work, taken in ((self.forward, forward), (self.backward, backward)):
            lost = min(2 * self.message, work.beside, taken)
            found.append(work._replace(exchange=work.exchange + lost, beside=work.beside - lost))
        return found[0], found[1]


@lru_cache(maxsize=50_000)
def layer_time(case: LayerCase, device: Device, network: Network) -> LayerTime:
    """The time of a layer, from the operations that its parts declare."""
    counted = _Counted(case, device, network)
    operations: dict[str, Work] = {}
    resent: dict[str, float] = {}
    normed: dict[str, float] = {}
    for part, one in case.shape.layer.operations:
        match one:
            case Elementwise():
                operations[one.output] = counted.elementwise(one)
                resent |= {one.output: counted.experts.again} if one.sends_rows else {}
            case Core():
                operations[one.outputs[0]] = counted.core()
            case Recurrence():
                operations[one.outputs[0]] = Work(counted.recurrence(one))
            case Matmuls(inward=True):
                operations |= counted.products(part, one)
                normed |= counted.normed(one)
            case Matmuls():
                name = one.outputs[0] if one.outputs else f"{part.name}_{one.weights[0]}"
                operations[name] = counted.back(part, one)
    made: dict[str, str] = {}
    for _, one in case.shape.layer.operations:
        if isinstance(one, Core | Recurrence):
            made |= dict.fromkeys(one.outputs, one.outputs[0])
    made = {name: made.get(name, name) for name in case.shape.layer.names if name != LAYER_INPUT}
    backward, weight = counted.backward()
    return LayerTime(operations, made, backward, weight, resent, counted.experts.message, normed)


class _Counted:
    """The seconds of a layer's operations, and of their backward."""

    def __init__(self, case: LayerCase, device: Device, network: Network):
        self.case, self.device, self.shape, self.half = case, device, case.shape, case.item / 2
        self.messages, self.experts = LayerMessages(case, network), ExpertTimes(case, device, network)
        self.quantised = QuantisedTimes(case, device, network)
        made = self.shape.layer.activations
        self.routed = {one.name: self.shape.numbers(one) for one in made if {ROUTED, RECEIVED} & {*one.dims}}
        self.widths = {one.name: self.shape.width(one.dims) for one in made if one.name not in self.routed}

    def product(self, n: int, k: int, rows: int, operand: int | None = None) -> float:
        """Seconds of rows [k] times a matrix [k, n], of numbers of `operand` bytes, or of an activation's."""
        return self.device.matmul(rows, n, k, 1, self.case.item, operand or self.case.item)

    def gradients(self, n: int, k: int, rows: int, operand: int | None = None) -> tuple[float, float]:
        """Gradient of the input, and of the weight [k, n], which the product adds to an accumulator of float32."""
        case, operand = self.case, operand or self.case.item
        inward = self.device.matmul(rows, k, n, 1, case.item, operand)
        return inward, self.device.matmul(k, n, rows, 1, ACCUMULATED, operand)

    def low_rank(self, part: Part, group: Matmuls, name: str) -> tuple[float, float, float]:
        """Seconds of the products with the factors of a matrix: forward, and gradients of inputs and of the factors."""
        sides = self.shape.factors(part, name)
        if not sides:
            return 0.0, 0.0, 0.0
        rows = self.shape.rows_of(part, group)
        forward = sum(self.product(n, k, rows) for k, n in sides)
        gradients = [self.gradients(n, k, rows) for k, n in sides]
        return forward, sum(inward for inward, _ in gradients), sum(weight for _, weight in gradients)

    def low_rank_bytes(self, part: Part, group: Matmuls, name: str, back: bool = False) -> float:
        """Bytes of adding the product with the factors of a matrix to the other, or backward the gradient of the input:
        two numbers are read, one written."""
        sides = self.shape.factors(part, name)
        if not sides:
            return 0.0
        wide = sides[0][0] if back else sides[-1][1]
        return 3.0 * self.case.item * self.shape.rows_of(part, group) * wide

    def casts(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """Bytes of casts to FP8 and of their scales, forward and backward. Routers have none."""
        if self.experts.of(part, group):
            return self.experts.casts(group.name, self.sides(part, group))
        if self.experts.routes(part, group):
            return 0.0, 0.0
        return self.quantised.casts(part, group)

    def scales(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """Seconds of the messages of largest magnitudes that a group waits for, forward and backward."""
        if self.experts.of(part, group) or self.experts.routes(part, group):
            return 0.0, 0.0
        return self.quantised.scales(part, group)

    def matmuls(self, part: Part, group: Matmuls) -> list[tuple[int, int, int]]:
        """Outputs and inputs of each matmul of a group, and the bytes of a number that it multiplies: one for its
        matrices concatenated, and two for each that is the product of two."""
        factors = [name for name in group.weights if part.is_factored(name)]
        pairs = [self.shape.matrix(part.weights[name]) for name in part.factors_of(*factors)]
        whole, operand = self.shape.joined(part, group), self.quantised.operand(group)
        return [(*side, operand) for side in whole] + [(n, k, self.case.item) for k, n in pairs]

    def group_seconds(self, part: Part, group: Matmuls) -> float:
        """Seconds of the matmuls of a group."""
        if self.experts.of(part, group):
            return sum(self.experts.forward(n, k, group.name) for n, k in self.sides(part, group))
        if self.experts.routes(part, group):
            return sum(self.experts.router(n, k) for n, k in self.sides(part, group))
        rows = self.shape.rows_of(part, group)
        return sum(self.product(n, k, rows, operand) for n, k, operand in self.matmuls(part, group))

    def group_gradients(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """`gradients` of all matmuls of a group, with the first products of factors, which are computed again."""
        if self.experts.of(part, group) or self.experts.routes(part, group):
            each = [self._of_experts(part, group, n, k) for n, k in self.sides(part, group)]
            return sum(inward for inward, _ in each), sum(weight for _, weight in each)
        rows = self.shape.rows_of(part, group)
        pairs = [self.gradients(n, k, rows, operand) for n, k, operand in self.matmuls(part, group)]
        firsts = [part.factors_of(name)[0] for name in group.weights if part.is_factored(name)]
        again = sum(self.product(n, k, rows) for k, n in (self.shape.matrix(part.weights[name]) for name in firsts))
        return again + sum(inward for inward, _ in pairs), sum(weight for _, weight in pairs)

    def sides(self, part: Part, group: Matmuls) -> list[tuple[int, int]]:
        """Outputs and inputs of each matrix of a group."""
        return [(n, k) for k, n in (self.shape.matrix(part.weights[name]) for name in group.weights)]

    def _of_experts(self, part: Part, group: Matmuls, n: int, k: int) -> tuple[float, float]:
        """`gradients` of a matrix of each expert, or of a router."""
        if self.experts.routes(part, group):
            return self.experts.router_gradients(n, k)
        return self.experts.gradients(n, k, group.name, ACCUMULATED)

    def exchanges_sequence(self, part: Part, group: Matmuls) -> bool:
        """Whether tensor ranks gather the sequence before a group of matmuls, or scatter sums after it."""
        return not (self.experts.of(part, group) or self.experts.routes(part, group))

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
        """Norms and non-linearities."""
        if one.traffic is None:
            return Work()
        moved = self.moved(one.traffic, self.numbers(one.output))
        share = self.experts.outward if one.sends_rows else 0.0
        sent, beside = self.experts.exposed[0] * share, self.experts.hidden[0] * share
        return Work(other=self.device.bytes_seconds(moved), exchange=sent, beside=beside)

    def products(self, part: Part, group: Matmuls) -> dict[str, Work]:
        """One matmul with all matrices of a group and the work on its outputs, divided among these by width."""
        joined, (cast, _) = self.group_seconds(part, group), self.casts(part, group)
        scales, sent = self.scales(part, group)[0], 0.0
        if self.exchanges_sequence(part, group):
            item = self.quantised.sent_bytes(part, group)
            sent = self.messages.gather(self.shape.gathered(part, group), item)
        chosen = self.experts.choice_bytes if self.experts.routes(part, group) else 0.0
        rope, layout = self.rotations(group), self._layout(group)
        works: dict[str, Work] = {}
        for name, weight in zip(group.outputs, group.weights, strict=True):
            share = self.share(part, group, weight)
            added = self.low_rank_bytes(part, group, weight)
            other = self.device.bytes_seconds(rope.get(name, 0.0) + (layout + cast + chosen) * share + added)
            matmul = joined * share + self.low_rank(part, group, weight)[0]
            works[name] = Work(matmul, 0.0, other, sent * share, scales=scales * share)
        return works

    def rotations(self, group: Matmuls) -> dict[str, float]:
        """Bytes of the rotation of each output that is rotated, with its norm, divided among them by width."""
        turned = sum(self.widths[name] for name in group.rotated)
        return {name: self._rope(group) * self.widths[name] / turned for name in group.rotated}

    def normed(self, group: Matmuls) -> dict[str, float]:
        """`LayerTime.normed` of a group's outputs."""
        if self.shape.model.qk_norm is not True:
            return {}
        return {name: self.device.bytes_seconds(moved) for name, moved in self.rotations(group).items()}

    def share(self, part: Part, group: Matmuls, weight: str) -> float:
        """Of the outputs of a group, those of one of its matrices."""
        widths = {name: self.shape.matrix(part.weights[part.factors_of(name)[-1]])[1] for name in group.weights}
        return widths[weight] / sum(widths.values())

    def back(self, part: Part, group: Matmuls) -> Work:
        """The matmul back into the residual stream."""
        out, (cast, _) = self.group_seconds(part, group), self.casts(part, group)
        added = self.moved(RESIDUAL, self.case.between) if group.adds else 0.0
        low_rank = sum(self.low_rank_bytes(part, group, name) for name in group.weights)
        out += sum(self.low_rank(part, group, name)[0] for name in group.weights)
        if self.experts.of(part, group):
            moved = self.experts.sorted_bytes + self.experts.combined_bytes
            other = self.device.bytes_seconds(added + moved + cast + low_rank)
            back = 1 - self.experts.outward
            returned, beside = self.experts.exposed[0] * back, self.experts.hidden[0] * back
            return Work(out, 0.0, other, exchange=returned, beside=beside)
        other = self.device.bytes_seconds(added + cast + low_rank)
        return Work(out, 0.0, other, self.messages.scatter(), scales=self.scales(part, group)[0])

    def core(self) -> Work:
        """Attention itself, with its messages of context ranks: recomputing it sends them again."""
        return Work(attention=self.attention[0], context=self.context[0])

    def recurrence(self, one: Recurrence) -> float:
        """Seconds of a state that is carried along rows, forward; without the states that context ranks exchange."""
        return one.flops * self.case.tokens / self.case.tensor / self.device.matmul_rate(self.case.item)

    @cached_property
    def attention(self) -> tuple[float, float]:
        """Seconds of attention itself, forward and backward."""
        case, shape, kernels = self.case, self.shape, self.case.attention or USUAL_ATTENTION
        # One matmul of scores has the width of a query, the other that of a value.
        heads, widths = shape.model.heads // shape.tensor, (head_dim(shape.model), value_dim(shape.model))
        asked = shape.rows, max(1, heads), case.part, shape.keys_per_query
        if kernels == "xla":
            return self.device.blocks(*asked, sum(widths) // 2, case.item)
        return self.device.flash(*asked, widths[0], kernels, case.item, widths[1])

    @cached_property
    def context(self) -> tuple[float, float]:
        """Messages of context ranks, forward and backward."""
        return self.messages.context()

    def _rope(self, group: Matmuls, back: bool = False) -> float:
        """Bytes of the rotation, which reads and writes each number once, and of norms of each head before it."""
        normed = HEAD_NORMS[back] if self.shape.model.qk_norm is True else 0.0
        return self.half * 2.0 * (2.0 + normed) * self._numbers(group.rotated)

    def _layout(self, group: Matmuls) -> float:
        """Bytes of laying out outputs by head."""
        return 4.0 * self.half * self._numbers(group.outputs) if group.by_head else 0.0

    def _numbers(self, outputs: Iterable[str]) -> int:
        return self.case.tokens * sum(self.widths[name] for name in outputs)

    # ---- backward

    def backward(self) -> tuple[Work, float]:
        """(the backward, `LayerTime.weight`)."""
        backs: list[tuple[float, float]] = []
        owners: list[Part] = []
        beside: list[Exchanged] = []
        moved = exchanged = hidden = scales = attention = context = recurrences = 0.0
        for part, one in self.shape.layer.operations:
            if isinstance(one, Matmuls):
                backs.append(self._gradients(part, one))
                owners.append(part)
                if self.exchanges_sequence(part, one):
                    sent = self.quantised.sent_bytes(part, one)
                    beside.append(Exchanged(one.inward, self.shape.gathered(part, one), sent, backs[-1][0]))
                elif not one.inward:
                    moved += 2 * self.experts.sorted_bytes + self.experts.combined_bytes
                    exchanged, hidden = exchanged + self.experts.exposed[1], hidden + self.experts.hidden[1]
                elif self.experts.routes(part, one):
                    moved += self.experts.choice_bytes
                moved += self._matmuls_back(part, one) + self.casts(part, one)[1]
                scales += self.scales(part, one)[1]
            elif isinstance(one, Elementwise) and one.traffic is not None:
                moved += self.moved(one.traffic, self.numbers(one.output), back=True)
            elif isinstance(one, Core):
                attention, context = attention + self.attention[1], context + self.context[1]
            elif isinstance(one, Recurrence):
                recurrences += 2 * self.recurrence(one)
        weight, inward = sum(pair[1] for pair in backs), sum(pair[0] for pair in backs)
        apart = sum(pair[1] for part, pair in zip(owners, backs, strict=True) if not part.routed)
        sent, other = self.messages.backward(beside), self.device.bytes_seconds(moved)
        back = Work(inward + weight + recurrences, attention, other, sent, context, exchanged, scales, hidden)
        return back, apart

    def _gradients(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """`group_gradients`; of frozen matrices that of the input, and those of their factors."""
        inward, weight = self.group_gradients(part, group)
        if not self.case.frozen:
            return inward, weight
        factors = [self.low_rank(part, group, name) for name in group.weights]
        return inward + sum(one[1] for one in factors), sum(one[2] for one in factors)

    def _matmuls_back(self, part: Part, group: Matmuls) -> float:
        """Bytes of what follows a group of matmuls: rotation, layout, addition, biases."""
        moved = self._rope(group, back=True) + self._layout(group)
        if group.adds:
            moved += self.moved(RESIDUAL, self.case.between, back=True)
        for place, name in enumerate(group.weights):
            moved += self.low_rank_bytes(part, group, name, back=True)
            if f"{name}_bias" in part.weights and not self.case.frozen:
                numbers = self.numbers(group.outputs[place]) if group.inward else self.case.between
                moved += 2.0 * self.half * numbers
        return moved
