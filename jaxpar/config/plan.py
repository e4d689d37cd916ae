"""The `Plan`: everything about how a run is laid out, as one value; `jaxpar.layout.plan_file` has its files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from jaxpar.config.axes import BATCH_AXES, MESH_AXES, ROUTED_AXES, SHARD_AXES
from jaxpar.config.bounds import (
    BYTES,
    CAPACITY,
    CHUNKS,
    COLLECTIVES,
    COUNT,
    LAYERS,
    MICROBATCHES,
    PERCENT,
    RANKS,
    ROWS,
    SLICES,
    spell_limit,
)
from jaxpar.config.errors import UserError
from jaxpar.config.reading.typed import shown

PLAN_VERSION = 20
"""The version of `plan.json`, which a new field of `Plan` raises."""


def check_plan_version(version: object, label: str) -> None:
    """Raise `UserError` for a `plan.json` (`label` is its name) of another version than `PLAN_VERSION`."""
    if type(version) is not int or version != PLAN_VERSION:
        raise UserError(
            f"{label}: version {shown(version)} of plan.json; expected {PLAN_VERSION}: python -m jaxpar.plan makes a "
            "new one, and so does a run with --config"
        )


@dataclass(frozen=True)
class AxisSizes:
    """The size of each mesh axis, slowest links first. `dict(sizes)` and `sizes["fsdp"]` work."""

    pipe: int = 1
    replica: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1
    islands: int = 1

    def __post_init__(self) -> None:
        for axis, size in dict(self).items():
            _check_range(f"plan.axes.{axis}", size, 1, RANKS)
        if self.devices > RANKS:
            raise UserError(f"plan.axes: {self.devices} devices; expected at most {spell_limit(RANKS)}")

    def keys(self) -> tuple[str, ...]:
        """The names of the axes, in mesh order."""
        return MESH_AXES

    def __getitem__(self, axis: str) -> int:
        if axis not in MESH_AXES:
            raise KeyError(axis)
        return getattr(self, axis)

    @property
    def devices(self) -> int:
        """Devices that the mesh takes."""
        return prod(dict(self).values())

    @property
    def data(self) -> int:
        """Parts into which the batch is split."""
        return prod(self[axis] for axis in BATCH_AXES)

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards."""
        return prod(self[axis] for axis in SHARD_AXES)

    @property
    def routed(self) -> int:
        """Ranks that split the matrices among which a router chooses."""
        return prod(self[axis] for axis in ROUTED_AXES)


@dataclass(frozen=True)
class Dtypes:
    """The dtype of each role, by name."""

    compute: str
    """The dtype of matmuls and activations."""
    storage: str
    """Weights between their uses in a step, and when they are gathered."""
    master: Literal["float32"]
    """Weights that the optimizer updates."""
    gradient: str
    """Accumulation and reduction of gradients."""
    moments: str
    """Moments of the optimizer between updates."""
    weight_message: str | None = None
    """Matrices while they are gathered; null for that of `storage`."""
    gradient_message: str | None = None
    """Gradients of matrices while they are exchanged; null for that of `gradient`."""
    matmul: str | None = None
    """The recipe of the layers' matmuls (`precision.matmul`); null for `compute`."""
    matrix: Literal["float32", "bfloat16"] = "float32"
    """Matmuls of updates of matrices, and the messages that exchange matrices for them."""


@dataclass(frozen=True)
class Choice[T]:
    """A choice, as of an implementation by its name, and why the others were not chosen."""

    name: T
    """The chosen value."""
    reason: str = ""
    """Why; nothing where there was nothing to choose."""
    rejected: dict[str, str] = field(default_factory=dict, hash=False)
    """The others, each with the reason why it was not chosen."""


@dataclass(frozen=True)
class TensorOverlap:
    """Exchange of the sequence of a group of matmuls with the other tensor ranks."""

    algorithm: Choice[Literal["plain", "ring"]] = Choice("plain")
    """`plain`: a collective before or after whole matmuls; `ring`: sends beside matmuls of chunks."""
    chunks: int = 1
    """Chunks into which a `ring` cuts the part of a rank; each passes round by itself, every second one the other
    way."""

    def __post_init__(self) -> None:
        _check_range("plan.tensor_overlap: chunks", self.chunks, 1, CHUNKS)


