"""What FP8 codes do not hold, judged at each logged step: values that they do not reach, cut off, or flush to zero."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from jaxpar.config.schema import WatchConfig
from jaxpar.observe.events import AnomalyKind
from jaxpar.units import percent, plain

LAST, FEWEST = 100, 10
"""Logged steps that a share of flushed values is compared with: the most, and the least."""
MORE = 0.01
"""A smaller rise of such a share is not reported."""

type Shares = Mapping[str, Sequence[float]]
"""Tensor to a share of its numbers in each layer of the model."""


class Finding(NamedTuple):
    """An anomaly that a logged step shows."""

    kind: AnomalyKind
    text: str
    facts: Mapping[str, Any]


class CodeMonitor:
    """Judges the FP8 metrics of logged steps, of each kind by the layer and tensor where it is worst."""

    def __init__(self, watch: WatchConfig) -> None:
        self._watch = watch
        self._flushed: defaultdict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=LAST))

    def judge(
        self, number: int, reach: Mapping[str, float] | None, saturated: Shares | None, flushed: Shares | None
    ) -> Iterator[Finding]:
        """What is wrong with step `number`, given `StepRecord`'s `matmul_reach`, `matmul_saturated` and
        `matmul_flushed`."""
        if reach:
            yield from self._of_reach(number, reach)
        if saturated:
            yield from self._of_saturated(number, saturated)
        if flushed:
            yield from self._of_flushed(number, flushed)

    def _of_reach(self, number: int, reach: Mapping[str, float]) -> Iterator[Finding]:
        limit = self._watch.limits.fp8_range
        layer, most = max(reach.items(), key=lambda item: item[1])
        if limit is None or most < limit:
            return
        text = (
            f"Values in layer {layer} were up to {plain(most, 3)} times as large as FP8 codes reach at step "
            f"{number}, and cut off: their scale is of earlier steps (precision.matmul: fp8_delayed)."
        )
        yield Finding("fp8_range", text, {"layer": int(layer), "reach": most})

    def _of_saturated(self, number: int, saturated: Shares) -> Iterator[Finding]:
        limit = self._watch.limits.fp8_saturated
        share, tensor, layer = max((share, tensor, layer) for (tensor, layer), share in _each(saturated))
        if limit is None or share <= limit:
            return
        part = percent(share, digits=2)
        text = f"FP8 codes cut off {part} of the numbers of {tensor} in layer {layer} at step {number}."
        yield Finding("fp8_saturated", text, {"layer": layer, "tensor": tensor, "share": share})

    def _of_flushed(self, number: int, flushed: Shares) -> Iterator[Finding]:
        times = self._watch.limits.fp8_flushed
        found: list[tuple[float, float, str, int]] = []
        for (tensor, layer), share in _each(flushed):
            before = self._flushed[tensor, layer]
            usual = median(before) if len(before) >= FEWEST else None
            if times is not None and usual is not None and share >= max(times * usual, usual + MORE):
                found.append((share, usual, tensor, layer))
            before.append(share)
        if not found:
            return
        share, usual, tensor, layer = max(found)
        text = (
            f"FP8 codes flushed {percent(share)} of the numbers of {tensor} in layer {layer} to zero at step {number}, "
            f"where the logged steps before it had a median of {percent(usual)}."
        )
        yield Finding("fp8_flushed", text, {"layer": layer, "tensor": tensor, "share": share, "median": usual})


def _each(shares: Shares) -> Iterator[tuple[tuple[str, int], float]]:
    for tensor, layers in shares.items():
        yield from (((tensor, layer), share) for layer, share in enumerate(layers))
