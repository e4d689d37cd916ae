"""Small steps compiled for clusters of H100s, each once for all workers, with their reports."""

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jaxpar.compiler.compile import compile_step, plan_for
from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.config import Config, load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import AXES
from jaxpar.training.step.train_step import TrainStep
from tests.small_run import small
from tests.traced import SENT, group_size, mesh_of, operations


def _folder() -> Path:
    """With what XLA compiles for the CPU, where that is kept; what is there is of these very sources, or not used."""
    if kept := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(kept) / "inspected"
    alone = tempfile.mkdtemp(prefix="jaxpar-inspected-")
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)


CACHE = _folder()
"""Where compiles are kept, so that a command can be tried on a step that is compiled already."""
CACHE.mkdir(parents=True, exist_ok=True)

CLUSTER = "h100:2x4"

YAML = """
model: {layers: 4, embed: 128, heads: 8, kv_heads: 8, mlp: 256, vocab: 512}
parallel: {replica: -1, fsdp: 4, zero: 3, microbatches: 2, overlap: {shard_state_over_replicas: false}}
attention: {backend: xla}
data: {source: synthetic, sequence_length: 64, batch_size: 16}
"""
"""The step that most tests look at: HSDP over two hosts of four GPUs."""


def wide(**sections: dict[str, Any]) -> Config:
    """`small` with matrices that XLA leaves to cuBLAS, in bfloat16."""
    sections["model"] = {"layers": 4, "embed": 128, "mlp": 256, "vocab": 512} | sections.get("model", {})
    sections["attention"] = {"backend": "xla"} | sections.get("attention", {})
    sections["precision"] = {"compute": "bfloat16"} | sections.get("precision", {})
    sections["data"] = {"sequence_length": 64, "batch_size": 16} | sections.get("data", {})
    return small(**sections)


def inspected(config: Config, cluster: str = CLUSTER, usable: int | None = None) -> tuple[Analysis, Report]:
    """Compile and read, planned with so many bytes of a device; a step that another worker is compiling is waited
    for."""
    where = parse_cluster(cluster)
    with (CACHE / f"{hashlib.sha256(f'{config} {cluster} {usable}'.encode()).hexdigest()[:16]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        compilation = compile_step(config, where, cache=CACHE, usable=usable)
    analysis = Analysis(compilation, where)
    return analysis, report_of(analysis)


def report_of(analysis: Analysis) -> Report:
    """The report of a program of which everything is known."""
    report = make_report(analysis, "small")
    assert not analysis.module.unknown.notes()
    return report


def assert_planned(config: Config, cluster: str, analysis: Analysis, report: Report) -> None:
    """The estimate is within a twentieth of what XLA allocates for a compiled step."""
    filled, _ = plan_for(config, parse_cluster(cluster))
    assert estimate_memory(filled, analysis.compilation.plan).device == pytest.approx(report.allocated_bytes, rel=0.05)


@cache
def hsdp() -> tuple[Analysis, Report]:
    """The step of `YAML`."""
    partial, file = CACHE / f"hsdp.{os.getpid()}", CACHE / "hsdp.yaml"
    partial.write_text(YAML)
    partial.replace(file)  # which the other worker may be reading
    return inspected(load_config(file))


DUALS = {
    "gather_sequence": "scatter_sequence",
    "gather_context": "scatter_context",
    "gather_weight": "scatter_gradient",
    "gather_rows": "scatter_rows",
}

INTEGERS = {"s32": "int32", "pred": "bool"}
"""Left out: segment ids and the like, which XLA gathers once where neighbouring layers gather the same."""


def asked(config: Any, plan: Any) -> Counter[tuple[str, str]]:
    """Bytes that one device sends, by collective and axes, from the traced step and the formulas of the collectives."""
    mesh = mesh_of(**dict(plan.axes))
    step = TrainStep(StepLayout(config, plan), mesh)
    sent: Counter[tuple[str, str]] = Counter()
    layout = step.layout
    inputs = layout.abstract_state(mesh), layout.abstract_batch(mesh), layout.abstract_arguments(mesh)
    for equation, times in operations(step.train, *inputs):
        kind = equation.primitive.name
        if kind not in SENT:
            continue
        named = equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = [
            axis for axis in AXES if axis in (named if isinstance(named, tuple) else (named,)) and mesh.shape[axis] > 1
        ]
        scopes = str(equation.source_info.name_stack).replace("(", "/").replace(")", "/").split("/")
        others = {"reduce_sum", "reduce_max", "shift_stage", "sum_over_stages", "join_ranks"}
        collectives = {*DUALS, *DUALS.values(), *others}
        collective = next(scope for scope in reversed(scopes) if scope in collectives)
        if kind == "reduce_scatter":
            collective = DUALS.get(collective, collective)
        elif kind == "all_gather":
            collective = {dual: name for name, dual in DUALS.items()}.get(collective, collective)
        ranks = group_size(mesh, equation)
        arrays = [v.aval for v in equation.invars if v.aval.dtype.name not in INTEGERS.values()]
        size = sum(array.size * array.dtype.itemsize for array in arrays)
        sent[collective, "+".join(axes)] += times * SENT[kind](size, ranks)
    return +sent


def sent(report: Report) -> dict[tuple[str, str], float]:
    """Bytes that one device sends in the compiled program, by collective and axes."""
    found: dict[tuple[str, str], float] = {}
    for row in report.collectives:
        if row.dtype not in INTEGERS:
            found[row.collective, row.axis] = found.get((row.collective, row.axis), 0) + row.bytes
    return found
