"""The devices that take part in a collective, in each form that XLA writes, and the mesh axes of the groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from jaxpar.compiler.program.hlo.records import Op, ProgramError
from jaxpar.compiler.program.hlo.syntax import closing, split

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_AXIS = re.compile(r"'?([\w.\-]+?)'?=(\d+)")
_AXIS = re.compile(r"'?([\w.\-]+?)'?(?::\((\d+)\)(\d+))?")


@dataclass(frozen=True)
class Groups:
    """Sets of devices that a collective joins, one group per row; for a permutation, (source, target) per row."""

    rows: tuple[tuple[int, ...], ...]
    permutes: bool

    @property
    def size(self) -> int:
        """Ranks of a group; 2 for a permutation."""
        return len(self.rows[0])

    def axes(self, mesh: Mapping[str, int], op: Op) -> tuple[str, ...]:
        """The axes of `mesh` (sizes, slowest first) that the members of a group differ in, slowest first.

        Raises `ProgramError` if the mesh has another number of devices, or if the groups are not all ranks along
        these axes, nor equal shares of one, nor every n-th of several.
        """
        devices = int(np.prod(list(mesh.values())))
        ranks = np.array(self.rows)
        members = ranks.reshape(-1)
        if members.size == 0 or members.max() >= devices:
            raise ProgramError(f"{op.name} joins devices that a mesh of {devices} does not have", line=op.line)
        places = np.stack(np.unravel_index(ranks, tuple(mesh.values())), axis=-1)
        differs = (places != places[:, :1]).any(axis=(0, 1))
        axes = tuple(axis for axis, apart in zip(mesh, differs, strict=True) if apart)
        whole = int(np.prod([mesh[axis] for axis in axes]))
        splits_one = len(axes) == 1 and whole % self.size == 0
        known = self.size == whole or splits_one or self._evenly_spaced(mesh, axes)
        if not self.permutes and (not known or len(members) != devices):
            what = f"the groups of {op.name} are neither whole axes of the mesh {dict(mesh)} nor shares of one"
            raise ProgramError(what, line=op.line)
        return axes

    def _evenly_spaced(self, mesh: Mapping[str, int], axes: tuple[str, ...]) -> bool:
        """Whether each group is every n-th rank along `axes` together, with the same n: those of a node, or between
        nodes."""
        places = np.unravel_index(np.array(self.rows), tuple(mesh.values()))
        matched = [coordinate for axis, coordinate in zip(mesh, places, strict=True) if axis in axes]
        ranks = np.ravel_multi_index(matched, [mesh[axis] for axis in axes])
        return len(set(np.diff(ranks, axis=1).ravel().tolist())) == 1

    def crosses(self, gpus_per_host: int) -> bool:
        """Whether any group has devices on two hosts, devices being numbered host by host."""
        return any(len({device // gpus_per_host for device in row}) > 1 for row in self.rows)


def groups_of(op: Op, partitions: int) -> Groups:
    """The groups of a collective. Raises `ProgramError` for a form that is not known."""
    if "source_target_pairs" in op.attributes:
        return Groups(_lists(op.attributes["source_target_pairs"], op), permutes=True)
    text = op.attributes.get("replica_groups", "{}")
    if text == "{}":
        return Groups((tuple(range(partitions)),), permutes=False)
    if text.startswith("{"):
        rows = _lists(text, op)
    elif text.startswith("["):
        rows = _iota(text, op)
    elif text.startswith("mesh["):
        rows = _mesh(text, op)
    else:
        raise ProgramError(f"replica_groups of {op.name} are not understood", text, op.line)
    if len({len(row) for row in rows}) != 1:
        raise ProgramError(f"replica_groups of {op.name} have different sizes", text, op.line)
    return Groups(rows, permutes=False)


def _lists(text: str, op: Op) -> tuple[tuple[int, ...], ...]:
    if not re.fullmatch(r"\{(\{\d+(,\d+)*\},?)*\}", text.replace(" ", "")):
        raise ProgramError(f"the devices of {op.name} are not understood", text, op.line)
    return tuple(tuple(int(i) for i in part.strip("{}").split(",")) for part in split(text[1:-1]))


def _iota(text: str, op: Op) -> tuple[tuple[int, ...], ...]:
    """`[2,4]<=[8]`, or `[4,2]<=[2,4]T(1,0)`: numbers in the shape on the right, transposed, as rows."""
    match = _IOTA.fullmatch(text)
    if match is None:
        raise ProgramError(f"replica_groups of {op.name} are not understood", text, op.line)
    shape, reshape, order = ([int(i) for i in part.split(",")] if part else None for part in match.groups())
    assert shape is not None and reshape is not None
    numbers = np.arange(int(np.prod(reshape))).reshape(reshape)
    if order is not None:
        numbers = numbers.transpose(order)
    return _rows(numbers.reshape(shape))


def _mesh(text: str, op: Op) -> tuple[tuple[int, ...], ...]:
    """`mesh['a'=2,'b'=4] {'b'}`, with `, device_ids=(...)` after the mesh, and parts of axes as `'b':(1)2`."""
    end = closing(text, text.index("["))
    ids, _, joined = text[end + 1 :].rpartition(" {")
    mesh = _matches(_MESH_AXIS, text[len("mesh[") : end], f"the mesh of {op.name} is not understood", op)
    sizes = {name: int(size) for name, size in mesh}
    devices = np.arange(prod(sizes.values()))
    if ids:
        listed = list(map(int, re.findall(r"\d+", ids)))
        if not ids.startswith(", device_ids=(") or sorted(listed) != devices.tolist():
            raise ProgramError(f"the device ids of {op.name} are not understood", text, op.line)
        devices = np.array(listed)
    places = dict(zip(sizes, np.unravel_index(np.arange(len(devices)), tuple(sizes.values())), strict=True))
    strides = dict(zip(sizes, np.cumprod([1, *reversed(sizes.values())])[-2::-1].tolist(), strict=True))
    position, group, ranks = np.zeros_like(devices), np.arange(len(devices)), 1
    problem = f"replica_groups of {op.name} are not understood"
    for name, low, part in _matches(_AXIS, joined.removesuffix("}"), problem, op):
        if name not in sizes:
            raise ProgramError(problem, text, op.line)
        count = int(part or sizes[name])
        minor = sizes[name] // (int(low or 1) * count)
        digit = places[name] // minor % count
        position, group, ranks = position * count + digit, group - digit * minor * strides[name], ranks * count
    return _rows(devices[np.lexsort((position, group))].reshape(-1, ranks))


def _matches(pattern: re.Pattern[str], text: str, problem: str, op: Op) -> list[tuple[str, ...]]:
    """The groups of `pattern` in each part of a list."""
    matches = [pattern.fullmatch(part) for part in split(text)]
    if None in matches:
        raise ProgramError(problem, text, op.line)
    return [match.groups() for match in matches if match is not None]


def _rows(numbers: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in row) for row in numbers)
