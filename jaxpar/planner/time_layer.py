"""Seconds of one decoder layer, of the embedding and of the head, for one microbatch on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jaxpar.attention.context import neighbours
from jaxpar.attention.ulysses import repeats
from jaxpar.config.counting import gated, head_dim, kv_heads
from jaxpar.config.schema import ModelConfig
from jaxpar.planner.mechanisms import Mechanisms
from jaxpar.planner.time_messages import Network, interleaved, overlapped
from jaxpar.planner.time_operations import Device

ALL = frozenset({"*"})
"""Recompute everything, the layer's last matmul too."""


class Work(NamedTuple):
    """Seconds of a part of a step on one device, by what they go to."""

    matmul: float = 0.0
    attention: float = 0.0
    other: float = 0.0
    tensor: float = 0.0
    """Messages over the tensor ranks that nothing hides."""
    context: float = 0.0
    """The same, over the context ranks."""
    kernels: float = 0.0
    """How many kernels the host has to launch."""

    @property
    def seconds(self) -> float:
        """All of it, when the host launches fast enough."""
        return self.matmul + self.attention + self.other + self.tensor + self.context

    def times(self, factor: float) -> Work:
        """So many times this."""
        return Work(*(value * factor for value in self))


def total(works: Iterable[Work]) -> Work:
    """The sum."""
    return Work(*map(sum, zip(*works, strict=True)))


@dataclass(frozen=True)
class LayerCase:
    """What a layer's time depends on, beside hardware and mechanisms."""

    rows: int
    part: int
    """Tokens of a row on this device."""
    sequence: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    gated: bool
    layernorm: bool
    rope: bool
    biases: bool
    window: int | None
    tensor: int
    context: int
    context_strategy: str
    sequence_parallel: bool
    float8: bool
    item: int = 2
    """Bytes of an activation's number."""

    @property
    def tokens(self) -> int:
        """Tokens inside the blocks."""
        return self.rows * self.part

    @property
    def keys(self) -> float:
        """Keys that a query sees on average, under a causal mask and the window."""
        seen = self.sequence if self.window is None else min(self.window, self.sequence)
        return (seen * (seen + 1) / 2 + (self.sequence - seen) * seen) / self.sequence

    @property
    def parameters(self) -> int:
        """Of the layer, on this device before any sharding over data ranks."""
        width = self.heads * self.head_dim + self.kv_heads * self.head_dim
        return self.embed * (2 * width + (3 if self.gated else 2) * self.mlp) // self.tensor


def layer_case(
    model: ModelConfig, sequence: int, rows: int, tensor: int, context: int, strategy: str, parallel: bool,
    precision: str,
) -> LayerCase:  # fmt: skip
    """The case of a layer of `model`."""
    return LayerCase(
        rows=rows, part=sequence // context, sequence=sequence, embed=model.embed, heads=model.heads,
        kv_heads=kv_heads(model), head_dim=head_dim(model), mlp=model.mlp, gated=gated(model),
        layernorm=model.norm == "layernorm", rope=model.position == "rope", biases=model.mlp_bias,
        window=model.window, tensor=tensor, context=context, context_strategy=strategy,
        sequence_parallel=parallel and tensor > 1, float8=precision == "float8",
        item=4 if precision == "float32" else 2,
    )  # fmt: skip


@dataclass(frozen=True)
class LayerTime:
    """A layer: forward by operation, and backward."""

    operations: Mapping[str, Work]
    """By the activation that it makes (names of `memory.layer_shape`), in order; `mlp_down` makes the next input."""
    backward: Work
    weight: float
    """Seconds of the backward that are gradients of weights."""

    @property
    def forward(self) -> Work:
        """All of it."""
        return total(self.operations.values())

    def again(self, names: frozenset[str]) -> Work:
        """Making the activations of `names` again (`ALL` for the whole layer)."""
        if names == ALL:
            return self.forward
        return total([Work(), *(work for name, work in self.operations.items() if name in names)])


