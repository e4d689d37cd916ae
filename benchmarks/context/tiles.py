"""A whole training step on one device with rows of many tokens, without and with tiles of the loss and the MLP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpar.pages.units import GIB, percent

ROOT = Path(__file__).parents[2]

CASES: Mapping[str, tuple[str, ...]] = {
    "no tiles": ("memory.loss_tiles=1", "memory.mlp_tiles=1"),
    "tiled loss": ("memory.mlp_tiles=1",),
    "tiled loss and MLP": (),
}
"""Overrides of each case; the plan chooses the rest."""


def measure_tiles(
    config: str, lengths: Sequence[int], *, steps: int, overrides: Sequence[str] = (), warmup: int = 2
) -> dict[str, Any]:
    """Each case at each length, one row a step under full rematerialisation, as `benchmarks.jax_step` measures it.

    A case that needs more memory than available has `refused`, the error message, instead of numbers.
    """
    one_gpu = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    rows = []
    for length in lengths:
        common = [f"data.sequence_length={length}", "data.batch_size=1", "memory.remat=full", "parallel.fsdp=1",
                  "parallel.microbatches=1", *overrides]  # fmt: skip
        for name, own in CASES.items():
            command = [sys.executable, "-m", "benchmarks.jax_step", "--config", config]
            command += ["--warmup", str(warmup), "--steps", str(steps)]
            command += [part for override in (*common, *own) for part in ("--set", override)]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, env=os.environ | one_gpu, check=False
            )  # fmt: skip
            row: dict[str, Any] = {"length": length, "case": name}
            if done.returncode == 0:
                row |= json.loads(done.stdout.splitlines()[-1])
            elif done.returncode == 2:
                row["refused"] = done.stderr.strip().splitlines()[-1].removeprefix("jaxpar: ")
            else:
                raise SystemExit(f"{name} at {length} tokens failed:\n{done.stdout}{done.stderr}")
            rows.append(row)
    return {"config": config, "steps": steps, "rows": rows}


def tiles_table(result: Mapping[str, Any]) -> str:
    """The results for people."""
    device = next((row["device"] for row in result["rows"] if "device" in row), "no device held any case")
    lines = [
        f"{result['config']}, one row a step, full rematerialisation, {result['steps']} steps timed; {device}",
        "",
        f"{'tokens':>8}  {'case':20}{'tokens/s':>10}{'step s':>9}{'MFU':>8}{'predicted GiB':>15}{'peak GiB':>10}",
    ]
    for row in result["rows"]:
        named = f"{row['length']:8}  {row['case']:20}"
        if "refused" in row:
            lines.append(f"{named}refused: {row['refused']}")
            continue
        mfu = "-" if row["mfu"] is None else percent(row["mfu"])
        predicted = "-" if row["predicted_bytes"] is None else f"{row['predicted_bytes'] / GIB:.2f}"
        peak = f"{row['peak_bytes'] / GIB:.2f}" if row["memory_kind"] == "device" else "-"
        lines.append(
            f"{named}{row['tokens_per_second']:10,.0f}{row['step_time_s']:9.3f}{mfu:>8}{predicted:>15}{peak:>10}"
        )
    return "\n".join(lines)
