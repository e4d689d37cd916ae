"""Layout of weights that stand in a tensor head by head, with adjacent rotary pairs in DeepSeek's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

import numpy as np

from jaxpar.interop.mapping.form import Laid, ReadTensor, Region


@dataclass(frozen=True)
class LaidByHead(Laid):
    """Weights whose last dims stand one after the other within each head. Of the last dim of all, the last `rotary`
    outputs rotate, or the first: pairs are neighbours there (0 and 1, 2 and 3, ...), and in ours the two halves."""

    rotary: int = 0
    first: bool = False
    """Whether the first outputs rotate."""
    groups: int | None = None
    """Equal groups of each weight's outputs, which stand in place of heads; null is for weights of equal heads."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self._joined.shape

    def read(self, index: int, region: Region, read: ReadTensor) -> np.ndarray:
        *others, last = region if self.groups is None else self._groups_of(index, region)
        values = self._joined.read(0, (*others, slice(0, sum(self._widths))), read)
        values = self._turn(values, to_halves=True)
        first = list(accumulate(self._widths, initial=0))[index]
        values = values[..., first : first + self._widths[index]][..., last]
        return values if self.groups is None else self._ungrouped(values, index, region)

    def join(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        viewed = [weight.reshape(shape) for weight, shape in zip(weights, self._shapes, strict=True)]
        return self._joined.join([self._turn(np.concatenate(viewed, axis=-1), to_halves=False)])

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        """The shape of each weight with its heads, or groups, and their widths as the last dims."""
        if self.groups is None:
            return [spec.shape for spec in self.specs]
        inputs = [spec.shape[: spec.inputs] for spec in self.specs]
        return [
            (*one, self.groups, spec.size // prod(one) // self.groups)
            for one, spec in zip(inputs, self.specs, strict=True)
        ]

    @property
    def _widths(self) -> list[int]:
        return [shape[-1] for shape in self._shapes]

    @property
    def _joined(self) -> Laid:
        """The tensor as that of one weight."""
        first = self.specs[0]
        axes = first.axes if self.groups is None else (*first.axes[: first.inputs], "heads", "head_dim")
        return Laid(self.form, (replace(first, shape=(*self._shapes[0][:-1], sum(self._widths)), axes=axes),))

    def _groups_of(self, index: int, region: Region) -> Region:
        """The groups with all of a region of a weight, whole."""
        spec = self.specs[index]
        first, last, _ = region[spec.inputs].indices(spec.shape[spec.inputs])
        each = spec.shape[spec.inputs] // (self.groups or 1)
        return (*region[: spec.inputs], slice(first // each, -(-last // each)), slice(0, self._widths[index]))

    def _ungrouped(self, values: np.ndarray, index: int, region: Region) -> np.ndarray:
        """A region of a weight, cut out of its groups."""
        spec = self.specs[index]
        first, last, _ = region[spec.inputs].indices(spec.shape[spec.inputs])
        skipped = first % (spec.shape[spec.inputs] // (self.groups or 1))
        values = values.reshape(*values.shape[: spec.inputs], -1, *spec.shape[spec.inputs + 1 :])
        within = (slice(None),) * spec.inputs
        return values[(*within, slice(skipped, skipped + last - first), *region[spec.inputs + 1 :])]

    def _turn(self, values: np.ndarray, *, to_halves: bool) -> np.ndarray:
        """`values` with its rotating outputs in the other order."""
        if not self.rotary:
            return values
        parts = np.split(values, [self.rotary if self.first else values.shape[-1] - self.rotary], axis=-1)
        index, pairs = (0 if self.first else 1), (-1, 2) if to_halves else (2, self.rotary // 2)
        turning = parts[index]
        parts[index] = turning.reshape(*turning.shape[:-1], *pairs).swapaxes(-1, -2).reshape(turning.shape)
        return np.concatenate(parts, axis=-1)
