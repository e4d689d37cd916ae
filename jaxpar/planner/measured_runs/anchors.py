"""Anchors: measured runs on a cluster, from which predictions for other layouts on it follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median

from jaxpar.config import UserError
from jaxpar.config.spelling import named, one_of
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.mechanisms import JAXPAR
from jaxpar.hardware.cluster import Cluster
from jaxpar.observe.writers.measured_row import MEASURED_FILE
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.measured_runs.measured_run import MeasuredRun, measured_run
from jaxpar.planner.measured_runs.mechanisms import stated_mechanisms
from jaxpar.planner.measured_runs.table import NETWORK, Row, read_table
from jaxpar.planner.step_time.interval import KNOWN, NOMINAL, Spread
from jaxpar.units import plural, rate

FRAMEWORK = "jaxpar"
"""The beginning of the column `framework` in rows of jaxpar's runs."""
VALIDATION = "python -m benchmarks.validation"
"""The command of a checkout that predicts runs of other software."""


@dataclass(frozen=True)
class Anchors:
    """Properties of a system that measured runs show."""

    spread: Spread
    """After them."""
    lines: tuple[str, ...]
    """The files read, in words."""


def measured_file(path: Path) -> Path:
    """The rows of `--measured`: a CSV file, or that of a run's folder. Raises `UserError` for a folder without one."""
    file = path / MEASURED_FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise UserError(f"--measured {named(path)}: it has no {MEASURED_FILE}, which a run of two steps or more writes")
    return file


def read_anchors(path: Path, cluster: Cluster, hardware: HardwareModel | None = None) -> Anchors:
    """The runs of a file, or of a run's folder, and what they change about predictions on `cluster`.

    Args:
        path: a CSV file in the schema of `table.COLUMNS`, or a folder with the `measured.csv` of a run.
        cluster: which is planned for.
        hardware: parameters in place of the fitted ones, with which it is planned.

    Raises:
        UserError: it cannot be read, or no row of jaxpar has a time on GPUs of the cluster's kind.
    """
    file = measured_file(path)
    table = read_table(file, "--measured ")
    rows = [(row, name) for row, name in table if row["framework"].startswith(FRAMEWORK)]
    if table and not rows:
        raise UserError(
            f"--measured {named(file)}: expected runs of jaxpar (framework), got those of "
            f"{one_of(sorted({row['framework'] for row, _ in table}))}: {VALIDATION} --data FILE --measured "
            f"{named(file)}, in a checkout, predicts other layouts of that software"
        )
    runs, left = _timed(rows, named(file))
    used = [(row, run) for row, run in runs if run.cluster.gpu.short == cluster.gpu.short]
    if not used:
        others = sorted({run.cluster.gpu.short for _, run in runs})
        why = f"{left[0][0]}: {left[0][1]}" if left else f"there are rows on {one_of(others)}" if others else ""
        raise UserError(f"--measured {named(file)}: no row has a time on {cluster.gpu.name}{f'; {why}' if why else ''}")
    measured = [(run.fastest(run.mechanisms, hardware)[0].seconds, run.seconds or 0.0) for _, run in used]
    prior = NOMINAL if is_cpu(cluster) else KNOWN
    spread = prior.measured([log(took / seconds) for seconds, took in measured])
    error = median([took / seconds - 1 for seconds, took in measured])
    lines = [
        f"{plural(len(used), 'measured run')} of jaxpar took {abs(error):.1%} "
        f"{'more' if error > 0 else 'less'} time than predicted: predictions are multiplied by {spread.factor:.3f}",
        *(f"{name} is left out: {why}" for name, why in left),
    ]
    if others := len(table) - len(rows):
        lines.append(f"{plural(others, 'run')} of other software left out, beside those of jaxpar")
    return Anchors(spread, (*lines, *_other_networks(used, cluster)))


def _timed(rows: Sequence[tuple[Row, str]], file: str) -> tuple[list[tuple[Row, MeasuredRun]], list[tuple[str, str]]]:
    """The rows with a time, and why others cannot be timed."""
    runs, left = list[tuple[Row, MeasuredRun]](), list[tuple[str, str]]()
    for row, name in rows:
        place = f"{file}: {name}"
        try:
            run = measured_run(row, place, stated_mechanisms(JAXPAR, row, place))
        except UserError as error:
            left.append((name, str(error).removeprefix(f"{place}: ")))
            continue
        if run.tokens_per_s_per_gpu is not None:
            runs.append((row, run))
    return runs, left


def _other_networks(used: Sequence[tuple[Row, MeasuredRun]], cluster: Cluster) -> list[str]:
    """A line where hosts of the runs are linked otherwise than those of the cluster; a row need not state it."""
    if cluster.hosts == 1:
        return []
    between = cluster.link(True).bandwidth
    networks = {run.cluster.link(True).bandwidth for row, run in used if row[NETWORK] and run.cluster.hosts > 1}
    unlike = [rate(one) for one in sorted(networks) if not 0.9 <= one / between <= 1.1]
    if not unlike:
        return []
    return [
        f"their hosts are linked at {one_of(unlike)} a GPU, and those of {cluster.name} at {rate(between)}: "
        "what messages take may differ"
    ]
