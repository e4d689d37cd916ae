"""The planner's time model against published runs: fits it, and writes tables and scatter plots to docs/planner.md.

    python -m benchmarks.planner --data ../shared/measurements/calibration.csv             # tables on the screen
    python -m benchmarks.planner --data ... --collectives ../shared/measurements/collectives/allreduce_single_node.csv
    python -m benchmarks.planner --data ... --write                                        # and docs/planner.md

What is fitted: `FITTED`, on the logarithm of predicted over measured tokens/s/GPU. Every source weighs the same,
whatever its number of rows; errors above `TOLERANCE` count by their size, not its square: odd rows do not decide.
Three ways to be judged: by the rows it was fitted to; by each source in turn, fitted to all the others; and by a random
fifth, fitted to the rest. `held out` are runs of jaxpar/planner/data/held_out.csv, which are never fitted to.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.planner_cases import published_cases
from benchmarks.planner_plot import scatter
from jaxpar.config.errors import UserError
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.hardware_model import AMPERE, HOPPER, HardwareModel, described
from jaxpar.planner.published import Run, read_runs
from jaxpar.planner.time_messages import network_of
from jaxpar.planner.validate import HELD_OUT, Judged, Report, judge, report

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "planner.md"
PICTURE = ROOT / "docs" / "images" / "planner-errors.png"
BEGIN, END = "<!-- benchmarks.planner: begin -->", "<!-- benchmarks.planner: end -->"

TOLERANCE = 0.05
PRIOR = 0.02
"""Pull towards the starting values, for what the rows at hand say nothing about."""

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
    "float8_share": 0.55,
}  # fmt: skip
START_OF_KIND = {
    "ampere": {"matmul_share": 0.82, "attention_first_share": 0.35, "attention_share": 0.6},
    "hopper": {"matmul_share": 0.7, "attention_first_share": 0.25, "attention_share": 0.42},
}


@dataclass(frozen=True)
class Fit:
    """What each kind of GPU reaches."""

    ampere: HardwareModel
    hopper: HardwareModel

    def of(self, run: Run) -> HardwareModel:
        """For the GPUs of a run."""
        return self.hopper if run.cluster.gpu.compute_capability >= (9, 0) else self.ampere

    def judge(self, runs: Sequence[Run]) -> list[Judged]:
        """Predictions of runs."""
        return [judge(run, self.of(run)) for run in runs]


CURRENT = Fit(AMPERE, HOPPER)


def fit(runs: Sequence[Run], evaluations: int = 12) -> Fit:
    """The parameters that are closest to `runs`."""
    counts = Counter(run.source for run in runs)
    weights = np.array([counts[run.source] ** -0.5 for run in runs])
    low, high = (np.array([entry[place] for entry in FITTED]) for place in (2, 3))
    start = np.array([START_OF_KIND.get(kind, START).get(name, START.get(name)) for kind, name, *_ in FITTED], float)
    origin = (start - low) / (high - low)

    def residuals(scaled: np.ndarray) -> np.ndarray:
        judged = _fit_of(low + scaled * (high - low)).judge(runs)
        errors = np.log1p(np.array([one.error for one in judged], float))
        robust = np.sign(errors) * TOLERANCE * np.sqrt(2 * (np.sqrt(1 + (errors / TOLERANCE) ** 2) - 1))
        return np.concatenate([robust * weights, PRIOR * (scaled - origin)])

    found = least_squares(residuals, origin, bounds=(0, 1), diff_step=3e-3, max_nfev=evaluations)
    return _fit_of(low + found.x * (high - low))


def _fit_of(values: np.ndarray) -> Fit:
    of = lambda kind: {n: float(v) for (k, n, *_), v in zip(FITTED, values, strict=True) if k in ("both", kind)}
    return Fit(replace(AMPERE, **of("ampere")), replace(HOPPER, **of("hopper")))


def leave_one_out(runs: Sequence[Run]) -> list[Judged]:
    """Each source, predicted by what was fitted to the others."""
    judged: list[Judged] = []
    for source in sorted({run.source for run in runs}):
        others = fit([run for run in runs if run.source != source], evaluations=8)
        judged += others.judge([run for run in runs if run.source == source])
        print(f"  without {source}: done", file=sys.stderr, flush=True)
    return judged


def random_fifth(runs: Sequence[Run], seed: int = 0) -> list[Judged]:
    """A random fifth of the rows, predicted by what was fitted to the rest."""
    order = list(range(len(runs)))
    random.Random(seed).shuffle(order)
    fifth = set(order[: len(order) // 5])
    others = fit([run for i, run in enumerate(runs) if i not in fifth], evaluations=8)
    return others.judge([runs[i] for i in sorted(fifth)])


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
            errors = [abs(ring.reduce(size) * 1e6 / time - 1) for size, time in own]
            size, time = own[-1]
            lines.append(
                f"| {gpu} | {ranks} | {100 * float(np.median(errors)):.1f}% | {time / 1e3:.2f} ms | "
                f"{ring.reduce(size) * 1e3:.2f} ms |"
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
    "launch_seconds": "usual; no run at hand is bound by it",
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
                [str(errors.rows), f"{100 * errors.median_error:.1f}%", f"{100 * errors.p90_error:.1f}%"]
                if shown and errors is not None and errors.median_error is not None and errors.p90_error is not None
                else ["", "", ""]
            )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, required=True, help="published runs")
    parser.add_argument("--collectives", type=Path, help="all-reduces measured alone")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {PICTURE.name}")
    options = parser.parse_args(arguments)
    try:
        everything = read_runs(options.data)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    runs = [run for run in everything if run.tokens_per_s_per_gpu is not None]
    memory = [run for run in everything if run.peak_gib is not None]
    found = fit(runs)
    judged = {
        "in sample": CURRENT.judge(runs),
        "leave one source out": leave_one_out(runs),
        "random fifth": random_fifth(runs),
        "never fitted": CURRENT.judge(read_runs(HELD_OUT)),
    }
    reports = {name: report(part) for name, part in judged.items()}
    whole = report(CURRENT.judge(runs + memory))
    again = 100 * (report(found.judge(runs)).overall.median_error or 0)
    parts = [
        "### What a GPU reaches", "", *parameters_table(CURRENT), "",
        f"Fitted anew, the median over sources is {again:.1f}%.", "",
        "### Errors of tokens/s/GPU", "", *errors_table(reports), "",
        f"![Errors of predictions by measured speed]({PICTURE.relative_to(PAGE.parent)})", "",
        "Choosing among measured layouts, and memory (`python -m jaxpar.plan validate`):", "",
        "```", *whole.lines(), "```", "",
    ]  # fmt: skip
    if options.collectives:
        parts += ["### Collectives", "", *collectives_table(options.collectives), ""]
    parts += ["### What the papers say", "", *published_cases()]
    text = "\n".join(parts)
    print(text)
    if options.write:
        scatter(judged, PICTURE)
        page = PAGE.read_text() if PAGE.exists() else f"# Planner\n\n{BEGIN}\n{END}\n"
        if BEGIN not in page:
            page = f"{page.rstrip()}\n\n## How good the predictions are\n\n{BEGIN}\n{END}\n"
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
