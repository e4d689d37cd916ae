"""The parameters of the time model, fitted to published runs, and the runs that decide each of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from jaxpar.cost.hardware_model import AMPERE, HOPPER, HardwareModel
from jaxpar.planner.evidence.published import Run, read_runs
from jaxpar.planner.evidence.validate import Judged, judge

TOLERANCE = 0.05
PRIOR = 0.02
"""Pull towards the starting values, for parameters that the data do not determine."""

SHARED = {
    "matmul_ramp": (20.0, 600.0), "memory_share": (0.4, 1.0), "network_share": (0.3, 0.95),
    "overlap_slowdown": (0.0, 1.0), "host_jitter": (0.0, 0.03),
}  # fmt: skip
"""One value for all GPU kinds, and the range that has meaning."""
OF_KIND = {"matmul_share": (0.4, 1.0), "attention_first_share": (0.08, 1.0), "attention_share": (0.2, 1.0)}
"""One value for Ampere, one for Hopper."""
FITTED = (
    *(("both", name, *bounds) for name, bounds in SHARED.items()),
    *((kind, name, *bounds) for kind in ("ampere", "hopper") for name, bounds in OF_KIND.items()),
    ("hopper", "float8_share", 0.2, 1.0),
)
START = {
    "matmul_ramp": 80.0, "memory_share": 0.8, "network_share": 0.9, "overlap_slowdown": 0.2, "host_jitter": 0.01,
    "matmul_share": 0.75,
}  # fmt: skip
"""Where fits begin; each of these is decided by several sources, whichever is left out."""

PRIORS = {
    ("ampere", "attention_first_share"): (
        0.402, "FlashAttention reaches 25 to 40% of an A100 (arXiv:2307.08691), forward and backward; the middle"
    ),
    ("ampere", "attention_share"): (
        0.795, "FlashAttention-2 reaches 50 to 73% of an A100 (arXiv:2307.08691), forward and backward; the middle"
    ),
    ("hopper", "attention_first_share"): (
        0.210, "as on an A100, times 335 / 203 TFLOP/s: FlashAttention-2, forward and backward, on an H100 and on an "
        "A100 (arXiv:2307.08691, figures 4 and 7)"
    ),
    ("hopper", "attention_share"): (
        0.460, "FlashAttention-2 reaches 35% of an H100 (arXiv:2407.08608)"
    ),
    ("hopper", "float8_share"): (
        0.783, "1,550 TFLOP/s in float8 on an H800 (github.com/deepseek-ai/DeepGEMM, April 2025)"
    ),
}  # fmt: skip
"""Where fits begin, and stay when the only source that uses them is left out: kernels that others have timed alone.
Published rates of attention are FLOPs of forward and backward over their time, which includes the exponentials that
`Device.flash` counts apart: (4 w + 10 w / 0.8) / (peak share) + 2 / exponentials = 14 w / (peak published), for heads
of w = 128."""


@dataclass(frozen=True)
class Fit:
    """Parameters of each kind of GPU."""

    ampere: HardwareModel
    hopper: HardwareModel

    def of(self, run: Run) -> HardwareModel:
        """For the GPUs of a run."""
        return self.hopper if run.cluster.gpu.compute_capability >= (9, 0) else self.ampere

    def judge(self, runs: Sequence[Run]) -> list[Judged]:
        """Predictions of runs."""
        return [judge(run, self.of(run)) for run in runs]


CURRENT = Fit(AMPERE, HOPPER)


def fit(runs: Sequence[Run], evaluations: int = 12, *, neutral: bool = False) -> Fit:
    """The parameters that are closest to `runs`; `neutral` begins with the middle of their range for all `PRIORS`."""
    counts = Counter(run.source for run in runs)
    weights = np.array([counts[run.source] ** -0.5 for run in runs])
    low, high = (np.array([entry[place] for entry in FITTED]) for place in (2, 3))
    start = np.array([_start(*entry, neutral=neutral) for entry in FITTED], float)
    origin = (start - low) / (high - low)

    def residuals(scaled: np.ndarray) -> np.ndarray:
        judged = _fit_of(low + scaled * (high - low)).judge(runs)
        errors = np.log1p(np.array([one.error for one in judged], float))
        robust = np.sign(errors) * TOLERANCE * np.sqrt(2 * (np.sqrt(1 + (errors / TOLERANCE) ** 2) - 1))
        return np.concatenate([robust * weights, PRIOR * (scaled - origin)])

    found = least_squares(residuals, origin, bounds=(0, 1), diff_step=3e-3, max_nfev=evaluations)
    return _fit_of(low + found.x * (high - low))


def _start(kind: str, name: str, low: float, high: float, *, neutral: bool) -> float:
    if (kind, name) not in PRIORS:
        return START[name]
    return (low + high) / 2 if neutral else PRIORS[kind, name][0]


def _fit_of(values: np.ndarray) -> Fit:
    of = lambda kind: {n: float(v) for (k, n, *_), v in zip(FITTED, values, strict=True) if k in ("both", kind)}
    return Fit(replace(AMPERE, **of("ampere")), replace(HOPPER, **of("hopper")))


def timed_runs(path: Path) -> list[Run]:
    """The runs of a file whose speed was measured."""
    return [run for run in read_runs(path) if run.tokens_per_s_per_gpu is not None]


def fit_others(path: Path, source: str, neutral: bool = False) -> Fit:
    """The fit to the runs of all sources of a file but one."""
    return fit([run for run in timed_runs(path) if run.source != source], evaluations=6, neutral=neutral)


def fit_all(path: Path) -> Fit:
    """The fit to all runs of a file."""
    return fit(timed_runs(path))


def fit_rest(path: Path) -> Fit:
    """The fit to the runs of a file except a random fifth."""
    runs = timed_runs(path)
    fifth = random_fifth(len(runs))
    return fit([run for i, run in enumerate(runs) if i not in fifth], evaluations=6)


def random_fifth(number: int, seed: int = 0) -> set[int]:
    """A random fifth of so many rows."""
    order = list(range(number))
    random.Random(seed).shuffle(order)
    return set(order[: number // 5])


Behind = Mapping[tuple[str, str], Counter[str]]
"""Of each fitted parameter, the rows that it makes a difference to, by source."""


def behind(runs: Sequence[Run], found: Fit, change: float = 0.1, matters: float = 1e-3) -> Behind:
    """Whose predictions move by `matters` when a parameter moves by a tenth."""
    before = [one.error or 0.0 for one in found.judge(runs)]
    rows: dict[tuple[str, str], Counter[str]] = {}
    for kind, name, low, high in FITTED:
        moved = found
        for which in ("ampere", "hopper") if kind == "both" else (kind,):
            model = getattr(moved, which)
            value = getattr(model, name)
            value = value * (1 + change) if value * (1 + change) <= high else value * (1 - change)
            moved = replace(moved, **{which: replace(model, **{name: max(low, value)})})
        after = [one.error or 0.0 for one in moved.judge(runs)]
        rows[kind, name] = Counter(
            run.source
            for run, was, now in zip(runs, before, after, strict=True)
            if abs((1 + now) / (1 + was) - 1) > matters
        )
    return rows


def alone(rows: Behind) -> list[str]:
    """Sources without which a prior stays what it is."""
    return sorted({next(iter(rows[key])) for key in PRIORS if len(rows[key]) == 1})
