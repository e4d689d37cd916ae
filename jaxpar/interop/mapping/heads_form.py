"""Layout of latent attention's weights in DeepSeek's tensors: head by head, with adjacent rotary pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from jaxpar.interop.mapping.form import Laid, ReadTensor, Region


@dataclass(frozen=True)
class LaidByHead(Laid):
    """Weights whose last dims stand one after the other within each head. Of the last dim of all, the last `rotary`
    outputs rotate: pairs are neighbours there (0 and 1, 2 and 3, ...), and in ours the two halves."""

    rotary: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self._joined.shape

    def read(self, index: int, region: Region, read: ReadTensor) -> np.ndarray:
        *others, last = region
        values = self._joined.read(0, (*others, slice(0, sum(self._widths))), read)
        values = self._turn(values, to_halves=True)
        first = list(accumulate(self._widths, initial=0))[index]
        return values[..., first : first + self._widths[index]][..., last]

    def join(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        return self._joined.join([self._turn(np.concatenate(weights, axis=-1), to_halves=False)])

    @property
    def _widths(self) -> list[int]:
        return [spec.shape[-1] for spec in self.specs]

    @property
    def _joined(self) -> Laid:
        """The tensor as that of one weight."""
        first = self.specs[0]
        return Laid(self.form, (replace(first, shape=(*first.shape[:-1], sum(self._widths))),))

    def _turn(self, values: np.ndarray, *, to_halves: bool) -> np.ndarray:
        """`values` with its rotating outputs in the other order."""
        if not self.rotary:
            return values
        still, turning = np.split(values, [values.shape[-1] - self.rotary], axis=-1)
        pairs = (-1, 2) if to_halves else (2, self.rotary // 2)
        turned = turning.reshape(*turning.shape[:-1], *pairs).swapaxes(-1, -2).reshape(turning.shape)
        return np.concatenate([still, turned], axis=-1)