@dataclass(frozen=True)
class ExpertLayout:
    """Exchange and matmuls of the experts of a kind of layers."""

    exchange: Choice[Literal["all_to_all", "hierarchical", "all_gather"]] = Choice("all_to_all")
    """The algorithm of the exchange: `docs/experts-exchange.md`."""
    capacity: float = 2.0
    """Rows that a rank has room for in a round of it, as a multiple of an even share."""
    products: Choice[str] = Choice("xla", "by default")
    """The implementation of the products of experts."""
    slices: Choice[int] = Choice(1)
    """Parts of a rank's tokens, of which one is exchanged while the experts work on another."""
    own_first: Choice[bool] = Choice(False)
    """Whether a rank computes its own tokens for its own experts apart, while the first slice is sent."""
    node_devices: int | None = None
    """Devices of a node, where the exchange is cut at its border."""
    sent_dtype: Literal["float8_e4m3fn"] | None = None
    """Dtype of the blocks of tokens on their way to other ranks; None is the compute dtype."""

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= CAPACITY:
            raise UserError(f"plan.experts: capacity: must be from 1 to {CAPACITY:g}, got {self.capacity:g}")
        _check_range("plan.experts: slices", self.slices.name, 1, SLICES)
        _check_range("plan.experts: node_devices", self.node_devices, 1, RANKS)


@dataclass(frozen=True)
class LayerLayout:
    """Program of a layer."""

    mlp_tiles: int = 1
    """Tiles of tokens in a dense feed-forward."""
    experts: ExpertLayout | None = None
    """Exchange of experts' tokens."""
    states: str = "allgather"
    """Transport of a mixer's state between context ranks."""
    linear_backend: str = "xla"
    """The implementation that passes it through chunks of tokens."""


UNTILED = LayerLayout()


@dataclass(frozen=True)
class LayerRun:
    """Neighbouring layers of a chunk that keep the same activations between forward and backward."""

    layers: int
    """Number of layers in the run."""
    activations: dict[str, Literal["save", "recompute", "offload"]] = field(hash=False)
    """Treatment of each named activation between forward and backward."""

    def __post_init__(self) -> None:
        _check_range("plan.runs: layers", self.layers, 0, LAYERS)


