"""Anchors: measured runs on a cluster, from which predictions for other layouts of the same system follow."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from pathlib import Path
from statistics import median

from jaxpar.config import UserError
from jaxpar.config.spelling import named, one_of
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.mechanisms import NEUTRAL
from jaxpar.hardware.cluster import Cluster
from jaxpar.observe.writers.measured_row import MEASURED_FILE
from jaxpar.planner.evidence.left_open import NETWORK
from jaxpar.planner.evidence.posterior import posterior
from jaxpar.planner.evidence.published import read_rows
from jaxpar.planner.evidence.validate import judge
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.step_time.interval import KNOWN, NOMINAL, Spread
from jaxpar.units import plural, rate

OURS = "jaxpar"
"""The software that plans are for, in rows of runs."""


@dataclass(frozen=True)
class Anchors:
    """What measured runs show of a system."""

    spread: Spread
    """After them."""
    lines: tuple[str, ...]
    """What was read, in words."""


def measured_file(path: Path) -> Path:
    """The rows of `--measured`: a CSV file, or that of a run's folder. Raises `UserError` for a folder without one."""
    file = path / MEASURED_FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise UserError(f"--measured {named(path)}: it has no {MEASURED_FILE}, which a run of two steps or more writes")
    return file


def read_anchors(path: Path, cluster: Cluster, hardware: HardwareModel | None = None) -> Anchors:
    """The runs of a file, or of a run's folder, and what they change about predictions on `cluster`.

    Args:
        path: a CSV file in the schema of published runs, or a folder with the `measured.csv` of a run.
        cluster: which is planned for.
        hardware: parameters in place of the fitted ones, with which it is planned.

    Raises:
        UserError: it cannot be read, or no row has a time on GPUs of the cluster's kind.
    """
    file = measured_file(path)
    runs, refused = read_rows(file, "--measured ")
    timed = [run for run in runs if run.tokens_per_s_per_gpu is not None]
    own = [run for run in timed if run.cluster.gpu.short == cluster.gpu.short]
    if not own:
        there = sorted({run.cluster.gpu.short for run in timed})
        why = (
            f"; {refused[0].row}: {refused[0].why}"
            if refused
            else f"; there are rows on {one_of(there)}"
            if there
            else ""
        )
        raise UserError(f"--measured {named(file)}: no row has a time on {cluster.gpu.name}{why}")
    ours = [run for run in own if run.software == OURS]
    others = len(own) - len(ours) if ours else 0
    own = ours or own
    judged = [judge(run, hardware) for run in own]
    errors = [error for one in judged if (error := one.error) is not None]
    spread, alike = NOMINAL if is_cpu(cluster) else KNOWN, list[str]()
    for system in dict.fromkeys(run.system for run in own):
        of_it = [one for one in judged if one.run.system == system]
        found = posterior([one.errors for one in of_it], spread)
        spread = found.shared
        if of_it[0].run.software is None:
            like = found.likeliest
            beside = median([exp(one.errors[like]) - 1 for one in of_it])
            kind = "neutral software" if like == NEUTRAL else like
            alike.append(f"{_more(beside)} than for {kind}, which is most like it")
    software = one_of(sorted({run.software or "unknown software" for run in own}))
    left = [f"{one.row} is left out: {one.why}" for one in refused]
    if others:
        left.append(f"{plural(others, 'run')} of other software left out, beside those of {OURS}")
    between = cluster.link(True).bandwidth
    stated = [run for run in own if not any(what.startswith(NETWORK) for what in run.assumed)]
    networks = {run.cluster.link(True).bandwidth for run in stated if run.cluster.hosts > 1}
    if cluster.hosts > 1 and (unlike := [one for one in networks if not 0.9 <= one / between <= 1.1]):
        left.append(
            f"their hosts are linked at {one_of([rate(one) for one in sorted(unlike)])} a GPU, and those of "
            f"{cluster.name} at {rate(between)}: what messages take may differ"
        )
    runs_of = f"{plural(len(own), 'measured run')} of {software}"
    text = f"{runs_of} took {_more(median(errors))} time than predicted"
    if alike:
        text += f" for software that is not known, and {'; '.join(alike)}"
        left.append(
            "of jaxpar's plans, these runs change what they differ from that by; python -m jaxpar.plan validate "
            f"--data FILE --measured {named(file)} predicts other layouts of their own software"
        )
    return Anchors(spread, (f"{text}: predictions are multiplied by {spread.factor:.3f}", *left))


def _more(error: float) -> str:
    """A share of more or less time."""
    return f"{abs(error):.1%} {'more' if error > 0 else 'less'}"
