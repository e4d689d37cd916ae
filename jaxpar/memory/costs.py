"""What it costs to make each named activation of a layer again: FLOPs, bytes, and seconds.

Every name has a use in the backward, so what is not kept is made again, once, whatever else is kept. The cost of a
choice is therefore a sum over the operations that run again; two outputs of one kernel (attention's output and its
log-sum-exp) share one operation, which runs again when either is not kept.

Seconds come from a roofline: an operation takes as long as its matmuls at the GPU's peak or its memory traffic at the
peak bandwidth, whichever is longer, and then its messages at the link's bandwidth. Real kernels reach a share of each;
times that were measured can be given instead. The gather of the sequence in front of a group of matmuls is in no cost:
the gradient of the matrices needs the joined input again, whatever is kept, and what runs again uses that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxpar.config.errors import UserError
from jaxpar.config.plan import AxisSizes
from jaxpar.config.spelling import did_you_mean
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.activations import LAYER_INPUT
from jaxpar.layers.declaration import Core, Elementwise, Matmuls, Part
from jaxpar.memory.layer_shape import LayerShape, activation_bytes

BACKWARD = 2.0
"""Backwards of a matmul are two matmuls; a layer's backward is taken for this many forwards where copies hide."""


@dataclass(frozen=True)
class Operation:
    """A step of a layer's forward, on one device and for one microbatch."""

    name: str
    outputs: tuple[str, ...]
    """Named activations that it makes; none for what never runs again."""
    flops: float = 0.0
    """Of matmuls, counted as multiplications and additions."""
    moved: float = 0.0
    """Bytes that it reads from and writes to the device's memory."""
    sent: float = 0.0
    """Bytes that a device sends to the other ranks of its tensor axis."""
    sent_context: float = 0.0
    """The same, of its context axis."""


@dataclass(frozen=True)
class Speeds:
    """What a roofline rests on: per device, in FLOP/s and bytes/s."""

    flops: float
    memory: float
    tensor: float
    """Link to the other ranks of the tensor axis, each direction."""
    context: float
    """Link to the other ranks of the context axis."""
    host: float
    """Link to the host's memory, each direction."""

    def work(self, operation: Operation) -> float:
        """Seconds of matmuls or memory traffic, whichever takes longer."""
        return max(operation.flops / self.flops, operation.moved / self.memory)

    def seconds(self, operation: Operation) -> float:
        """How long `operation` takes by itself: its work, then its messages."""
        return self.work(operation) + operation.sent / self.tensor + operation.sent_context / self.context


def speeds_on(cluster: Cluster, axes: AxisSizes, dtype: str = "bfloat16") -> Speeds:
    """The speeds of a mesh of `axes` on `cluster`, whose GPUs it takes in order, the tensor axis innermost."""
    gpu: GPU = cluster.gpu
    inside = lambda ranks: ranks <= cluster.gpus_per_host and cluster.gpus_per_host % ranks == 0
    wanted = "tensorfloat32" if dtype == "float32" else dtype
    return Speeds(
        flops={str(kind): peak for kind, peak in gpu.peaks.items()}.get(wanted, gpu.training_peak),
        memory=gpu.hbm_bandwidth,
        tensor=cluster.bandwidth(not inside(axes.tensor)),
        context=cluster.bandwidth(not inside(axes.tensor * axes.context)),
        host=cluster.host_bandwidth,
    )


def operations(shape: LayerShape) -> tuple[Operation, ...]:
    """The forward of a layer in order; what has no outputs runs once, forward."""
    sizes = activation_bytes(shape)
    found: list[Operation] = []
    for part, one in shape.layer.operations:
        if isinstance(one, Elementwise):
            outputs = (one.output,) if one.output in sizes else ()
            size = sizes[one.output] if outputs else sizes[LAYER_INPUT]
            found.append(Operation(one.output, outputs, moved=one.moved * size))
        elif isinstance(one, Core):
            found.append(_attention(shape, one, sizes))
        else:
            found += _products(shape, part, one, sizes) if one.inward else [_back(shape, part, one, sizes)]
    return tuple(found)


def _attention(shape: LayerShape, core: Core, sizes: Mapping[str, int]) -> Operation:
    query = next(one for one in shape.layer.activations if one.name == core.query)
    return Operation(
        core.name,
        core.outputs,
        flops=4.0 * shape.tokens * shape.keys_per_query * shape.width(query.dims),
        moved=sum(sizes[name] for name in (core.query, *core.keys, *core.outputs)),
        sent_context=sum(sizes[name] for name in core.keys) * (shape.context - 1),
    )


