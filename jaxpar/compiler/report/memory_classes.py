"""Classes of values in memory, read from the names of inputs and the model's scopes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jaxpar.compiler.program.hlo.records import Module, Op
from jaxpar.compiler.program.memory.buffers import Allocation, Buffers, Occupant, Value, occupants
from jaxpar.compiler.program.memory.provenance import Provenance

CLASSES: tuple[str, ...] = ("weights", "optimizer", "gradients", "saved_activations", "temporaries", "host")
"""Classes of memory.

- `weights`: made from the master weights within a step, sharded or gathered; frozen weights.
- `optimizer`: state between steps: float32 master weights and moments.
- `gradients`: accumulated in gradient placement, or on their way there.
- `saved_activations`: saved by layers from forward to backward.
- `temporaries`: everything else on the device.
- `host`: pinned memory of the host, which is not part of the device's peak.
"""

_SCOPE = r"(?:^|[/(:]){}(?:[/):]|$)"
_SCOPES = (
    ("gradients", re.compile(_SCOPE.format("(?:gradients|scatter_gradient)"))),
    ("saved_activations", re.compile(_SCOPE.format("(?:saved_activations|kept_for_weights)"))),
    ("weights", re.compile(_SCOPE.format("(?:stored_weights|gather_weight)"))),
)
"""Scopes that decide a class; the first match wins."""
_STATE = (("optimizer", ("master/", "optimizer/", "residual/")), ("weights", ("frozen/",)))
"""Classes of the inputs themselves; a batch is `temporaries`."""
_INPUTS = (("weights", "master/"), ("weights", "frozen/"), ("optimizer", "optimizer/"))
"""Classes of temporaries that were only cast or copied from an input."""
_PRIORITY = ("gradients", "saved_activations", "weights", "optimizer", "temporaries")
"""Precedence of classes where several values share the same bytes."""


class MemoryClasses:
    """Classifies the values of one program."""

    def __init__(self, module: Module, buffers: Buffers, inputs: Sequence[str]):
        self._buffers, self._inputs = buffers, inputs
        self._entry = module.entry
        self._by_slot: dict[tuple[int, int, int], list[Value]] = {}
        for allocation in buffers.allocations:
            for value in allocation.values:
                self._by_slot.setdefault((allocation.index, value.offset, value.size), []).append(value)
        self._classes: dict[tuple[str, tuple[int, ...]], str] = {}
        self.provenance = Provenance(module, buffers.order)

    def class_of(self, occupant: Occupant) -> str:
        """The class of a value in memory at some moment."""
        if occupant.allocation.parameter is not None:
            name = self._inputs[occupant.allocation.parameter]
            return next((class_name for class_name, prefixes in _STATE if name.startswith(prefixes)), "temporaries")
        classes = {self._of_value(value, occupant.allocation) for value in (occupant.value, *occupant.shared_with)}
        return next(name for name in _PRIORITY if name in classes)

    def totals(self, occupants: Iterable[Occupant]) -> dict[str, int]:
        """Bytes per class on the device, without `host`."""
        totals: dict[str, int] = dict.fromkeys(CLASSES[:-1], 0)
        for occupant in occupants:
            totals[self.class_of(occupant)] += occupant.bytes
        return totals

    def bytes_at(self, position: int) -> dict[str, int]:
        """Bytes per class at a position in the order of the program."""
        return self.totals(occupants(self._buffers, position))

    def _of_value(self, value: Value, allocation: Allocation) -> str:
        """The class of a value, by the ops that computed it; otherwise that of the next value in its buffer."""
        key = value.op, value.path
        if key not in self._classes:
            self._classes[key] = self._of_ops(self.provenance.trail(*key))
            if self._classes[key] == "temporaries":
                slot = self._by_slot.get((allocation.index, value.offset, value.size), ())
                later = (other for other in slot if value.first_live < other.first_live <= value.last_live + 1)
                # Zeros that become the stacked output of a loop have that output's class.
                successor = next((other for other in later if self._derives(other, value)), None)
                self._classes[key] = self._of_value(successor, allocation) if successor else self._of_copies(value)
        return self._classes[key]

    def _of_copies(self, value: Value) -> str:
        """The class of a value that begins as a copy of a constant buffer of zeros."""
        trail = self.provenance.trail(value.op, value.path)
        if not trail or trail[-1].opcode != "broadcast":
            return "temporaries"
        same_size = (other for a in self._buffers.allocations for other in a.values if other.size == value.size)
        copies = (
            self._of_ops(self.provenance.trail(other.op, other.path))
            for other in same_size
            if other.first_live > value.first_live and self._derives(other, value)
        )
        return next((name for name in copies if name != "temporaries"), "temporaries")

    def _derives(self, other: Value, value: Value) -> bool:
        return any(op.name == value.op for op in self.provenance.trail(other.op, other.path))

    def _of_ops(self, ops: Sequence[Op]) -> str:
        for name, scope in _SCOPES:
            if any(scope.search(op.op_name) for op in ops):
                return name
        parameters = (op for op in ops if op.opcode == "parameter" and op.computation == self._entry)
        inputs = [self._inputs[int(op.literal)] for op in parameters]
        for name, prefix in _INPUTS:
            if any(path.startswith(prefix) for path in inputs):
                return name
        return "temporaries"
