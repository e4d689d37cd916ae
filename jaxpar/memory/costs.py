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
from jaxpar.memory.layer_shape import LayerShape, activation_bytes
from jaxpar.memory.remat import LAYER_INPUT

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
    sizes, item = activation_bytes(shape), shape.item_bytes
    between, hidden = sizes["layer_input"], sizes["mlp_up"]
    joined = between * shape.tensor
    over_ranks = joined * (shape.tensor - 1) / shape.tensor
    matrix = lambda width: shape.embed * width * item

    def product(name: str, width: int, size: int) -> Operation:
        """The matmul of the joined input with a matrix [embed, width] of this rank."""
        return Operation(name, (name,), 2.0 * shape.tokens * shape.embed * width, joined + matrix(width) + size)

    def back(name: str, outputs: tuple[str, ...], width: int, size: int) -> Operation:
        """The matmul back into the residual stream, the scatter of its partial sums, and the addition."""
        moved = size + matrix(width) + joined + 3 * between
        return Operation(name, outputs, 2.0 * shape.tokens * shape.embed * width, moved, sent=over_ranks)

    gather = lambda name: Operation(name, (), moved=between + joined, sent=over_ranks)
    norm = lambda name, moved=2: Operation(name, (name,), moved=moved * between)
    before, after = shape.norm_placement != "post", shape.norm_placement != "pre"
    joining = "attention_projected" if after else "attention_residual"
    kept = sizes["query"] + sizes["key"] + sizes["value"] + sizes["attention_output"] + sizes["attention_lse"]
    attention = Operation(
        "attention",
        ("attention_output", "attention_lse"),
        flops=4.0 * shape.tokens * shape.keys_per_query * shape.query_width,
        moved=kept,
        sent_context=(sizes["key"] + sizes["value"]) * (shape.context - 1),
    )
    if shape.gated:
        non_linear = (
            product("mlp_gate", shape.hidden_width, hidden),
            Operation("mlp_activated", ("mlp_activated",), moved=2 * hidden),
            Operation("mlp_hidden", ("mlp_hidden",), moved=3 * hidden),
        )
    else:
        non_linear = (Operation("mlp_hidden", ("mlp_hidden",), moved=2 * hidden),)
    return (
        *([norm("attention_input")] if before else []),
        gather("attention_gather"),
        product("query", shape.query_width, sizes["query"]),
        product("key", shape.kv_width, sizes["key"]),
        product("value", shape.kv_width, sizes["value"]),
        attention,
        back(joining, (joining,), shape.query_width, sizes["attention_output"]),
        norm("mlp_input", 2 * before + 3 * after),
        gather("mlp_gather"),
        product("mlp_up", shape.hidden_width, hidden),
        *non_linear,
        back("mlp_down", ("mlp_projected",) if after else (), shape.hidden_width, hidden),
    )


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