def _products(shape: LayerShape, part: Part, group: Matmuls, sizes: Mapping[str, int]) -> list[Operation]:
    """The gather of the group's input, and its matmul with each matrix."""
    between = sizes[group.input]
    joined = between * shape.tensor
    found = [Operation(f"{part.name}_gather", (), moved=between + joined, sent=_over_ranks(shape, joined))]
    for weight, output in zip(group.weights, group.outputs, strict=True):
        flops, matrix = _matmul(shape, part, weight)
        found.append(Operation(output, (output,), flops, joined + matrix + sizes[output]))
    return found


def _back(shape: LayerShape, part: Part, group: Matmuls, sizes: Mapping[str, int]) -> Operation:
    """The matmul back into the residual stream, the scatter of its partial sums, and the addition if it is here."""
    (weight,) = group.weights
    flops, matrix = _matmul(shape, part, weight)
    between = sizes[LAYER_INPUT]
    joined = between * shape.tensor
    moved = sizes[group.input] + matrix + joined + (3 if group.adds else 1) * between
    name = group.outputs[0] if group.outputs else f"{part.name}_{weight}"
    return Operation(name, group.outputs, flops, moved, sent=_over_ranks(shape, joined))


def _matmul(shape: LayerShape, part: Part, weight: str) -> tuple[float, int]:
    """FLOPs of a matmul with this rank's part of a matrix, and the bytes of that."""
    inputs, outputs = shape.matrix(part.weights[weight])
    return 2.0 * shape.tokens * inputs * outputs, inputs * outputs * shape.item_bytes


def _over_ranks(shape: LayerShape, joined: int) -> float:
    """What a gather or a scatter over the tensor ranks sends."""
    return joined * (shape.tensor - 1) / shape.tensor


@dataclass(frozen=True)
class Recomputation:
    """An operation as the search sees it: its outputs are kept, or it runs again."""

    outputs: tuple[str, ...]
    seconds: float
    flops: float = 0.0


@dataclass(frozen=True)
class LayerCosts:
    """What a layer can keep and what it costs not to, for one microbatch on one device."""

    sizes: Mapping[str, int]
    """Bytes of each activation, in the order in which a layer makes them."""
    recomputations: Sequence[Recomputation]
    """Each activation but the layer's input is the output of one."""
    forward_seconds: float = 0.0
    """Of the layer at its shortest, its messages hidden behind its work or the other way round; copies to the host hide
    behind it."""
    backward_seconds: float = 0.0
    """Of the layer, with nothing made again; copies from the host hide behind it."""
    host_bandwidth: float = float("inf")
    """Bytes per second and direction to the host's memory."""
    forward_flops: float = 0.0
    """Of the layer's matmuls and attention."""

    def __post_init__(self) -> None:
        made = [name for one in self.recomputations for name in one.outputs]
        assert sorted(made) == sorted(set(self.sizes) - {LAYER_INPUT}), "each activation has one operation"

    def exposed_seconds(self, offloaded: float) -> float:
        """Seconds that a layer waits for so many bytes: what forward and backward are too short to hide."""
        copy = offloaded / self.host_bandwidth
        return max(0.0, copy - self.forward_seconds) + max(0.0, copy - self.backward_seconds)


def layer_costs(shape: LayerShape, speeds: Speeds, measured: Mapping[str, float] | None = None) -> LayerCosts:
    """The costs of a layer of `shape` at `speeds`.

    Args:
        shape: the layer, on one device.
        speeds: of the device and its links.
        measured: seconds by operation (`Operation.name`) that take the place of the roofline's.

    Raises:
        UserError: a measured time is of no operation, or is below 0.
    """
    own = operations(shape)
    seconds = {one.name: speeds.seconds(one) for one in own}
    work = {one.name: speeds.work(one) for one in own}
    for name, value in (measured or {}).items():
        if name not in seconds:
            near = did_you_mean(name, seconds) or f"; there are {', '.join(seconds)}"
            raise UserError(f"measured times: {name!r} is no operation of a layer{near}")
        if not value >= 0:
            raise UserError(f"measured times: {name}: expected seconds, 0 or more, got {value!r}")
        seconds[name] = work[name] = value
    links = sum(one.sent for one in own) / speeds.tensor, sum(one.sent_context for one in own) / speeds.context
    forward = max(sum(work.values()), *links)
    return LayerCosts(
        sizes=activation_bytes(shape),
        recomputations=tuple(Recomputation(o.outputs, seconds[o.name], o.flops) for o in own if o.outputs),
        forward_seconds=forward,
        backward_seconds=BACKWARD * forward,
        host_bandwidth=speeds.host,
        forward_flops=sum(o.flops for o in own),
    )


def head_flops(shape: LayerShape, vocab: int) -> float:
    """FLOPs of the output head, forward, for one microbatch: shared by the tensor ranks."""
    return 2.0 * shape.tokens * shape.embed * vocab / shape.tensor
