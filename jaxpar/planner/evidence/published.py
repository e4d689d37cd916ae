"""Published training runs: rows of a CSV file as models, layouts, clusters and mechanisms of software."""

from __future__ import annotations

import csv
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import check_regular
from jaxpar.config.schema import ModelConfig
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.config.spelling import did_you_mean, named, one_of, quoted
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.hardware.variants import Variant, variant
from jaxpar.model.flops import flops_per_step
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules.registry import SCHEDULES, check_sizes
from jaxpar.planner.evidence.cells import Cells
from jaxpar.planner.evidence.left_open import NETWORK, left_open
from jaxpar.planner.evidence.software import generation, kinds_of, mechanisms_of, stated
from jaxpar.planner.layout import Layout, Precision, Remat
from jaxpar.planner.machine import CPU, cpu_cluster
from jaxpar.units import GIB, TERA, operations

COLUMNS = (
    "source", "citation", "row_id", "framework", "gpu", "gpus_per_node", "inter_node_gbps_per_gpu", "n_gpus",
    "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "gated_mlp", "vocab", "tied_embeddings",
    "seq_len", "global_batch_seqs", "micro_batch_seqs", "dp", "zero_stage", "tp", "sequence_parallel", "cp", "pp",
    "vpp", "ep", "pipeline_schedule", "recompute", "offload_alpha", "precision", "flash_attention", "step_time_s",
    "tokens_per_s_per_gpu", "peak_memory_gib", "notes",
)  # fmt: skip
"""What a row must have; others are not read."""

OPTIONAL = (
    "mechanisms", "gpu_memory_gib", "gpu_memory_tb_per_s", "gpu_power_w", "architecture",
    "n_experts", "experts_per_token", "d_expert", "shared_experts", "imbalance",
)  # fmt: skip
"""Columns that a file may have besides: `mechanisms` changes those of the software's generation
(`software.mechanisms_of`); the next three state how a GPU differs from that of the catalogue; `architecture` is
`decoder`, and other ones are not timed. The others are of models with experts in all layers, of which `ep` ranks each
hold some, and of which each token is sent to its own without empty rows; `imbalance` is 1 where routing was balanced by
force."""

REMATS = ("none", "selective", "gemm_last", "full")
"""Values of the recomputation column; `selective` where it is empty."""

