"""Published training runs: rows of a CSV file as models, layouts, clusters and mechanisms of software."""

from __future__ import annotations

import csv
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import check_regular
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import did_you_mean, named, one_of, quoted
from jaxpar.cost.mechanisms import GENERATIONS, Mechanisms
from jaxpar.hardware.catalogue import GPU, gpu_named
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.model.flops import flops_per_step
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules.registry import check_sizes
from jaxpar.planner.layout import Layout, Precision
from jaxpar.units import GIB, GIGA, operations

COLUMNS = (
    "source", "citation", "row_id", "framework", "gpu", "gpus_per_node", "inter_node_gbps_per_gpu", "n_gpus",
    "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "gated_mlp", "vocab", "tied_embeddings",
    "seq_len", "global_batch_seqs", "micro_batch_seqs", "dp", "zero_stage", "tp", "sequence_parallel", "cp", "pp",
    "vpp", "ep", "pipeline_schedule", "recompute", "offload_alpha", "precision", "flash_attention", "step_time_s",
    "tokens_per_s_per_gpu", "peak_memory_gib", "notes",
)  # fmt: skip
"""What a row must have; others are not read."""

REMATS = ("none", "selective", "gemm_last", "full")
"""Values of the recomputation column; `selective` where it is empty."""

MOST = 10**9
"""The largest value of any count."""