@lru_cache(maxsize=50_000)
def layer_time(case: LayerCase, device: Device, network: Network, does: Mechanisms) -> LayerTime:
    """The time of a layer."""
    messages = _Messages(case, network, does)
    move = device.bytes_seconds
    tokens, tensor = case.tokens, case.tensor
    between = float(tokens * case.embed) / (tensor if case.sequence_parallel else 1)
    query, key = case.heads * case.head_dim // tensor, max(1, case.kv_heads // tensor) * case.head_dim
    hidden, wide = case.mlp // tensor, float(tokens * (case.mlp // tensor))
    fused, item = does.fused_elementwise, case.item / 2
    unfused = 1 if fused else 3
    operand = 1 if case.float8 else case.item
    of_gradient = 4 if does.gradient_type == "float32" else 2

    def product(n: int, k: int) -> float:
        return device.matmul(tokens, n, k, 1, case.item, operand)

    def gradients(n: int, k: int) -> tuple[float, float]:
        """Gradient of the input, and of the weight [k, n], added to an accumulator of float32 where kernels do."""
        accumulated = 2 * of_gradient if does.fused_accumulation else case.item
        inward = device.matmul(tokens, k, n, 1, case.item, operand)
        return inward, device.matmul(k, n, tokens, 1, accumulated, operand)

    casts = lambda n, k: (4 * tokens * k + 4 * n * k, 4 * tokens * n) if case.float8 else (0, 0)
    norm_bytes = (4 if fused else 12) * item if case.layernorm else (4 if fused else 32) * item
    norm_back = (8 if fused else 20) * item if case.layernorm else (8 if fused else 56) * item
    drop, drop_back = (3.0, 5.0) if does.dropout else (0.0, 0.0)
    residual, residual_back = 6.0 * item, 6.0 * item
    rope = 4.0 * item * (1 if fused else 5) * tokens * (query + key) if case.rope else 0.0
    layout = 4.0 * item * tokens * (query + 2 * key)
    activation, activation_back = (6.0, 10.0) if case.gated else (4.0, 6.0)
    bias = 2.0 * item * (tokens * (query + 2 * key + hidden) + 2 * between) if case.biases else 0.0
    launches = 2 if fused else 6

    if does.attention == "scores":
        core, core_back = device.scores(
            case.rows, case.heads // tensor, case.part, case.sequence, case.head_dim, does.dropout, fused, case.item
        )
        core_kernels = 6
    else:
        core, core_back = device.flash(
            case.rows, max(1, case.heads // tensor), case.part, case.keys, case.head_dim,
            does.attention, case.item,
        )  # fmt: skip
        core_kernels = 1
    projections = {"query": query, "key": key, "value": key}
    joined = product(query + 2 * key, case.embed)
    out, down = product(case.embed, query), product(case.embed, hidden)
    cast_in, cast_in_back = casts(query + 2 * key, case.embed)
    cast_out, cast_out_back = casts(case.embed, query)
    cast_up, cast_up_back = casts(hidden * (2 if case.gated else 1), case.embed)
    cast_down, cast_down_back = casts(case.embed, hidden)
    ups = 2 if case.gated else 1
    both_up = product(ups * hidden, case.embed)
    context_message, context_message_back = messages.context(core, core_back)

    operations: dict[str, Work] = {"attention_input": Work(other=move(norm_bytes * between), kernels=launches)}
    sent = messages.gather(joined)
    for name, width in projections.items():
        share = width / (query + 2 * key)
        turned = rope * (width / (query + key)) if name != "value" else 0.0
        other = move(turned + (layout + cast_in) * share)
        operations[name] = Work(joined * share, 0.0, other, sent * share, context_message * share, 2 * unfused)
    operations["attention_output"] = Work(attention=core, kernels=core_kernels)
    operations["attention_residual"] = Work(
        out, 0.0, move((residual + drop) * between + cast_out), messages.scatter(out), kernels=2 * unfused
    )
    operations["mlp_input"] = Work(other=move(norm_bytes * between), kernels=launches)
    sent = messages.gather(both_up)
    if case.gated:
        operations["mlp_gate"] = Work(both_up / 2, 0.0, move(cast_up / 2), sent / 2, kernels=1)
        operations["mlp_activated"] = Work()
    operations["mlp_up"] = Work(both_up / ups, 0.0, move(cast_up / ups), sent / ups, kernels=1)
    gate = activation * item * (1 if fused or not case.gated else 10 / 6)
    operations["mlp_hidden"] = Work(other=move(gate * wide), kernels=unfused)
    operations["mlp_down"] = Work(
        down, 0.0, move((residual + drop) * between + cast_down), messages.scatter(down), kernels=2 * unfused
    )

    backs = (
        gradients(query + 2 * key, case.embed),
        gradients(case.embed, query),
        gradients(ups * hidden, case.embed),
        gradients(case.embed, hidden),
    )
    weight = sum(pair[1] for pair in backs)
    inward = sum(pair[0] for pair in backs)
    gate_back = activation_back * item * (1 if fused or not case.gated else 16 / 10)
    other = move(
        2 * (norm_back + residual_back + drop_back) * between + rope + layout + gate_back * wide + bias
        + cast_in_back + cast_out_back + cast_up_back + cast_down_back
        + (0 if does.fused_accumulation else (2.0 + 2 * of_gradient) * case.parameters)
    )  # fmt: skip
    sent = messages.backward(backs, (cast_in, cast_out, cast_up, cast_down))
    kernels = 8 + 2 * core_kernels + 2 * launches + 10 * unfused + (4 if case.biases else 0)
    backward = Work(inward + weight, core_back, other, sent, context_message_back, kernels)
    return LayerTime(operations, backward, weight)


class _Messages:
    """What tensor and context ranks send in a layer, as seconds that are not hidden."""

    def __init__(self, case: LayerCase, network: Network, does: Mechanisms):
        self.case, self.does = case, does
        self.slowdown = network.model.overlap_slowdown
        ring = network.ring(case.tensor, 1)
        whole = float(case.tokens * case.embed * case.item)
        self.parallel = case.sequence_parallel
        self.half = ring.gather(whole) if case.tensor > 1 else 0.0
        self.full = ring.reduce(whole) if case.tensor > 1 else 0.0
        group = 1
        if case.context_strategy == "usp":
            group = neighbours(case.context, case.heads // case.tensor, max(1, network.per_host // case.tensor))
        elif case.context_strategy == "ulysses":
            group = case.context
        self.group = group
        """Neighbouring context ranks that exchange sequence for heads; a ring goes round the groups."""
        self.over_group = network.ring(group, case.tensor)
        self.between_groups = network.ring(case.context // group, case.tensor * group)
        self.over_context = network.ring(case.context, case.tensor)

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

    def backward(self, pairs: tuple[tuple[float, float], ...], _: tuple[float, ...]) -> float:
        """Of the four matmuls' backward: (gradient of the input, of the weight) of qkv, out, up, down.

        Split by columns (qkv, up): the gradient of the input is summed, beside the gradient of the weight where the
        software can; with sequence parallelism the input is gathered again beside the gradient of the input. Split by
        rows (out, down): with sequence parallelism the gradient is gathered first.
        """
        if self.case.tensor == 1:
            return 0.0
        exposed = 0.0
        for place, (inward, weight) in enumerate(pairs):
            columns = place in (0, 2)
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
        if case.context == 1:
            return 0.0, 0.0
        heads = max(1, case.kv_heads // case.tensor)
        part = float(2 * case.tokens * heads * case.head_dim * case.item)
        if case.context_strategy == "allgather":
            forward = self.over_context.gather(part * case.context)
            return self._beside_core(core, forward), self._beside_core(core_back, 2 * forward)
        part *= repeats(heads, self.group)
        query = float(case.tokens * case.heads * case.head_dim // case.tensor * case.item)
        exchanged = 2 * self.over_group.exchange(query) + self.over_group.exchange(part)
        # Backward, keys and values go round again, and the gradients of both in float32.
        steps, ring = case.context // self.group - 1, self.between_groups
        forward, backward = steps * ring.shift(part), steps * ring.shift(part * (1 + 4 / case.item))
        share = steps / (steps + 1)
        return (
            exchanged + self._beside_core(core * share, forward),
            exchanged + self._beside_core(core_back * share, backward),
        )

    def _beside_core(self, core: float, message: float) -> float:
        """What is left of a message beside the attention of other keys, where the software can."""
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
    between = float(case.tokens * case.embed) / (case.tensor if case.sequence_parallel else 1)
    embed = device.bytes_seconds(between * 4 + between * 10)
    return (
        Work(forward, 0.0, device.bytes_seconds(own * logits) + embed / 2, gather, 0.0, 12),
        Work(inward + weight, 0.0, device.bytes_seconds(own_back * logits) + embed / 2, back, 0.0, 12),
    )