PRECISIONS: Mapping[str, Precision] = {"fp8": "float8", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
"""How types are written; bfloat16 where the cell is empty."""

HOPPER = (9, 0)
"""Compute capability of an H100."""

HEAD_WIDTHS = (128, 64)
"""Width of a head, where no number of heads was published: the first that divides the width of the model."""


@dataclass(frozen=True)
class Run:
    """A published run."""

    source: str
    row: str
    citation: str
    model: ModelConfig
    sequence: int
    batch: int
    layouts: tuple[Layout, ...]
    """The published layout; where part of it was not published, every layout that it may have been."""
    cluster: Cluster
    mechanisms: Mechanisms
    tokens_per_s_per_gpu: float | None
    peak_gib: float | None
    assumed: tuple[str, ...] = ()
    """What the row leaves open, and the value assumed for it."""
    stated: str = ""
    """What the row states of its software, apart from its name."""
    software: str | None = None
    """The generation of its software; None where it is not known."""
    framework: str = ""
    """The name of its software, as the row has it."""
    kinds: Mapping[str, Mechanisms] = field(default_factory=dict)
    """What each kind of software would do in this run: it is timed by all of them where its own is not known."""

    @property
    def candidates(self) -> Mapping[str, Mechanisms]:
        """What its software may be, by name."""
        return self.kinds if self.software is None else {self.software: self.mechanisms}

    @property
    def system(self) -> tuple[str, str]:
        """Its software and its GPU: runs of one system share how far they are from predictions. Software that is not
        known is itself by its name."""
        return self.software or self.framework, self.cluster.gpu.short

    @property
    def seconds(self) -> float | None:
        """Measured seconds of a step; None where they were not measured."""
        speed = self.tokens_per_s_per_gpu
        return None if speed is None else self.sequence * self.batch / speed / self.layouts[0].devices

    @property
    def shape(self) -> tuple[int, ...]:
        """The model, as far as its time depends on it."""
        model = self.model
        return (model.layers, model.embed, model.heads, model.mlp, model.vocab or 0)

    @property
    def group(self) -> tuple[Hashable, ...]:
        """What runs share that differ in layout alone: source, model, batch and cluster."""
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
    """The runs of a CSV file in the schema of `COLUMNS`.

    Raises:
        UserError: no such file, a column is missing, or a cell is not a number or is impossible in its unit.
    """
    where = named(path)
    return [_run(row, _place(where, number, row)) for number, row in enumerate(_rows(path), 2)]


def read_rows(path: Path, option: str = "") -> tuple[list[Run], list[Refused]]:
    """The runs of a CSV file, and the rows that cannot be timed with the reason of each.

    Args:
        path: the file.
        option: what it was given as, with a space; errors begin with it.

    Raises:
        UserError: no such file, or a column is missing.
    """
    where, runs, refused = named(path), list[Run](), list[Refused]()
    for number, row in enumerate(_rows(path, option), 2):
        place = _place(where, number, row)
        try:
            runs.append(_run(row, place))
        except UserError as error:
            name = f"row {number} ({row['source']} {row['row_id']})"
            refused.append(Refused(row["source"] or "", name, str(error).removeprefix(f"{place}: ")))
    return runs, refused


def _place(where: str, number: int, row: Mapping[str, str]) -> str:
    return f"{where}: row {number} ({row['source']} {row['row_id']})"


def _rows(path: Path, option: str = "") -> list[dict[str, str]]:
    """The rows of a file that has all columns. Raises `UserError`."""
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(line for line in stream if not line.startswith("#"))
            rows = list(reader)
            found = reader.fieldnames or []
    except FileNotFoundError:
        raise UserError(f"{option}{named(path)}: there is no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{option}{named(path)}: cannot be read as text ({error})") from None
    for column in COLUMNS:
        if column not in found:
            raise UserError(
                f"{option}{named(path)}: the column {quoted(column)} is missing{did_you_mean(column, found)}"
            )
    return rows


def _run(row: Mapping[str, str], place: str) -> Run:
    """A row as a run."""
    cell = Cells(row, place)
    cell.check()
    if row.get("architecture") not in (None, "", "decoder"):
        raise UserError(f"{place}: architecture: the time model has decoders only, got {quoted(row['architecture'])}")
    model, assumed = _model(cell)
    _check_experts(cell, model)
    devices = cell.whole("n_gpus")
    cluster, guessed = _cluster(cell, devices)
    measured = _measured(cell, devices)
    peak_gib = cell.positive("peak_memory_gib") if row["peak_memory_gib"] else None
    if row["precision"] == "fp8" and "float8" not in cluster.gpu.peaks:
        raise UserError(f"{place}: precision: fp8, and a {cluster.gpu.name} does not multiply in float8")
    _check_units(cell, model, cluster.gpu, measured, peak_gib)
    does = mechanisms_of(row, place)
    layouts = tuple(_layouts(cell, row, model, devices, does))
    return Run(
        source=row["source"], row=row["row_id"], citation=row["citation"], model=model,
        sequence=cell.whole("seq_len"), batch=cell.whole("global_batch_seqs"),
        layouts=layouts, cluster=cluster, mechanisms=does, tokens_per_s_per_gpu=measured,
        peak_gib=peak_gib, assumed=(*left_open(row, cluster, layouts), *assumed, *guessed),
        stated=stated(row), software=generation(row["framework"]), framework=row["framework"],
        kinds=kinds_of(row, place, cluster.gpu.compute_capability >= HOPPER),
    )  # fmt: skip


def _model(cell: Cells) -> tuple[ModelConfig, list[str]]:
    """The model of a row, and what of it was not published."""
    gated, embed, assumed = bool(cell.whole("gated_mlp", least=0)), cell.whole("d_model"), list[str]()
    if cell.given("n_heads"):
        heads = cell.whole("n_heads")
    else:
        width = cell.whole("head_dim", next((one for one in HEAD_WIDTHS if embed % one == 0), embed))
        heads = embed // width
        assumed.append(f"n_heads d_model / {width}")
    if not cell.given("d_ff"):
        assumed.append("d_ff 4 x d_model")
    model = ModelConfig(
        layers=cell.whole("n_layers"), embed=embed, heads=heads,
        kv_heads=cell.whole("n_kv_heads", heads), head_dim=cell.whole("head_dim", max(1, embed // heads)),
        mlp=cell.whole("d_ff", 4 * embed),
        vocab=cell.whole("vocab"), norm="rmsnorm" if gated else "layernorm", position="rope" if gated else "learned",
        attention_bias=not gated, mlp_bias=not gated, activation="swiglu" if gated else "gelu",
        tied=cell.row["tied_embeddings"] != "0", max_positions=cell.whole("seq_len"), experts=_experts(cell),
    )  # fmt: skip
    if model.experts is not None and not cell.given("imbalance"):
        assumed.append("imbalance 1")
    return model, assumed


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


def _check_units(cell: Cells, model: ModelConfig, gpu: GPU, tokens_per_s: float | None, peak_gib: float | None) -> None:
    """Raise `UserError` for a number above what the GPU can reach: it is in another unit, or of several GPUs."""
    sequence, peak = cell.whole("seq_len"), max(gpu.peaks.values())
    flops = flops_per_step(model, sequence, {model.window: sequence * sequence // 2}, model.vocab or 0) / sequence
    if tokens_per_s is not None and tokens_per_s * flops > peak:
        column = "tokens_per_s_per_gpu" if cell.row["tokens_per_s_per_gpu"] else "step_time_s"
        raise UserError(
            f"{cell.place}: {column}: {tokens_per_s:.4g} tokens/s of one GPU are {operations(tokens_per_s * flops)}/s, "
            f"and a {gpu.name} has {operations(peak)}/s: expected tokens/s of one GPU, and seconds"
        )
    if peak_gib is not None and peak_gib * GIB > gpu.hbm_bytes:
        raise UserError(
            f"{cell.place}: peak_memory_gib: {peak_gib:g}, and a {gpu.name} has {gpu.hbm_bytes / GIB:g} GiB: "
            "expected GiB of one GPU"
        )


def _layouts(
    cell: Cells, row: Mapping[str, str], model: ModelConfig, devices: int, does: Mechanisms
) -> Iterable[Layout]:
    """The layout of a row, or every layout that it may have been."""
    pipe, tensor, context = cell.whole("pp", 1), cell.whole("tp", 1), cell.whole("cp", 1)
    data = cell.whole("dp", devices // (pipe * tensor * context))
    batch = cell.whole("global_batch_seqs")
    if pipe * tensor * context * data != devices:
        raise UserError(f"{cell.place}: dp x tp x cp x pp is {pipe * tensor * context * data}, but n_gpus {devices}")
    if batch % data:
        raise UserError(f"{cell.place}: global_batch_seqs: expected a multiple of the {data} data ranks, got {batch}")
    rows = batch // data
    if row["micro_batch_seqs"]:
        micro = [cell.whole("micro_batch_seqs")]
        if rows % micro[0]:
            each = f"the {rows} sequences of a data rank"
            raise UserError(f"{cell.place}: micro_batch_seqs: expected a divisor of {each}, got {micro[0]}")
    else:
        micro = [size for size in (1, 2, 4, 8) if rows % size == 0]
    remat = row["recompute"] or "selective"
    if remat not in REMATS:
        raise UserError(f"{cell.place}: recompute: expected {one_of(REMATS)}, got {quoted(remat)}")
    if row["precision"] and row["precision"] not in PRECISIONS:
        raise UserError(f"{cell.place}: precision: expected {one_of(PRECISIONS)}, got {quoted(row['precision'])}")
    precision = PRECISIONS[row["precision"] or "bf16"]
    imbalance = cell.positive("imbalance") if cell.given("imbalance") else 1.0
    zero, expert = cell.whole("zero_stage", 0, least=0, most=3), cell.whole("ep", 1)
    if data % expert:
        raise UserError(f"{cell.place}: ep: expected a divisor of the {data} data ranks, got {expert}")
    share = cell.number("offload_alpha") if row["offload_alpha"] else 0.0
    if share > 1:
        raise UserError(f"{cell.place}: offload_alpha: expected a share from 0 to 1, got {share:g}")
    for size in micro:
        for virtual in _virtual(cell, model.layers, pipe, rows // size):
            schedule = _schedule(pipe, virtual, row["pipeline_schedule"])
            yield Layout(
                pipe=pipe, replica=1 if zero else data // expert, fsdp=data // expert if zero else 1, expert=expert,
                expert_exchange="all_to_all", expert_capacity=1.0,
                imbalance=imbalance, context=context, tensor=tensor,
                microbatch=size, schedule=schedule, virtual_stages=virtual, zero=zero,
                remat=_operations(model) if remat == "selective" and does.selective == "operations" else remat,
                offload_fraction=share, sequence_parallel=row["sequence_parallel"] == "1", precision=precision,
            )  # fmt: skip


def _operations(model: ModelConfig) -> Remat:
    """Everything again but attention itself and every second matmul, of every layer."""
    names = ("attention_input", "key", "attention_residual", "mlp_input", "mlp_up", "mlp_activated", "mlp_hidden")
    return ((model.layers, tuple((name, "recompute") for name in names)),)


def _virtual(cell: Cells, layers: int, pipe: int, microbatches: int) -> list[int]:
    """Virtual stages of a row: the published number, else up to four, or up to the layers of a rank."""
    if pipe == 1:
        return [1]
    if cell.row["vpp"]:
        return [_published_virtual(cell, layers, pipe, microbatches)]
    if microbatches % pipe or cell.row["pipeline_schedule"] == "1f1b":
        return [1]
    if layers % pipe:
        return [2] if cell.row["pipeline_schedule"].startswith("interleaved") else [1]
    each = layers // pipe
    return [v for v in range(1, each + 1) if each % v == 0 and (v <= 4 or v == each)]


def _published_virtual(cell: Cells, layers: int, pipe: int, microbatches: int) -> int:
    virtual = cell.whole("vpp", most=max(1, layers // pipe))
    try:
        check_sizes(_schedule(pipe, virtual, cell.row["pipeline_schedule"]), pipe, microbatches, virtual)
    except ScheduleError as error:
        raise UserError(f"{cell.place}: vpp: {virtual} virtual stages cannot be: {error}") from None
    return virtual


def _schedule(pipe: int, virtual: int, named: str) -> str:
    """The schedule: what the row names, where it is one of ours, or by the virtual stages."""
    if pipe == 1:
        return "one-stage"
    if named in SCHEDULES and named not in ("1f1b", "interleaved"):
        return named
    return "interleaved" if virtual > 1 else "1f1b"


def _cluster(cell: Cells, devices: int) -> tuple[Cluster, list[str]]:
    """The cluster of a row, and what had to be assumed of its GPU; an unpublished network is the usual one."""
    number = lambda column, scale=1.0: scale * cell.positive(column) if cell.given(column) else None
    stated = Variant(number("gpu_memory_gib"), number("gpu_memory_tb_per_s", TERA), number("gpu_power_w"))
    per_host = min(devices, cell.whole("gpus_per_node", 8))
    if cell.row["gpu"] == CPU:  # of this machine: a row that a run wrote
        return cpu_cluster(per_host, -(-devices // per_host)), []
    try:
        gpu, assumed = variant(cell.row["gpu"], stated)
    except UserError as error:
        raise UserError(f"{cell.place}: gpu: {error}") from None
    network = gpu.network
    if cell.given(NETWORK):
        network = network.with_bandwidth(cell.positive(NETWORK) / 8, None, cell.place)
    group = Group(gpu.short, gpu, -(-devices // per_host), gpu.node, network, gpu.host)
    return Cluster(f"{gpu.short}:{group.hosts}x{per_host}", per_host, (group,)), assumed


def _measured(cell: Cells, devices: int) -> float | None:
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
