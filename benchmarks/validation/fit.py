"""The parameters of the time model, fitted to published runs, and the runs that decide each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import lsq_linear

from benchmarks.validation.judged import Judged
from benchmarks.validation.mechanisms import NEUTRAL
from benchmarks.validation.predict import judge
from benchmarks.validation.published import Run
from jaxpar.cost.hardware_model import AMPERE, HOPPER, HardwareModel

TOLERANCE = 0.05
REFITTED = 3
"""Steps of a fit that starts at the present one."""
PRIOR = 0.1
"""Pull towards the starting values, for parameters that the data do not determine."""

SHARED = {
    "matmul_ramp": (20.0, 600.0), "memory_share": (0.4, 1.0),
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
    "matmul_ramp": 80.0, "memory_share": 0.8,  "overlap_slowdown": 0.2, "host_jitter": 0.01,
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
        return self.hopper if _kind(run) == "hopper" else self.ampere

    def judge(self, runs: Sequence[Run]) -> list[Judged]:
        """Predictions of runs."""
        return [judge(run, self.of(run)) for run in runs]


CURRENT = Fit(AMPERE, HOPPER)


@dataclass(frozen=True)
class Slopes:
    """The errors of runs at some parameters, and how they change with each: fits to a part of the runs cost nothing."""

    runs: Sequence[Run]
    at: np.ndarray
    """The parameters, as shares of their ranges."""
    errors: np.ndarray
    """Logarithm of predicted over measured speed, by run."""
    by: np.ndarray
    """Its derivative by each parameter, [run, parameter]."""


def slopes(runs: Sequence[Run], around: Fit, step: float = 0.02) -> Slopes:
    """Finite differences around a fit; layouts that rows leave open stay those that are fastest there."""
    judged = around.judge(runs)
    fixed = [replace(one.run, layouts=(one.layout,)) for one in judged]
    at = _scaled(around)
    errors = np.log1p(np.array([one.error for one in judged], float))
    by = np.zeros((len(runs), len(FITTED)))
    for place, (kind, *_) in enumerate(FITTED):
        moved = at.copy()
        change = step if at[place] + step <= 1 else -step
        moved[place] += change
        own = [i for i, run in enumerate(runs) if kind in ("both", _kind(run))]
        after = _fit_of(LOW + moved * (HIGH - LOW)).judge([fixed[i] for i in own])
        by[own, place] = (np.log1p(np.array([one.error for one in after], float)) - errors[own]) / change
    return Slopes(runs, at, errors, by)


def refit(runs: Sequence[Run], around: Fit, times: int) -> Fit:
    """The fit to runs, in steps from `around` that slopes are right for."""
    for _ in range(times):
        around = fit(slopes(runs, around), reach=0.15)
    return around


def fit(
    known: Slopes, uses: Callable[[Run], bool] = lambda _: True, *, neutral: bool = False, reach: float = 1.0
) -> Fit:
    """The parameters that are closest to the runs that `uses` accepts; `neutral` starts all `PRIORS` in the middle.

    Parameters move by at most `reach` of their range. Least squares with weights that fall with the size of an error
    (`TOLERANCE`), until they no longer change.
    """
    chosen = np.array([uses(run) for run in known.runs])
    counts = Counter(run.source for run, own in zip(known.runs, chosen, strict=True) if own)
    weights = np.array(
        [counts[run.source] ** -0.5 if own else 0.0 for run, own in zip(known.runs, chosen, strict=True)]
    )
    origin = (np.array([_start(*entry, neutral=neutral) for entry in FITTED]) - LOW) / (HIGH - LOW)
    scaled = known.at
    for _ in range(30):
        errors = known.errors + known.by @ (scaled - known.at)
        each = weights * (1 + (errors / TOLERANCE) ** 2) ** -0.25
        left = np.concatenate([each[:, None] * known.by, PRIOR * np.eye(len(origin))])
        right = np.concatenate([each * (known.by @ known.at - known.errors), PRIOR * origin])
        low, high = np.clip(known.at - reach, 0, 1), np.clip(known.at + reach, 0, 1)
        scaled = lsq_linear(left, right, (low, high + 1e-9)).x
    return _fit_of(LOW + scaled * (HIGH - LOW))


LOW, HIGH = (np.array([entry[place] for entry in FITTED]) for place in (2, 3))


def _scaled(found: Fit) -> np.ndarray:
    """Parameters as shares of their ranges."""
    values = [getattr(found.ampere if kind == "ampere" else found.hopper, name) for kind, name, *_ in FITTED]
    return np.clip((np.array(values) - LOW) / (HIGH - LOW), 0, 1)


def _kind(run: Run) -> str:
    return "hopper" if run.cluster.gpu.compute_capability >= (9, 0) else "ampere"


def _start(kind: str, name: str, low: float, high: float, *, neutral: bool) -> float:
    if (kind, name) not in PRIORS:
        return START[name]
    return (low + high) / 2 if neutral else PRIORS[kind, name][0]


def _fit_of(values: np.ndarray) -> Fit:
    of = lambda kind: {n: float(v) for (k, n, *_), v in zip(FITTED, values, strict=True) if k in ("both", kind)}
    return Fit(replace(AMPERE, **of("ampere")), replace(HOPPER, **of("hopper")))


def as_unknown(runs: Sequence[Run]) -> list[Run]:
    """The same runs, of software that is not known, and like none of its generation."""
    others = lambda run: {kind: does for kind, does in run.kinds.items() if kind != run.software}
    return [replace(run, mechanisms=run.kinds[NEUTRAL], software=None, kinds=others(run)) for run in runs]


Behind = Mapping[tuple[str, str], Counter[str]]
"""Of each fitted parameter, the rows that it makes a difference to, by source."""


def behind(known: Slopes, change: float = 0.1, matters: float = 1e-3) -> Behind:
    """Whose predictions move by `matters` when a parameter moves by a tenth."""
    moved = np.abs(known.by * (known.at + LOW / (HIGH - LOW)) * change)
    return {
        (kind, name): Counter(run.source for run, by in zip(known.runs, moved[:, place], strict=True) if by > matters)
        for place, (kind, name, *_) in enumerate(FITTED)
    }


def alone(rows: Behind) -> list[str]:
    """Sources without which a prior stays what it is."""
    return sorted({next(iter(rows[key])) for key in PRIORS if len(rows[key]) == 1})
