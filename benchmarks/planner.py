"""The planner's time model against published runs: fits it, and writes tables and scatter plots to docs/planner.md.

    python -m benchmarks.planner --data ../shared/measurements/calibration.csv             # tables on the screen
    python -m benchmarks.planner --data ... --collectives ../shared/measurements/collectives/allreduce_single_node.csv
    python -m benchmarks.planner --data ... --write                                        # and docs/planner.md

What is fitted: `FITTED`, on the logarithm of predicted over measured tokens/s/GPU. Every source weighs the same,
whatever its number of rows; errors above `TOLERANCE` count by their size, not its square: odd rows do not decide.
Three ways to be judged: by the rows it was fitted to; by each source in turn, fitted to all the others; and by a random
fifth, fitted to the rest. `held out` are runs of jaxpar/planner/evidence/data/held_out.csv, which are never fitted to.
"""

from __future__ import annotations

import csv
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.planner_cases import published_cases
from benchmarks.planner_plot import scatter
from jaxpar.cli import Parser, command
from jaxpar.cost.hardware_model import AMPERE, HOPPER, UNFITTED, HardwareModel, described
from jaxpar.cost.messages import network_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.evidence.published import Run, read_runs
from jaxpar.planner.evidence.validate import HELD_OUT, Judged, Report, judge, report
from jaxpar.units import KILO, MICRO, MILLI, percent

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "planner.md"
PICTURE = ROOT / "docs" / "images" / "planner-errors.png"
BEGIN, END = "<!-- benchmarks.planner: begin -->", "<!-- benchmarks.planner: end -->"

IN_SAMPLE = "in sample"
NO_PRIORS = "the same, no priors"

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


def behind_table(rows: Behind, found: Fit) -> list[str]:
    """Rows and sources behind each fitted parameter, and where those with a prior begin."""
    lines = ["| parameter | of | rows | sources | begins at | fitted |", "|---|---|---|---|---|---|"]
    of = {"both": "all", "ampere": "A100, A800", "hopper": "H100, H800"}
    for kind, name, *_ in FITTED:
        sources = rows[kind, name]
        value, cited = PRIORS.get((kind, name), (START.get(name, 0.0), ""))
        where = ", ".join(sources) if len(sources) <= 3 else f"{len(sources)} of them"
        begins = f"{value:g}: {cited}" if cited else f"{value:g}"
        fitted = getattr(found.ampere if kind == "ampere" else found.hopper, name)
        lines.append(f"| `{name}` | {of[kind]} | {sum(sources.values())} | {where} | {begins} | {fitted:.3g} |")
    return lines


def _written(found: Fit) -> str:
    """The fitted values, as `hardware_model` has them."""
    values = (
        (kind, name, getattr(found.ampere if kind == "ampere" else found.hopper, name)) for kind, name, *_ in FITTED
    )
    return ", ".join(f"{kind} {name}={value:.3g}" for kind, name, value in values)


def collectives_table(path: Path) -> list[str]:
    """All-reduces inside a host, measured and predicted, by GPU and ranks."""
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    lines = ["| GPU | ranks | median error | largest message: measured | predicted |", "|---|---|---|---|---|"]
    for gpu, short, share in (("A100", "a100-80", AMPERE.node_share), ("V100", "v100-32", 0.895)):
        network = network_of(parse_cluster(f"{short}:1x8"), replace(AMPERE, node_share=share))
        for ranks in (2, 4, 8):
            own = [
                (int(r["size_bytes"]), float(r["time_us"]))
                for r in rows
                if r["gpu"] == gpu and int(r["n_gpus"]) == ranks
            ]
            ring = network.ring(ranks, 1)
            errors = [abs(ring.reduce(size) / MICRO / time - 1) for size, time in own]
            size, time = own[-1]
            lines.append(
                f"| {gpu} | {ranks} | {percent(float(np.median(errors)))} | {time / KILO:.2f} ms | "
                f"{ring.reduce(size) / MILLI:.2f} ms |"
            )
    return lines


def parameters_table(found: Fit) -> list[str]:
    """Every parameter: value on Ampere, on Hopper, unit, meaning."""
    fitted = {name for _, name, *_ in FITTED}
    lines = ["| parameter | A100, A800 | H100, H800 | unit | what it is | from |", "|---|---|---|---|---|---|"]
    for (name, ampere, unit, meaning), (_, hopper, *_) in zip(
        described(found.ampere), described(found.hopper), strict=True
    ):
        source = "fitted" if name in fitted else SOURCES[name]
        lines.append(f"| `{name}` | {ampere:.3g} | {hopper:.3g} | {unit} | {meaning} | {source} |")
    return lines


