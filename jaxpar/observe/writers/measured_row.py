"""`measured.csv`: the speed of a run as a row of published runs, from which `jaxpar.plan --measured` learns."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxpar import __version__
from jaxpar.distributed.devices import devices_per_node
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.observe.events import Listener, RunInfo, Summary
from jaxpar.observe.files import write_atomically
from jaxpar.units import GIB

MEASURED_FILE = "measured.csv"

PRESETS = ("none", "selective", "gemm_last", "full")
"""What the column `recompute` can hold; a mixture of maps is written as the one that most of its layers are nearest."""
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class MeasuredRow(Listener):
    """Writes the row at the end of a run of two steps or more; none of a model with layers of several kinds, for which
    the rows have no columns."""

    def __init__(self) -> None:
        self._info: RunInfo | None = None

    def start(self, info: RunInfo) -> None:
        self._info = info

    def end(self, summary: Summary) -> None:
        info = self._info
        if info is None or not summary.steady_step_seconds or info.config["model"]["pattern"] is not None:
            return
        devices = jax.devices()
        gpu = gpu_of(devices[0].device_kind)
        name = "cpu" if devices[0].platform == "cpu" else devices[0].device_kind if gpu is None else gpu.short
        peak = None if summary.peak_bytes is None or summary.memory_kind == "host" else summary.peak_bytes / GIB
        row = measured_row(
            info.config, info.plan, name, devices_per_node(devices), summary.steady_step_seconds, peak, info.folder
        )
        text = io.StringIO()
        writer = csv.DictWriter(text, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)
        write_atomically(Path(info.folder) / MEASURED_FILE, text.getvalue().encode())


def measured_row(
    config: Mapping[str, Any], plan: Mapping[str, Any], gpu: str, per_host: int, step_seconds: float,
    peak_gib: float | None, folder: str,
) -> dict[str, str]:  # fmt: skip
    """A run by the columns of `jaxpar/planner/measured_runs/table.py`.

    Args:
        config: the resolved configuration.
        plan: as plan.json has it.
        gpu: name in the catalogue.
        per_host: GPUs of a host.
        step_seconds: mean time of a step.
        peak_gib: largest memory in use on a GPU, where it was measured.
        folder: of the run.
    """
    model, data, axes = config["model"], config["data"], plan["axes"]
    shards = axes["replica"] * axes["fsdp"] * axes["expert"]
    devices = shards * axes["pipe"] * axes["context"] * axes["tensor"]
    heads = model["heads"]
    experts = model["experts"] or {}
    remat = next((name for name in PRESETS if name in plan["remat"]), "gemm_last")
    cells = {
        "source": config["run"]["name"], "citation": folder, "row_id": config["run"]["name"],
        "framework": f"jaxpar {__version__}", "gpu": gpu, "gpus_per_node": per_host, "inter_node_gbps_per_gpu": "",
        "n_gpus": devices, "n_layers": model["layers"], "d_model": model["embed"], "n_heads": heads,
        "n_kv_heads": model["kv_heads"] or heads, "head_dim": model["head_dim"] or model["embed"] // heads,
        "d_ff": model["mlp"], "gated_mlp": int(model["activation"].endswith("glu")), "vocab": model["vocab"],
        "tied_embeddings": int(model["tied"]), "seq_len": data["sequence_length"],
        "global_batch_seqs": data["batch_size"], "micro_batch_seqs": plan["microbatch_rows"], "dp": shards,
        "zero_stage": plan["zero"], "tp": axes["tensor"], "sequence_parallel": int(axes["tensor"] > 1),
        "cp": axes["context"], "pp": axes["pipe"], "vpp": plan["virtual_stages"],
        "ep": axes["expert"] if experts else 1,
        "pipeline_schedule": plan["schedule"] if axes["pipe"] > 1 else "none", "recompute": remat,
        "offload_alpha": config["memory"]["offload_fraction"],
        "precision": SHORT.get(plan["dtypes"]["compute"], plan["dtypes"]["compute"]), "flash_attention": "",
        "step_time_s": f"{step_seconds:.6g}", "tokens_per_s_per_gpu": "",
        "peak_memory_gib": "" if peak_gib is None else f"{peak_gib:.4g}", "notes": "measured by the run itself",
        "mechanisms": f"attention={plan['attention']['name']}" if gpu != "cpu" else "",
        "n_experts": experts.get("count", ""), "experts_per_token": experts.get("per_token", ""),
        "d_expert": experts.get("width") or "", "shared_experts": experts.get("shared", ""),
        "imbalance": config["parallel"]["expert_imbalance"] if experts else "",
    }  # fmt: skip
    return {name: str(value) for name, value in cells.items()}
