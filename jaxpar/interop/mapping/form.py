"""Layout of our weights in a tensor of Hugging Face's format.

A weight's dims are its *inputs*, which a matmul sums over (`ParamSpec.inputs` of them), and its *outputs*. A form joins
each of the two groups into one dim, and orders the two; several weights of one input may stand one after the other in
a tensor, along the outputs, or take turns there. Stacked matrices that are one tensor are numbered by its first
dim, as in ours. The rotary halves of queries and keys have the same order in both formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from math import prod

import numpy as np

from jaxpar.mesh.parameters import ParamSpec

type Region = tuple[slice, ...]
"""A part of an array: first and last index along each dim."""

type ReadTensor = Callable[[Region], np.ndarray]
"""Part of a tensor in a file -> its values."""


type ReadPart = Callable[[Region], np.ndarray]
"""Part of a leaf of a tree of weights -> its values."""


class Form(Enum):
    """The order of the two groups of dims in a tensor."""

    LINEAR = "[outputs, inputs]"
    """Form of PyTorch's `Linear`."""
    TABLE = "[inputs, outputs]"
    """An embedding, or the `Conv1D` of GPT-2."""
    VECTOR = "[outputs]"
    """A bias, or the scale of a norm: all dims are outputs."""
    HEADS = "[1, 1, outputs, 1]"
    """A vector with a number of each head, in Kimi's files (`LaidInRows`)."""
    ROW = "[1, outputs]"
    """A vector, in the files of ERNIE 4.5 (`LaidInRows`)."""
    ROWS = "[heads, outputs]"
    """A vector of each head, such as the scales of its norm."""
    TAPS = "[outputs, 1, taps]"
    """The taps of PyTorch's `Conv1d` of each channel, which are the last dim of the weight (`LaidInRows`)."""


@dataclass(frozen=True)
class Laid:
    """The weights in one tensor: their form, and the spec of each."""

    form: Form
    specs: tuple[ParamSpec, ...]
    interleaved: bool = False
    """Whether the outputs of several weights are interleaved: the first of each, then the second of each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        outputs = sum(prod(self._outputs(spec)) for spec in self.specs)
        sizes = [outputs if group == "outputs" else prod(self._inputs(self.specs[0])) for group in self._order]
        return (*self.specs[0].shape[: self._stack], *sizes)

    def read(self, index: int, region: Region, read: ReadTensor) -> np.ndarray:
        """Read part `region` of the weight at `index`; only the lines of the tensor that contain it are read."""
        spec, turns = self.specs[index], len(self.specs) if self.interleaved else 1
        numbers, region = region[: self._stack], region[self._stack :]
        parts = {"inputs": region[: len(self._inputs(spec))], "outputs": region[len(self._inputs(spec)) :]}
        sizes = {"inputs": self._inputs(spec), "outputs": self._outputs(spec)}
        first = list(accumulate((prod(self._outputs(one)) for one in self.specs), initial=0))[index]
        starts = {"inputs": 0, "outputs": 0 if self.interleaved else first}
        asked = {group: _lines(parts[group], sizes[group], starts[group]) for group in self._order}
        if turns > 1:
            asked["outputs"] = slice(asked["outputs"].start * turns, asked["outputs"].stop * turns)
        values = read((*numbers, *asked.values()))
        if turns > 1:
            lines = [slice(None)] * values.ndim
            lines[self._stack + self._order.index("outputs")] = slice(index, None, turns)
            values = values[tuple(lines)]
        stack = values.shape[: self._stack]
        shape = [size for group in self._order for size in _read_shape(parts[group], sizes[group])]
        rest = [lines for group in self._order for lines in _rest(parts[group])]
        values = values.reshape(*stack, *shape)[(..., *rest) if rest else ...]
        return self._turned(values, len(parts["inputs"]))

    def join(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        """The tensor of whole weights."""
        flat = []
        for spec, weight in zip(self.specs, weights, strict=True):
            stack, inputs, outputs = spec.shape[: self._stack], prod(self._inputs(spec)), prod(self._outputs(spec))
            two = weight.reshape(*stack, inputs, outputs)
            forms = {Form.LINEAR: two.swapaxes(-1, -2), Form.TABLE: two}
            flat.append(forms.get(self.form, two[..., 0, :]))
        axis = self._stack + self._order.index("outputs")
        if not self.interleaved:
            return np.ascontiguousarray(np.concatenate(flat, axis=axis))
        return np.ascontiguousarray(np.stack(flat, axis=axis + 1).reshape(self.shape))

    @property
    def _stack(self) -> int:
        """Dims before the two groups, which number stacked matrices."""
        return self.specs[0].stack

    @property
    def _order(self) -> tuple[str, ...]:
        return {Form.LINEAR: ("outputs", "inputs"), Form.TABLE: ("inputs", "outputs")}.get(self.form, ("outputs",))

    def _inputs(self, spec: ParamSpec) -> tuple[int, ...]:
        return () if "inputs" not in self._order else spec.shape[spec.stack : spec.stack + spec.inputs]

    def _outputs(self, spec: ParamSpec) -> tuple[int, ...]:
        return spec.shape[spec.stack + len(self._inputs(spec)) :]

    def _turned(self, values: np.ndarray, inputs: int) -> np.ndarray:
        """`values`, whose dims have the order of the tensor, with the dims of the weight."""
        if self.form is not Form.LINEAR:
            return values
        first = values.ndim - inputs
        return values.transpose(*range(self._stack), *range(first, values.ndim), *range(self._stack, first))


class LaidInRows(Laid):
    """A vector of one or several weights in a tensor of more dims: rows of taps of convolutions, or one for heads."""

    @property
    def shape(self) -> tuple[int, ...]:
        (size,), taps = super().shape, self.specs[0].shape[-1]
        return {Form.HEADS: (1, 1, size, 1), Form.ROW: (1, size)}.get(self.form, (size // taps, 1, taps))

    def read(self, index: int, region: Region, read: ReadTensor) -> np.ndarray:
        taps, one = self.specs[0].shape[-1], slice(0, 1)

        def flat(region: Region) -> np.ndarray:
            (lines,) = region
            rows = slice(lines.start // taps, lines.stop // taps)
            asked = {Form.HEADS: (one, one, lines, one), Form.ROW: (one, lines)}
            return read(asked.get(self.form, (rows, one, slice(0, taps)))).reshape(-1)

        return super().read(index, region, flat)

    def join(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        return super().join(weights).reshape(self.shape)


def _lines(region: Region, sizes: Sequence[int], start: int) -> slice:
    """The indices of a group's joined dim within which `region` of the group lies."""
    if not region:
        return slice(start, start + 1)
    each, (first, last, _) = prod(sizes[1:]), region[0].indices(sizes[0])
    return slice(start + first * each, start + last * each)


def _read_shape(region: Region, sizes: Sequence[int]) -> list[int]:
    """Shape of what `_lines` reads, dim by dim of the group."""
    if not region:
        return []
    first, last, _ = region[0].indices(sizes[0])
    return [last - first, *sizes[1:]]


def _rest(region: Region) -> list[slice]:
    """The slices of the lines that `_lines` reads, to cut out the region."""
    return [slice(None), *region[1:]] if region else []