SOURCES = {
    "launch_seconds": "usual; no run in the data is limited by it",
    "node_share": "all-reduces measured alone",
    "message_seconds": "all-reduces measured alone",
    "attention_native_share": "NVIDIA's table for cuDNN 9",
    "multiprocessors": "datasheet",
    "exponentials": "whitepaper",
}


def errors_table(parts: Mapping[str, Report]) -> list[str]:
    """Median and 90th percentile by source, for each way to be judged."""
    names = list(dict.fromkeys(name for part in parts.values() for name in part.sources))
    head = ["source", *(f"{part}: rows | median | p90" for part in parts)]
    lines = ["| " + " | ".join(head) + " |", "|---" * (1 + 3 * len(parts)) + "|"]
    for name in [*names, None]:
        cells = [name or "**mean over sources**"]
        for part in parts.values():
            errors = part.overall if name is None else part.sources.get(name)
            shown = errors is not None and errors.median_error is not None and errors.p90_error is not None
            cells += (
                [str(errors.rows), percent(errors.median_error), percent(errors.p90_error)]
                if shown and errors is not None and errors.median_error is not None and errors.p90_error is not None
                else ["", "", ""]
            )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="published runs")
    parser.add_argument("--collectives", type=Path, help="all-reduces measured alone")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {PICTURE.name}")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    everything = read_runs(options.data)
    runs = [run for run in everything if run.tokens_per_s_per_gpu is not None]
    memory = [run for run in everything if run.peak_gib is not None]
    rows = behind(runs, CURRENT)
    sources, deciding = sorted({run.source for run in runs}), alone(rows)
    data, of = options.data, lambda source: [run for run in runs if run.source == source]
    with ProcessPoolExecutor(options.jobs) as pool:  # fits are independent of each other
        without = {source: pool.submit(fit_others, data, source) for source in sources}
        neutral = {source: pool.submit(fit_others, data, source, True) for source in deciding}
        rest, anew, cases = pool.submit(fit_rest, data), pool.submit(fit_all, data), pool.submit(published_cases)
        judged = {
            IN_SAMPLE: CURRENT.judge(runs),
            "leave one source out": [one for name in sources for one in without[name].result().judge(of(name))],
            NO_PRIORS: [
                one for name in sources for one in (neutral.get(name) or without[name]).result().judge(of(name))
            ],
            "random fifth": rest.result().judge([runs[i] for i in sorted(random_fifth(len(runs)))]),
            "never fitted": CURRENT.judge(read_runs(HELD_OUT)),
        }
        found = anew.result()
    print(_written(found), file=sys.stderr, flush=True)
    reports = {name: report(part) for name, part in judged.items()}
    whole = report(CURRENT.judge(runs + memory))
    again = report(found.judge(runs)).overall.median_error or 0
    parts = [
        "### What a GPU reaches", "", *parameters_table(CURRENT), "",
        f"Fitted anew, the median over sources is {percent(again)}. GPUs whose shares are those of a neighbour: "
        + "; ".join(f"{gpu}: {why}" for gpu, why in UNFITTED.items()) + ".", "",
        "Rows whose prediction moves by 0.1% or more when a parameter moves by a tenth, and the sources they are of. "
        "Parameters that one source alone decides begin, and stay when that source is left out, at what others "
        "measured of the kernels alone:", "",
        *behind_table(rows, CURRENT), "",
        "### Errors of tokens/s/GPU", "",
        *errors_table({name: part for name, part in reports.items() if name != IN_SAMPLE}), "",
        "No priors: the same with those parameters begun, and left, in the middle of their ranges, for the sources "
        f"that alone decide one ({', '.join(deciding)}).", "",
        f"![Errors of predictions by measured speed]({PICTURE.relative_to(PAGE.parent)})", "",
        "In sample, with the choice among measured layouts, and memory (`python -m jaxpar.plan validate`):", "",
        "```", *whole.table(), "```", "",
        "Memory here is Megatron's closed form (`memory/closed_forms.py`) against Kuaishou's measurements: it does "
        "not judge the planner's own memory model, which the table under *Memory* above compares with XLA's.", "",
    ]  # fmt: skip
    if options.collectives:
        parts += ["### Collectives", "", *collectives_table(options.collectives), ""]
    parts += ["### What the papers say", "", *cases.result()]
    text = "\n".join(parts)
    print(text)
    if options.write:
        scatter({name: part for name, part in judged.items() if name != NO_PRIORS}, PICTURE)
        page = PAGE.read_text() if PAGE.exists() else f"# Planner\n\n{BEGIN}\n{END}\n"
        if BEGIN not in page:
            page = f"{page.rstrip()}\n\n## How good the predictions are\n\n{BEGIN}\n{END}\n"
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
