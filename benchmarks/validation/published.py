"""Published training runs: rows of a CSV file as model, layouts and cluster, and their predicted steps.

Each is predicted with the documented mechanisms of its software (`mechanisms`), at the rates of the planner itself.
`leave_out` measures how far these are from each system.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path

from benchmarks.validation.cells import Cells
from benchmarks.validation.layouts import layouts_of
from benchmarks.validation.mechanisms import Mechanisms, mechanisms_of, other_seconds
from benchmarks.validation.table import NETWORK, Row, read_table
from jaxpar.config.errors import UserError
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named, quoted
from jaxpar.cost.layout import Layout
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.hardware.variants import Variant, variant
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.pages.units import TERA, operations

DATA = Path(__file__).parent / "data"
FILES = tuple(DATA / name for name in ("published.csv", "held_out.csv", "experts.csv", "later.csv"))
"""All published runs. To the first file the numbers of `HardwareModel` were fitted once; the last was added after rates
and mechanisms were settled."""

HEAD_WIDTHS = (128, 64)
"""Width of a head, where no number of heads was published: the first that divides the width of the model."""


@dataclass(frozen=True)
class Run:
    """A published run, and its speed."""

    source: str
    row: str
    software: str
    """The name of its software, as the row has it: runs of one system share it, and the GPU."""
    model: ModelConfig
    sequence: int
    batch: int
    layouts: tuple[Layout, ...]
    """The published layout; where part of it was not published, every layout that it may have been."""
    cluster: Cluster
    tokens_per_s_per_gpu: float
    does: Mechanisms

    @property
    def seconds(self) -> float:
        """Measured seconds of a step."""
        return self.sequence * self.batch / self.tokens_per_s_per_gpu / self.layouts[0].devices

    @cached_property
    def predicted(self) -> float:
        """Predicted seconds of a step, by the fastest of its layouts."""
        of = self.model, self.sequence, self.batch
        return min(other_seconds(*of, layout, self.cluster, self.does) for layout in self.layouts)

    @property
    def error(self) -> float:
        """Logarithm of measured over predicted seconds: above 0 where the run was slower."""
        return log(self.seconds / self.predicted)

    @property
    def share_of_peak(self) -> float:
        """The share of the dense 16-bit peak that it reached (MFU)."""
        tokens = self.sequence * self.batch
        pairs = causal_pairs(self.model, tokens, self.sequence)
        per_token = flops_per_step(self.model, tokens, pairs, self.model.vocab or 0) / tokens
        return per_token * self.tokens_per_s_per_gpu / self.cluster.gpu.training_peak


@dataclass(frozen=True)
class Refused:
    """A row that cannot be timed."""

    row: str
    """Its place in the file, and its name."""
    why: str


def read_runs(path: Path) -> tuple[list[Run], list[Refused]]:
    """The runs of a CSV file in the schema of `table.COLUMNS`, and the rows that cannot be timed with the reason of
    each; rows of which only memory was measured are neither.

    Raises:
        UserError: no such file, or a column is missing.
    """
    runs, refused = list[Run](), list[Refused]()
    for row, name in read_table(path):
        place = f"{named(path)}: {name}"
        try:
            if (run := read_run(row, place)) is not None:
                runs.append(run)
        except UserError as error:
            refused.append(Refused(name, str(error).removeprefix(f"{place}: ")))
    return runs, refused


def read_run(row: Row, place: str) -> Run | None:
    """A row as a run; None where its speed was not measured.

    Raises:
        UserError: a cell is not a number, is impossible in its unit, or cannot be timed.
    """
    cell = Cells(row, place)
    cell.check()
    if row.get("architecture") not in (None, "", "decoder"):
        raise UserError(f"{place}: architecture: the time model has decoders only, got {quoted(row['architecture'])}")
    model = _model(cell)
    _check_experts(cell, model)
    devices = cell.whole("n_gpus")
    cluster = _cluster(cell, devices)
    speed = _speed(cell, devices)
    if row["precision"] == "fp8" and "float8" not in cluster.gpu.peaks:
        raise UserError(f"{place}: precision: fp8, and a {cluster.gpu.name} does not multiply in float8")
    layouts, does = tuple(layouts_of(cell, model.layers, devices)), mechanisms_of(row, place)
    if speed is None:
        return None
    _check_unit(cell, model, cluster.gpu, speed)
    sizes = cell.whole("seq_len"), cell.whole("global_batch_seqs")
    return Run(row["source"], row["row_id"], row["framework"], model, *sizes, layouts, cluster, speed, does)


def _model(cell: Cells) -> ModelConfig:
    """The model of a row."""
    gated, embed = bool(cell.whole("gated_mlp", least=0)), cell.whole("d_model")
    if cell.given("n_heads"):
        heads = cell.whole("n_heads")
    else:
        heads = embed // cell.whole("head_dim", next((one for one in HEAD_WIDTHS if embed % one == 0), embed))
    return ModelConfig(
        layers=cell.whole("n_layers"), embed=embed, heads=heads,
        kv_heads=cell.whole("n_kv_heads", heads), head_dim=cell.whole("head_dim", max(1, embed // heads)),
        mlp=cell.whole("d_ff", 4 * embed),
        vocab=cell.whole("vocab"), norm="rmsnorm" if gated else "layernorm", position="rope" if gated else "learned",
        attention_bias=not gated, mlp_bias=not gated, activation="swiglu" if gated else "gelu",
        tied=cell.row["tied_embeddings"] != "0", max_positions=cell.whole("seq_len"), experts=_experts(cell),
    )  # fmt: skip


def _experts(cell: Cells) -> ExpertsConfig | None:
    """The experts of a row; None where it has none."""
    if not cell.given("n_experts"):
        return None
    width = cell.whole("d_expert") if cell.given("d_expert") else None
    return ExpertsConfig(
        count=cell.whole("n_experts"), per_token=cell.whole("experts_per_token"), width=width,
        shared=cell.whole("shared_experts", least=0) if cell.given("shared_experts") else 0,
    )  # fmt: skip


def _check_experts(cell: Cells, model: ModelConfig) -> None:
    """Raise `UserError` for experts that cannot be timed."""
    ranks, experts = cell.whole("ep", 1), model.experts
    if experts is None:
        if ranks != 1:
            raise UserError(f"{cell.place}: ep: expected 1, since n_experts is empty, got {ranks}")
        return
    if experts.count % ranks:
        raise UserError(f"{cell.place}: ep: expected a divisor of n_experts ({experts.count}), got {ranks}")
    if experts.per_token > experts.count:
        raise UserError(
            f"{cell.place}: experts_per_token: expected at most n_experts ({experts.count}), got {experts.per_token}"
        )
    if cell.row["precision"] == "fp8":
        raise UserError(f"{cell.place}: precision: fp8, and products of experts are timed in 16 bits alone")


def _check_unit(cell: Cells, model: ModelConfig, gpu: GPU, tokens_per_s: float) -> None:
    """Raise `UserError` for a speed above what the GPU can reach: it is in another unit, or of several GPUs."""
    sequence, peak = cell.whole("seq_len"), max(gpu.peaks.values())
    flops = flops_per_step(model, sequence, {model.window: sequence * sequence // 2}, model.vocab or 0) / sequence
    if tokens_per_s * flops > peak:
        column = "tokens_per_s_per_gpu" if cell.row["tokens_per_s_per_gpu"] else "step_time_s"
        raise UserError(
            f"{cell.place}: {column}: {tokens_per_s:.4g} tokens/s of one GPU are {operations(tokens_per_s * flops)}/s, "
            f"and a {gpu.name} has {operations(peak)}/s: expected tokens/s of one GPU, and seconds"
        )


def gpu_of(cell: Cells) -> GPU:
    """The GPU of a row. Raises `UserError`."""
    number = lambda column, scale=1.0: scale * cell.positive(column) if cell.given(column) else None
    stated = Variant(number("gpu_memory_gib"), number("gpu_memory_tb_per_s", TERA), number("gpu_power_w"))
    try:
        return variant(cell.row["gpu"], stated)[0]
    except UserError as error:
        raise UserError(f"{cell.place}: gpu: {error}") from None


def _cluster(cell: Cells, devices: int) -> Cluster:
    """The cluster of a row; an unpublished network is the usual one."""
    per_host = min(devices, cell.whole("gpus_per_node", 8))
    gpu = gpu_of(cell)
    network = gpu.network
    if cell.given(NETWORK):
        network = network.with_bandwidth(cell.positive(NETWORK) / 8, None, cell.place)
    group = Group(gpu.short, gpu, -(-devices // per_host), gpu.node, network, gpu.host)
    return Cluster(f"{gpu.short}:{group.hosts}x{per_host}", per_host, (group,))


def _speed(cell: Cells, devices: int) -> float | None:
    """tokens/s/GPU; from the time of a step where only that was published, and checked against it where both were."""
    row = cell.row
    tokens = cell.whole("seq_len") * cell.whole("global_batch_seqs")
    by_time = tokens / devices / cell.positive("step_time_s") if row["step_time_s"] else None
    if not row["tokens_per_s_per_gpu"]:
        return by_time
    reported = cell.positive("tokens_per_s_per_gpu")
    if by_time is not None and not 0.95 < reported / by_time < 1.05:
        raise UserError(
            f"{cell.place}: tokens_per_s_per_gpu is {reported:g}, but {tokens} tokens in step_time_s = "
            f"{row['step_time_s']} on {devices} GPUs are {by_time:.4g}: expected tokens/s of one GPU, and seconds"
        )
    return reported
