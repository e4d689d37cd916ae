"""The rows of a CSV file of published runs: its columns, and errors of files that cannot be read."""

from __future__ import annotations

import csv
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import check_regular
from jaxpar.config.spelling import did_you_mean, named, quoted

type Row = dict[str, str]

COLUMNS = (
    "source", "citation", "row_id", "framework", "gpu", "gpus_per_node", "inter_node_gbps_per_gpu", "n_gpus",
    "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "gated_mlp", "vocab", "tied_embeddings",
    "seq_len", "global_batch_seqs", "micro_batch_seqs", "dp", "zero_stage", "tp", "sequence_parallel", "cp", "pp",
    "vpp", "ep", "pipeline_schedule", "recompute", "offload_alpha", "precision", "flash_attention", "step_time_s",
    "tokens_per_s_per_gpu", "peak_memory_gib", "notes",
)  # fmt: skip
"""Columns that a file must have; others than these and `OPTIONAL` are not read."""

OPTIONAL = (
    "gpu_memory_gib", "gpu_memory_tb_per_s", "gpu_power_w", "architecture",
    "n_experts", "experts_per_token", "d_expert", "shared_experts", "imbalance", "mechanisms", "fsdp",
)  # fmt: skip
"""Columns that a file may have besides. The first three state how a GPU differs from that of the catalogue;
`architecture` is `decoder`, and other ones are not timed. The others are of models with experts in all layers, of which
`ep` ranks each hold some; `imbalance` is 1 where routing was balanced by force. `mechanisms` are facts of the run
(`mechanisms.STATED`), as `compiled=1;overlap_tensor=1`. `fsdp` is the number of ranks that share a weight, where these
are not all data ranks."""

NETWORK = "inter_node_gbps_per_gpu"
"""The column of a GPU's share of the network between hosts; an empty one is the usual share of such GPUs."""


def read_table(path: Path) -> list[tuple[Row, str]]:
    """The rows of a file that has all columns, each with its place in words for errors.

    Raises:
        UserError: no such file, it cannot be read, or a column is missing.
    """
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(line for line in stream if not line.startswith("#"))
            rows = list(reader)
            columns = reader.fieldnames or []
    except FileNotFoundError:
        raise UserError(f"{named(path)}: there is no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{named(path)}: cannot be read as text ({error})") from None
    for column in COLUMNS:
        if column not in columns:
            raise UserError(f"{named(path)}: the column {quoted(column)} is missing{did_you_mean(column, columns)}")
    return [(row, f"row {number} ({row['source']} {row['row_id']})") for number, row in enumerate(rows, 2)]