PRECISIONS: Mapping[str, Precision] = {"fp8": "float8", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
"""How types are written; bfloat16 where the cell is empty."""

FRAMEWORKS = (
    ("llm-foundry", "llm-foundry"),
    ("Megatron-DeepSpeed", "megatron-deepspeed"),
    ("DeepSpeed", "deepspeed-zero3"),
    ("Megatron-Kwai", "kuaishou"),
    ("Megatron-LM (2021)", "megatron-2021"),
    ("Megatron-LM (2022)", "megatron-2022"),
    ("Megatron-LM 2024", "megatron-2024"),
    ("Megatron-LM", "megatron-2024"),
    ("Megatron-Core", "megatron-core"),
    ("torchtitan", "torchtitan"),
)
"""Prefixes of framework names, and the generation of each."""
UNKNOWN = "megatron-core"
"""The generation assumed for software of another name; `Run.assumed` lists it."""
BEFORE_FLASH2 = ("megatron-2021", "megatron-2022", "megatron-deepspeed", "deepspeed-zero3")
"""Generations whose fused attention, where they have it, is the first FlashAttention."""

SWITCHES = ("gated_mlp", "sequence_parallel", "flash_attention", "tied_embeddings")
"""Columns whose cells are 0 or 1."""
USUAL = {
    "micro_batch_seqs": "the fastest of 1, 2, 4 and 8", "recompute": "selective", "precision": "bf16",
    "zero_stage": "0", "gpus_per_node": "8", "tied_embeddings": "1",
}  # fmt: skip
"""The value assumed for an empty cell, where that makes a difference."""

_ASYNCHRONOUS_TENSOR = 12 * 22 + 5
"""May 2022: Megatron began to sum gradients over tensor ranks beside the gradients of weights (arXiv:2205.05198)."""


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


def read_runs(path: Path) -> list[Run]:
    """The runs of a CSV file in the schema of `COLUMNS`.

    Raises:
        UserError: no such file, a column is missing, or a cell is not a number or is impossible in its unit.
    """
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(line for line in stream if not line.startswith("#"))
            rows = list(reader)
            found = reader.fieldnames or []
    except FileNotFoundError:
        raise UserError(f"{named(path)}: there is no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{named(path)}: cannot be read as text ({error})") from None
    for column in COLUMNS:
        if column not in found:
            raise UserError(f"{named(path)}: the column {quoted(column)} is missing{did_you_mean(column, found)}")
    where = named(path)
    return [_run(row, f"{where}: row {number} ({row['source']} {row['row_id']})") for number, row in enumerate(rows, 2)]


def _run(row: Mapping[str, str], place: str) -> Run:
    """A row as a run."""
    cell = _Cells(row, place)
    cell.check()
    gated = bool(cell.whole("gated_mlp", least=0))
    kind, framework = row["gpu"], row["framework"]
    heads = cell.whole("n_heads")
    model = ModelConfig(
        layers=cell.whole("n_layers"), embed=cell.whole("d_model"), heads=heads,
        kv_heads=cell.whole("n_kv_heads", heads), head_dim=cell.whole("head_dim"), mlp=cell.whole("d_ff"),
        vocab=cell.whole("vocab"), norm="rmsnorm" if gated else "layernorm", position="rope" if gated else "learned",
        attention_bias=not gated, mlp_bias=not gated, activation="swiglu" if gated else "gelu",
        tied=row["tied_embeddings"] != "0", max_positions=cell.whole("seq_len"),
    )  # fmt: skip
    devices = cell.whole("n_gpus")
    cluster = _cluster(cell, kind, devices, row["inter_node_gbps_per_gpu"])
    measured = _measured(cell, devices)
    peak_gib = cell.positive("peak_memory_gib") if row["peak_memory_gib"] else None
    _check_units(cell, model, cluster.gpu, measured, peak_gib)
    return Run(
        source=row["source"], row=row["row_id"], citation=row["citation"], model=model,
        sequence=cell.whole("seq_len"), batch=cell.whole("global_batch_seqs"),
        layouts=tuple(_layouts(cell, row, model, devices)), cluster=cluster,
        mechanisms=mechanisms_of(framework, row, kind), tokens_per_s_per_gpu=measured,
        peak_gib=peak_gib, assumed=tuple(_assumed(row, cluster)),
    )  # fmt: skip


def _check_units(
    cell: _Cells, model: ModelConfig, gpu: GPU, tokens_per_s: float | None, peak_gib: float | None
) -> None:
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


def mechanisms_of(framework: str, row: Mapping[str, str], gpu: str) -> Mechanisms:
    """The mechanisms of a row's software."""
    name = _generation(framework) or UNKNOWN
    does = GENERATIONS[name]
    if name == "llm-foundry" and "PURE" in row["notes"]:
        does = GENERATIONS["llm-foundry-pure"]
    if name == "megatron-deepspeed" and _months(row["citation"]) < _ASYNCHRONOUS_TENSOR:
        does = GENERATIONS["megatron-deepspeed-2021"]
    if name.startswith("megatron") and row["precision"] == "fp16":
        does = replace(does, gradient_type="16-bit")
    flash = row["flash_attention"]
    if flash == "1" and does.attention == "scores":
        does = replace(does, attention="flash1" if name in BEFORE_FLASH2 else "flash2")
    if flash == "0":
        does = replace(does, attention="scores")
    return does


def _generation(framework: str) -> str | None:
    """The generation of a framework by its name; None if it is unknown."""
    return next((name for start, name in FRAMEWORKS if framework.startswith(start)), None)


def _assumed(row: Mapping[str, str], cluster: Cluster) -> Iterable[str]:
    """What `row` leaves open, and the value assumed for it."""
    if _generation(row["framework"]) is None:
        yield f"{row['framework'] or 'unnamed software'} does what {UNKNOWN} does"
    for column, usual in USUAL.items():
        if not row[column]:
            yield f"{column} {usual}"
    if not row["inter_node_gbps_per_gpu"] and cluster.hosts > 1:
        yield f"inter_node_gbps_per_gpu {8 * cluster.link(True).bandwidth / GIGA:g}"


def _months(citation: str) -> float:
    """Months since 2000 of the arXiv paper that is cited; infinite where none is."""
    found = re.search(r"arXiv:(\d\d)(\d\d)\.", citation)
    return 12.0 * int(found[1]) + int(found[2]) if found else inf


def _layouts(cell: _Cells, row: Mapping[str, str], model: ModelConfig, devices: int) -> Iterable[Layout]:
    """The layout of a row, or every layout that it may have been."""
    pipe, tensor, context = cell.whole("pp", 1), cell.whole("tp", 1), cell.whole("cp", 1)
    data = cell.whole("dp", devices // (pipe * tensor * context))
    batch = cell.whole("global_batch_seqs")
    if pipe * tensor * context * data != devices:
        raise UserError(f"{cell.place}: dp x tp x cp x pp is {pipe * tensor * context * data}, but n_gpus {devices}")
    if batch % data:
        raise UserError(f"{cell.place}: global_batch_seqs: expected a multiple of the {data} data ranks, got {batch}")
    if cell.whole("ep", 1) != 1:
        raise UserError(f"{cell.place}: ep: expected 1, since the time model has no experts, got {row['ep']}")
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
    zero = cell.whole("zero_stage", 0, least=0, most=3)
    share = cell.number("offload_alpha") if row["offload_alpha"] else 0.0
    if share > 1:
        raise UserError(f"{cell.place}: offload_alpha: expected a share from 0 to 1, got {share:g}")
    for size in micro:
        for virtual in _virtual(cell, model.layers, pipe, rows // size):
            yield Layout(
                pipe=pipe, replica=1 if zero else data, fsdp=data if zero else 1, context=context, tensor=tensor,
                microbatch=size, schedule=_schedule(pipe, virtual), virtual_stages=virtual, zero=zero, remat=remat,
                offload_fraction=share, sequence_parallel=row["sequence_parallel"] == "1", precision=precision,
            )  # fmt: skip


def _virtual(cell: _Cells, layers: int, pipe: int, microbatches: int) -> list[int]:
    """Virtual stages of a row: the published number, else up to four, or up to the layers of a rank."""
    if pipe == 1:
        return [1]
    if cell.row["vpp"]:
        return [_published_virtual(cell, layers, pipe, microbatches)]
    if microbatches % pipe or layers % pipe:
        return [1]
    each = layers // pipe
    return [v for v in range(1, each + 1) if each % v == 0 and (v <= 4 or v == each)]


def _published_virtual(cell: _Cells, layers: int, pipe: int, microbatches: int) -> int:
    virtual = cell.whole("vpp", most=max(1, layers // pipe))
    try:
        check_sizes(_schedule(pipe, virtual), pipe, microbatches, virtual)
    except ScheduleError as error:
        raise UserError(f"{cell.place}: vpp: {virtual} virtual stages cannot be: {error}") from None
    return virtual


def _schedule(pipe: int, virtual: int) -> str:
    if pipe == 1:
        return "one-stage"
    return "interleaved" if virtual > 1 else "1f1b"


def _cluster(cell: _Cells, kind: str, devices: int, gigabits: str) -> Cluster:
    """The cluster of a row; where the network was not published, the usual one of its GPU."""
    name = kind.lower().removesuffix("gb")
    known = {"a800-80": "a800", "h100-80": "h100", "h800-80": "h800", "h200-141": "h200"}
    try:
        gpu = gpu_named(known.get(name, name))
    except UserError as error:
        raise UserError(f"{cell.place}: gpu: {error}") from None
    per_host = min(devices, cell.whole("gpus_per_node", 8))
    network = gpu.network
    if gigabits:
        network = network.with_bandwidth(cell.positive("inter_node_gbps_per_gpu") / 8, None, cell.place)
    group = Group(gpu.short, gpu, -(-devices // per_host), gpu.node, network, gpu.host)
    return Cluster(f"{gpu.short}:{group.hosts}x{per_host}", per_host, (group,))


def _measured(cell: _Cells, devices: int) -> float | None:
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


@dataclass(frozen=True)
class _Cells:
    """A row's numbers; raises an error that names the cell for what is not a number."""

    row: Mapping[str, str]
    place: str

    def check(self) -> None:
        """Raise `UserError` for a row of another length, or a switch that is neither 0 nor 1."""
        if None in self.row or None in self.row.values():
            raise UserError(f"{self.place}: expected as many cells as columns")
        for column in SWITCHES:
            if self.row[column] not in ("", "0", "1"):
                raise UserError(f"{self.place}: {column}: expected 0, 1 or nothing, got {quoted(self.row[column])}")

    def number(self, column: str) -> float:
        try:
            value = float(self.row[column])
        except (TypeError, ValueError):
            raise UserError(f"{self.place}: {column}: expected a number, got {quoted(self.row[column])}") from None
        if not 0 <= value < float("inf"):
            raise UserError(f"{self.place}: {column}: expected 0 or more, got {value:g}")
        return value

    def positive(self, column: str) -> float:
        value = self.number(column)
        if value == 0:
            raise UserError(f"{self.place}: {column}: expected a number above 0, got 0")
        return value

    def whole(self, column: str, usual: int | None = None, least: int = 1, most: int = MOST) -> int:
        if usual is not None and not self.row[column]:
            return usual
        value = self.number(column)
        if value != int(value) or not least <= value <= most:
            raise UserError(f"{self.place}: {column}: expected a whole number from {least} to {most:,}, got {value:g}")
        return int(value)
