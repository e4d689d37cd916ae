"""Bytes of master weights and moments: on the device, in the host's memory, and in transfers between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.layout.memory.weights import Parts, Weight
from jaxpar.memory.layer_shape import FLOAT32_BYTES
from jaxpar.memory.streaming import PIECE_BYTES, PIECES, piece_rows
from jaxpar.mesh.layer_order import LAYERS


class StackState(NamedTuple):
    """Master and moments of one weight of all layers, or of embedding and head, on a device."""

    weight: Weight
    row: float
    """Bytes of a row, which is a layer; for embedding and head, all bytes."""
    rows: int

    @property
    def bytes(self) -> float:
        """Bytes of all rows."""
        return self.row * self.rows


@dataclass(frozen=True)
class StateBytes:
    """The state of all weights."""

    config: Config
    parts: Parts
    sharded: bool
    """Whether ZeRO splits it."""
    rows: Mapping[str, int]
    """Rows of each kind's stack on a device."""

    def stored_bytes(self, placement: str, resident: Collection[str] = ()) -> tuple[int, int, int]:
        """Bytes that stay on the device, of buffers there, and in the host's memory; for state on disk the latter are
        buffers too.

        Args:
            placement: `memory.optimizer_offload`.
            resident: weights whose state stays on the device under `host`.
        """
        if placement == "file":
            return 0, 0, PIECES * self._largest_piece
        name = "state" if self.sharded else "full_state"
        embed_and_head = sum(getattr(part, name) for part in self.parts.embed_and_head.values())
        total = int(
            embed_and_head + sum(getattr(part, name) * self.rows[kind] for kind, part in self.parts.layers.items())
        )
        if placement == "none":
            return total, 0, 0
        stays = int(sum(state.bytes for state in self._weights if state.weight.name in resident))
        return stays, min(total - stays, PIECES * self.passing_piece), total - stays

    @property
    def trained(self) -> int:
        """Weights that a device updates."""
        local = lambda weight: weight.updated if self.sharded else weight.compute
        return sum(local(state.weight) * state.rows for state in self._weights)

    @property
    def outer(self) -> int:
        """Bytes of the state that islands share, where it is in the host's memory (`islands.offload`)."""
        islands = self.config.islands
        if not islands.share_mesh or islands.offload == "none":
            return 0
        return 2 * FLOAT32_BYTES * self.trained

    @property
    def passing_piece(self) -> int:
        """Bytes of a piece of state that passes through the device: a row may be larger than a piece should be."""
        return max(PIECE_BYTES, self._largest_piece)

    def bytes_by_weight(self) -> dict[str, int]:
        """Bytes of each weight's state on a device, in the order of the update."""
        weights = sorted(self._weights, key=lambda state: state.weight.name.split("."))
        return {state.weight.name: int(state.bytes) for state in weights}

    @property
    def _weights(self) -> Iterator[StackState]:
        stacks = [(part, self.rows[kind]) for kind, part in self.parts.layers.items()]
        for part, rows in (*stacks, *((part, 1) for part in self.parts.embed_and_head.values())):
            for weight in part.weights:
                if not weight.trained:
                    continue
                yield StackState(weight, weight.state if self.sharded else weight.full_state, rows)

    @property
    def _largest_piece(self) -> int:
        return max((self._piece(one) for one in self._weights), default=0)

    def _piece(self, state: StackState) -> int:
        """Number of rows that `residency.weight_update` takes: of matrices at least a layer for each rank."""
        weight, layered = state.weight, state.weight.name.startswith(LAYERS)
        if not OPTIMIZERS[self.config.optimizer.name].by_layers or (weight.matrices and not layered):
            return int(state.bytes)
        if not layered:
            return min(int(state.bytes), PIECE_BYTES)
        least = weight.elements // (weight.updated if self.sharded else weight.compute) if weight.matrices else 1
        return int(state.row * piece_rows(state.rows, int(state.row), least))
