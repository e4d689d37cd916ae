"""The layout of a published run; where part of it was not published, every layout that it may have been."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.validation.cells import Cells
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import join_or, quoted
from jaxpar.cost.layout import Layout, Precision, Remat
from jaxpar.cost.matmul_quantization import MatmulQuantization
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules.registry import SCHEDULES, check_sizes

REMATS = ("none", "selective", "operations", "gemm_last", "full")
"""Values of the recomputation column; `selective` where it is empty."""
OPERATIONS = ("attention_input", "key", "attention_residual", "mlp_input", "mlp_up", "mlp_activated", "mlp_hidden")
"""The selection of torchtitan, as what `operations` recompute: all but attention itself and every second matmul."""

PRECISIONS: Mapping[str, Precision] = {"fp8": "bfloat16", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
"""Types as the column has them; bfloat16 where the cell is empty."""


def layouts_of(cell: Cells, layers: int, devices: int) -> Iterable[Layout]:
    """The layout of a row, or every layout that it may have been. Raises `UserError`."""
    row = cell.row
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
    named = row["recompute"] or "selective"
    if named not in REMATS:
        raise UserError(f"{cell.place}: recompute: expected {join_or(REMATS)}, got {quoted(named)}")
    again = tuple((name, "recompute") for name in OPERATIONS)
    remat: Remat = ((layers, again),) if named == "operations" else named
    if row["precision"] and row["precision"] not in PRECISIONS:
        raise UserError(f"{cell.place}: precision: expected {join_or(PRECISIONS)}, got {quoted(row['precision'])}")
    precision = PRECISIONS[row["precision"] or "bf16"]
    imbalance = cell.positive("imbalance") if cell.given("imbalance") else 1.0
    zero, expert = cell.whole("zero_stage", 0, least=0, most=3), cell.whole("ep", 1)
    if data % expert:
        raise UserError(f"{cell.place}: ep: expected a divisor of the {data} data ranks, got {expert}")
    shards = cell.whole("fsdp", data // expert) if zero and "fsdp" in row else data // expert if zero else 1
    if data // expert % shards:
        raise UserError(f"{cell.place}: fsdp: expected a divisor of the {data // expert} data ranks, got {shards}")
    share = cell.number("offload_alpha") if row["offload_alpha"] else 0.0
    if share > 1:
        raise UserError(f"{cell.place}: offload_alpha: expected a share from 0 to 1, got {share:g}")
    for size in micro:
        for virtual in _virtual(cell, layers, pipe, rows // size):
            schedule = _schedule(pipe, virtual, row["pipeline_schedule"])
            yield Layout(
                pipe=pipe, replica=data // expert // shards, fsdp=shards, expert=expert,
                expert_exchange="all_to_all", expert_capacity=1.0,
                imbalance=imbalance, context=context, tensor=tensor,
                microbatch=size, schedule=schedule, virtual_stages=virtual, zero=zero, remat=remat,
                offload_fraction=share, precision=precision,
                matmul_quantization=MatmulQuantization(None, layers=layers) if row["precision"] == "fp8" else None,
            )  # fmt: skip


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
