"""The `Plan`: everything about how a run is laid out, as one value with a JSON form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Literal

from jaxpar.config.axes import AXES
from jaxpar.config.bounds import BYTES, COUNT, LAYERS, MICROBATCHES, RANKS, ROWS, spell_limit
from jaxpar.config.errors import UserError
from jaxpar.config.json_text import parse_json
from jaxpar.config.typed import record_from_plain


@dataclass(frozen=True)
class AxisSizes:
    """The size of each mesh axis, slowest links first. `dict(sizes)` and `sizes["fsdp"]` work."""

    pipe: int = 1
    replica: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for axis, size in dict(self).items():
            _check_range(f"plan.axes.{axis}", size, 1, RANKS)
        if self.devices > RANKS:
            raise UserError(f"plan.axes: {self.devices} devices; expected at most {spell_limit(RANKS)}")

    def keys(self) -> tuple[str, ...]:
        """The names of the axes, in mesh order."""
        return AXES

    def __getitem__(self, axis: str) -> int:
        if axis not in AXES:
            raise KeyError(axis)
        return getattr(self, axis)

    @property
    def devices(self) -> int:
        """Devices that the mesh takes."""
        return prod(dict(self).values())

    @property
    def data(self) -> int:
        """Parts into which the batch is split."""
        return self.replica * self.fsdp * self.expert


@dataclass(frozen=True)
class Dtypes:
    """The dtype of each role, by name."""

    compute: str
    """Matmuls and activations."""
    storage: str
    """Weights between their uses, and on the wire when they are gathered."""
    master: str
    """Weights that the optimizer updates."""
    gradient: str
    """Accumulation and reduction of gradients."""
    moments: str
    """Moments of the optimizer between updates."""


@dataclass(frozen=True)
class Choice:
    """An implementation that was chosen, and why not another."""

    name: str
    """What was chosen."""
    reason: str
    """Why."""
    rejected: dict[str, str] = field(default_factory=dict, hash=False)
    """What was not, each with its reason."""


@dataclass(frozen=True)
class LayerRun:
    """Neighbouring layers of a chunk of which the same is kept between forward and backward."""

    layers: int
    """How many."""
    activations: dict[str, Literal["save", "recompute", "offload"]] = field(hash=False)
    """What happens to each named activation between forward and backward."""

    def __post_init__(self) -> None:
        _check_range("plan.runs: layers", self.layers, 0, LAYERS)


@dataclass(frozen=True)
class Plan:
    """How a run is laid out: what the trainer runs, the simulator times and the report prints."""

    axes: AxisSizes
    """The mesh."""
    zero: Literal[0, 1, 2, 3]
    """What is sharded over fsdp, expert and context: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights."""
    schedule: str
    """The pipeline schedule, or the path of its table; `one-stage` without a pipeline."""
    virtual_stages: int
    """Chunks of layers on each pipeline rank."""
    stage_layers: tuple[int, ...]
    """Layers of each chunk, in the order of the model."""
    pipe_ends: Literal["last", "shared"]
    """Whether the last pipeline rank computes the loss, or all share its vocabulary."""
    pipe_ticks: Literal["uniform", "branching"]
    """Whether all pipeline ranks run the same program in each tick, or each its own action alone."""
    microbatches: int
    """Parts of the batch of a step."""
    microbatch_rows: int
    """Rows per device and microbatch."""
    remat: str
    """What `runs` came from: a preset, or words for what the user wrote."""
    runs: tuple[LayerRun, ...]
    """What the layers of a chunk keep, in their order; it is the same for all chunks."""
    dtypes: Dtypes
    """A dtype per role."""
    attention: Choice
    """The attention backend."""
    context_strategy: Choice
    """How attention sees the other context ranks' keys and values."""
    kind_attention: dict[str, Choice] = field(default_factory=dict, hash=False)
    """The attention backend of each kind of layers, where kinds have names; `attention` is that of the first."""
    context_order: Literal["contiguous", "zigzag", "striped"] = "contiguous"
    """Which tokens of a row a context rank holds."""
    ulysses: int = 1
    """Neighbouring context ranks that exchange sequence for heads."""
    loss: Choice = field(default_factory=lambda: Choice("xla", "by default"))
    """What computes head and loss."""
    loss_tiles: int = 1
    """Parts of a microbatch's tokens that the head and the loss take in turn, where XLA computes them."""
    mlp_tiles: int = 1
    """Parts of a microbatch's tokens that the feed-forward of a layer takes in turn."""
    optimizer_resident: int = 0
    """Bytes of each device in which state that is offloaded to the host may stay."""
    optimizer_offload: Literal["none", "host", "file"] = "none"
    """Where master weights and moments rest."""
    weights_resident: int = 0
    """Bytes of each device in which weights and gradients of layers may stay though those of others are offloaded."""
    weights_offload: Literal["none", "host"] = "none"
    """Where weights and gradients of layers rest in a step."""

    def __post_init__(self) -> None:
        for name, (low, most) in _RANGES.items():
            _check_range(f"plan.{name}", getattr(self, name), low, most)
        for layers in self.stage_layers:
            _check_range("plan.stage_layers", layers, 0, LAYERS)

    def attention_of(self, kind: str) -> Choice:
        """The attention backend of the layers of a kind."""
        return self.kind_attention.get(kind, self.attention)

    def with_attention(self, backend: str, reason: str | None = None) -> Plan:
        """The plan with another attention backend in all layers, and for the `reason` where one is given."""
        changed = lambda old: replace(old, name=backend, reason=old.reason if reason is None else reason)
        own = {kind: changed(choice) for kind, choice in self.kind_attention.items()}
        return replace(self, attention=changed(self.attention), kind_attention=own)

    def to_json(self) -> str:
        """The plan as JSON text, one key a line."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """The inverse of `to_json`.

        Raises:
            UserError: the text is not JSON, a key is unknown, missing or given twice, or a value is of the wrong type.
        """
        return record_from_plain(Plan, parse_json(text, "plan", unique=True), "plan")


_RANGES: dict[str, tuple[int, int]] = {
    "virtual_stages": (1, LAYERS),
    "microbatches": (1, MICROBATCHES),
    "microbatch_rows": (1, ROWS),
    "ulysses": (1, RANKS),
    "loss_tiles": (1, COUNT),
    "mlp_tiles": (1, COUNT),
    "optimizer_resident": (0, BYTES),
    "weights_resident": (0, BYTES),
}


def _check_range(key: str, value: int, low: int, most: int) -> None:
    if value < low:
        raise UserError(f"{key}: must be at least {low}, got {value}")
    if value > most:
        raise UserError(f"{key}: must be at most {spell_limit(most)}, got {value}")