@dataclass(frozen=True)
class Plan:
    """Layout of a run: what the trainer runs, the simulator times and the report prints."""

    axes: AxisSizes
    """The sizes of the mesh axes."""
    zero: Literal[0, 1, 2, 3]
    """State sharded over fsdp, expert and context: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights."""
    schedule: str
    """The pipeline schedule, or the path of its table; `one-stage` without a pipeline."""
    virtual_stages: int
    """Chunks of layers on each pipeline rank."""
    stage_layers: tuple[int, ...]
    """Layers of each chunk, in the order of the model."""
    pipe_ends: Literal["last", "shared"]
    """Whether the last pipeline rank computes the loss (`last`), or the vocabulary is split over all (`shared`)."""
    pipe_ticks: Literal["uniform", "branching"]
    """Whether all pipeline ranks run the same program in each tick, or each runs only its own action."""
    microbatches: int
    """Parts of the batch of a step."""
    microbatch_rows: int
    """Rows per device and microbatch."""
    remat: str
    """Origin of `runs`: a preset, or a description of what the user wrote."""
    runs: tuple[LayerRun, ...]
    """Remat of the layers of a chunk, in layer order; it is the same for all chunks."""
    dtypes: Dtypes
    """A dtype per role."""
    attention: dict[str, Choice[str]] = field(hash=False)
    """The attention backend of each kind of layers that attends."""
    context_strategy: Choice[str]
    """Strategy by which attention gets the other context ranks' keys and values."""
    query_block: int = 512
    """Rows of queries in a block of scores, where XLA computes attention."""
    kv_block: int = 512
    """Rows of keys in such a block."""
    context_order: Choice[Literal["contiguous", "zigzag", "striped"]] = Choice("contiguous")
    """Tokens of a row that a context rank holds; the reason is what a device sends."""
    hpz: int = 1
    """Neighbouring ranks that hold a second copy of the weights among them during a step; 1 for none."""
    node_devices: int | None = None
    """Devices of a node, where messages are cut at its border; null where none is."""
    joined_gathers: int | None = None
    """Bytes up to which XLA joins gathers of a layer's weights to one message; null where it takes its default."""
    joined_scatters: int | None = None
    """The same of reduce-scatters of a layer's gradients."""
    collectives_at_once: int = 1
    """Collectives that XLA may have in flight."""
    merged_matmuls_mb: int | None = None
    """Megabytes up to which XLA merges matmuls that share an operand, 0 for none; null where it takes its default."""
    memory_percent: int | None = None
    """Percentage of a device's memory that XLA counts with, more with activations on the host; null is default."""
    embedding_messages: Choice[Literal["table", "rows"]] = Choice("table")
    """Whether ranks send the embedding's table and its gradient, or the rows of their tokens and those of these."""
    state_messages: Choice[Literal["allgather", "ring", "pipelined"]] = Choice("allgather")
    """Transport of mixers' states between context ranks: `docs/linear-attention.md`."""
    linear_attention: dict[str, Choice[str]] = field(default_factory=dict, hash=False)
    """Implementation that passes the state of mixers through chunks of tokens, by kind of layers."""
    shard_state_over_replicas: Choice[bool] = Choice(False)
    """Whether master weights and optimizer state are split over replicas too."""
    layer_unroll: Choice[int] = Choice(1)
    """Layers in a turn of the loop over layers."""
    weight_prefetch: Choice[Literal["layer", "parts"]] = Choice("layer")
    """Whether the next attention's weights arrive before products of the feed-forward (context ranks: attention)."""
    ulysses: int = 1
    """Neighbouring context ranks that exchange sequence for heads."""
    tensor_overlap: dict[str, TensorOverlap] = field(default_factory=dict, hash=False)
    """Exchange of the sequence with other tensor ranks, by group of a layer's matmuls; others take `plain`."""
    experts: dict[str, ExpertLayout] = field(default_factory=dict, hash=False)
    """Exchange of experts' tokens, by kind of layers with experts."""
    loss_tiles: Choice[int] = Choice(1)
    """Tiles of a microbatch's tokens in which XLA computes the head and the loss."""
    mlp_tiles: Choice[int] = Choice(1)
    """Tiles of a microbatch's tokens in which the feed-forward of a layer is computed."""
    optimizer_offload: Literal["none", "host", "file"] = "none"
    """Placement of master weights and moments between steps: device, host memory, or disk."""
    resident_weights: tuple[str, ...] = ()
    """Weights whose master and moments stay on the device while those of the others are in the host's memory."""
    weights_offload: Literal["none", "host"] = "none"
    """Placement of the layers' weights and gradients in a step: device or host memory."""

    def __post_init__(self) -> None:
        for name, (low, most) in _RANGES.items():
            value = getattr(self, name)
            _check_range(f"plan.{name}", value.name if isinstance(value, Choice) else value, low, most)
        for layers in self.stage_layers:
            _check_range("plan.stage_layers", layers, 0, LAYERS)

    def layer_of(self, kind: str) -> LayerLayout:
        """Program of the layers of a kind."""
        linear = self.linear_attention.get(kind, Choice(LayerLayout.linear_backend))
        return LayerLayout(self.mlp_tiles.name, self.experts.get(kind), self.state_messages.name, linear.name)

    def with_exact_messages(self) -> Plan:
        """The plan with exact messages of weights and routed tokens."""
        experts = {kind: replace(layout, sent_dtype=None) for kind, layout in self.experts.items()}
        return replace(self, dtypes=replace(self.dtypes, weight_message=None), experts=experts)


NAMED_BY = {
    "attention": "attention.backend",
    "linear_attention": "attention.linear_backend",
    "products": "parallel.experts.backend",
    "matmul": "precision.matmul_options.backend",
}
"""Key that names what `auto` would take from records of kernels, by part of a choice's path in a plan."""

_RANGES: dict[str, tuple[int, int]] = {
    "virtual_stages": (1, LAYERS),
    "microbatches": (1, MICROBATCHES),
    "microbatch_rows": (1, ROWS),
    "hpz": (1, RANKS),
    "ulysses": (1, RANKS),
    "query_block": (1, COUNT),
    "kv_block": (1, COUNT),
    "layer_unroll": (1, LAYERS),
    "loss_tiles": (1, COUNT),
    "mlp_tiles": (1, COUNT),
    "node_devices": (1, RANKS),
    "joined_gathers": (0, BYTES),
    "joined_scatters": (0, BYTES),
    "collectives_at_once": (1, COLLECTIVES),
    "merged_matmuls_mb": (0, COUNT),
    "memory_percent": (1, PERCENT),
}


def _check_range(key: str, value: int | None, low: int, most: int) -> None:
    if value is None:
        return
    if value < low:
        raise UserError(f"{key}: must be at least {low}, got {value}")
    if value > most:
        raise UserError(f"{key}: must be at most {spell_limit(most)}, got {value}")
