"""`--measured`: runs of jaxpar on a cluster, and what they change about predictions for other layouts on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean

from jaxpar.config import UserError
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import named
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout import plan_file
from jaxpar.observe.environment import ENVIRONMENT_FILE
from jaxpar.observe.writers.summary import SUMMARY_FILE, read_summary
from jaxpar.pages.units import plural
from jaxpar.planner.machine import CPU, is_cpu
from jaxpar.planner.search.islands import search_of
from jaxpar.planner.stage_work import layout_of
from jaxpar.planner.step_time.interval import NOMINAL, PUBLISHED, Spread


def read_anchors(
    folders: Sequence[Path], cluster: Cluster, hardware: HardwareModel | None = None
) -> tuple[Spread, str]:
    """The error of predictions on `cluster` that runs show, and a sentence about it.

    Args:
        folders: of the runs (`runs/<name>`).
        cluster: which is planned for.
        hardware: parameters in place of those of its GPUs, with which it is planned.

    Raises:
        UserError: a folder is not of a run of two steps or more on devices of the cluster's kind.
    """
    errors = [_error(folder, cluster, hardware) for folder in folders]
    spread = (NOMINAL if is_cpu(cluster) else PUBLISHED).measured(errors)
    mean = exp(fmean(errors)) - 1
    more = "more" if mean > 0 else "less"
    runs = plural(len(errors), "measured run")
    line = f"{runs} took {abs(mean):.1%} {more} time than predicted: predictions are multiplied by {spread.factor:.3f}"
    return spread, line


def _error(folder: Path, cluster: Cluster, hardware: HardwareModel | None) -> float:
    """Logarithm of measured over predicted seconds of a run."""
    option = f"--measured {named(folder)}"
    if not folder.is_dir():
        raise UserError(f"{option}: expected the folder of a run, as in runs/a")
    seconds, on = _steady_step(folder, option), _cluster(folder, cluster, option)
    file = plan_file.read(folder / "plan.json")
    search = search_of(file.config, on, hardware=hardware)
    return log(seconds / search.timer.step(layout_of(file.config, file.plan, search)).seconds)


def _steady_step(folder: Path, option: str) -> float:
    try:
        summary = read_summary(folder / SUMMARY_FILE)
    except OSError:
        summary = None
    if summary is None or not summary["steady_step_seconds"]:
        raise UserError(f"{option}: {SUMMARY_FILE} has no time of a step; expected two steps or more")
    return summary["steady_step_seconds"]


def _cluster(folder: Path, cluster: Cluster, option: str) -> Cluster:
    """The devices of a run, linked as those of `cluster` are."""
    try:
        devices = json.loads(read_text_file(folder / ENVIRONMENT_FILE, LONGEST_WRITTEN))["devices"]
        platform, kind, count, each = (devices[name] for name in ("platform", "kind", "count", "per_host"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{option}: {ENVIRONMENT_FILE} does not name the devices of a run ({error!r})") from None
    gpu = gpu_of(str(kind))
    short = CPU if platform == "cpu" else None if gpu is None else gpu.short
    group = next((one for one in cluster.groups if one.gpu.short == short), None)
    if group is None:
        raise UserError(f"{option}: measured on {kind}, and {cluster.name} has {cluster.gpu.name}; expected the same")
    hosts = count // each
    return replace(cluster, name=f"{short}:{hosts}x{each}", gpus_per_host=each, groups=(replace(group, hosts=hosts),))
