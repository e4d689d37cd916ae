"""Published training runs: rows of a CSV file as runs, with what their software may be and what rows leave open."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.validation.left_open import left_open
from benchmarks.validation.mechanisms import Software
from benchmarks.validation.software import generation, kinds_of, mechanisms_of, stated
from jaxpar.config.errors import UserError
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.planner.layout import Remat
from jaxpar.planner.measured_runs.cells import Cells
from jaxpar.planner.measured_runs.measured_run import MeasuredRun, measured_run
from jaxpar.planner.measured_runs.table import Row, read_table
from jaxpar.units import GIB

DATA = Path(__file__).parent / "data"
PUBLISHED = DATA / "published.csv"
"""The runs that the time model was fitted to."""
HELD_OUT = DATA / "held_out.csv"
"""Runs that nothing was fitted to."""
EXPERTS = DATA / "experts.csv"
"""Runs of models with experts, to which nothing was fitted either."""

HOPPER = (9, 0)
"""Compute capability of an H100."""


@dataclass(frozen=True)
class Run(MeasuredRun):
    """A published run."""

    source: str = ""
    row: str = ""
    citation: str = ""
    peak_gib: float | None = None
    assumed: tuple[str, ...] = ()
    """Settings that the row leaves open, and the value assumed for each."""
    stated: str = ""
    """Properties of its software that the row states, apart from its name."""
    software: str | None = None
    """The generation of its software; None where it is not known."""
    framework: str = ""
    """The name of its software, as the row has it."""
    kinds: Mapping[str, Mechanisms] = field(default_factory=dict)
    """Mechanisms of each kind of software in this run: it is timed by all of them where its own is not known."""

    @property
    def candidates(self) -> Mapping[str, Mechanisms]:
        """Software that it may be, by name."""
        return self.kinds if self.software is None else {self.software: self.mechanisms}

    @property
    def system(self) -> tuple[str, str]:
        """Its software and its GPU: runs of one system share how far they are from predictions. Software that is not
        known is itself by its name."""
        return self.software or self.framework, self.cluster.gpu.short

    @property
    def shape(self) -> tuple[int, ...]:
        """The model, as far as its time depends on it."""
        model = self.model
        return (model.layers, model.embed, model.heads, model.mlp, model.vocab or 0)

    @property
    def group(self) -> tuple[Hashable, ...]:
        """The key that runs share which differ in layout alone: source, model, batch and cluster."""
        link = self.cluster.link(True)
        return (self.source, self.shape, self.sequence, self.batch, self.cluster.name, link.bandwidth)


@dataclass(frozen=True)
class Refused:
    """A row that cannot be timed."""

    source: str
    row: str
    """Its place in the file, and its name."""
    why: str


def read_runs(path: Path) -> list[Run]:
    """The runs of a CSV file in the schema of `table.COLUMNS`.

    Raises:
        UserError: no such file, a column is missing, or a cell is not a number or is impossible in its unit.
    """
    return [_run(row, f"{named(path)}: {name}") for row, name in read_table(path)]


def read_rows(path: Path, option: str = "") -> tuple[list[Run], list[Refused]]:
    """The runs of a CSV file, and the rows that cannot be timed with the reason of each.

    Args:
        path: the file.
        option: the option that named it, with a space; errors begin with it.

    Raises:
        UserError: no such file, or a column is missing.
    """
    runs, refused = list[Run](), list[Refused]()
    for row, name in read_table(path, option):
        place = f"{named(path)}: {name}"
        try:
            runs.append(_run(row, place))
        except UserError as error:
            refused.append(Refused(row["source"] or "", name, str(error).removeprefix(f"{place}: ")))
    return runs, refused


def _run(row: Row, place: str) -> Run:
    """A row as a run."""
    cell = Cells(row, place)
    cell.check()
    does = mechanisms_of(row, place)
    run = measured_run(row, place, does)
    if isinstance(does, Software) and does.selective == "operations":
        again = _operations(run.model)
        layouts = (replace(one, remat=again) if one.remat == "selective" else one for one in run.layouts)
        run = replace(run, layouts=tuple(layouts))
    return Run(
        **vars(run), source=row["source"], row=row["row_id"], citation=row["citation"], peak_gib=_peak_gib(cell, run),
        assumed=tuple(left_open(cell, run)), stated=stated(row), software=generation(row["framework"]),
        framework=row["framework"], kinds=kinds_of(row, place, run.cluster.gpu.compute_capability >= HOPPER),
    )  # fmt: skip


def _operations(model: ModelConfig) -> Remat:
    """Everything again but attention itself and every second matmul, of every layer."""
    names = ("attention_input", "key", "attention_residual", "mlp_input", "mlp_up", "mlp_activated", "mlp_hidden")
    return ((model.layers, tuple((name, "recompute") for name in names)),)


def _peak_gib(cell: Cells, run: MeasuredRun) -> float | None:
    """The peak memory of a GPU; None where it was not measured. Raises `UserError` for more than it has."""
    if not cell.given("peak_memory_gib"):
        return None
    peak, gpu = cell.positive("peak_memory_gib"), run.cluster.gpu
    if peak * GIB > gpu.hbm_bytes:
        raise UserError(
            f"{cell.place}: peak_memory_gib: {peak:g}, and a {gpu.name} has {gpu.hbm_bytes / GIB:g} GiB: "
            "expected GiB of one GPU"
        )
    return peak
