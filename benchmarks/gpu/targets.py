"""Performance targets of the kernels on an H200, and whether they are met there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu import rings
from benchmarks.gpu.training import GPT_1_3B

Rows = Sequence[Mapping[str, Any]]

DENSE_MASK = "cudnn, dense mask"
"""Computes the pairs that documents mask, so it does not count as the best of the others."""
OURS = ("mosaic", "mosaic_deterministic", "triton")
CUDNN = {8192: (644, 541), 16384: (673, 579)}
"""TFLOP/s forward and backward that NVIDIA's table has for cuDNN 9.19 on an H200: one row, 64 query and 8 KV heads of
width 128, causal, bfloat16."""


JUDGED = "NVIDIA H200"
"""`jax.Device.device_kind` of the GPU that the targets are for; on others they are printed beside what was measured."""
GROUPED = {"forward": 600.0, "d_rows": 550.0, "d_weights": 620.0}
"""TFLOP/s of a grouped matmul and of its gradients."""
FP8_MFU = 0.8
"""Of the bfloat16 peak, by a step of 1.3B parameters in the best FP8 recipe."""
OF_GROUPS = ("deepseek-v3, 32 of 256", "qwen3-30b-a3b")
"""Cases of `benchmarks.gpu.grouped` that these are for."""


def targets(rows: Rows, device: str) -> list[dict[str, Any]]:
    """Each target with what was measured, None where something is missing, and whether it is met: None also on another
    device than `JUDGED`."""
    found = [
        *_attention(rows, "causal", (8192, 16384), 128, ("forward", "backward"), 1.0, ("cudnn",)),
        *_attention(rows, "causal", (8192,), 64, ("forward", "backward"), 1.0, ("cudnn",)),
        *_attention(rows, "window 1024", (16384,), 128, ("forward", "backward"), 1.5, None),
        *_attention(rows, "window 4096", (16384,), 128, ("forward", "backward"), 1.5, None),
        *_attention(rows, "packed, mean 1k", (16384,), 128, ("forward", "backward"), 1.5, None),
        *_grouped(rows),
        *_rings(rows),
        *_training(rows),
    ]
    judged = lambda target: device == JUDGED and target["measured"] is not None
    return [target | {"met": _is_met(target) if judged(target) else None} for target in found]


def _is_met(target: Mapping[str, Any]) -> bool:
    measured, wanted = target["measured"], target["target"]
    return measured <= wanted if target.get("at_most") else measured >= wanted


def _attention(
    rows: Rows, case: str, lengths: Sequence[int], width: int, ways: Sequence[str], least: float,
    others: Sequence[str] | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Our best over the best of `others` (None: all implementations that are not ours and use no dense mask)."""
    found = []
    for seq in lengths:
        for way in ways:
            of = {
                row["by"]: row["tflops"]
                for row in rows
                if row["kind"] == "attention" and row.get("way") == way
                and (row["case"], row["seq"], row["width"]) == (case, seq, width)
            }  # fmt: skip
            mine = [of[name] for name in OURS if name in of]
            fair = lambda name: name not in (*OURS, DENSE_MASK) if others is None else name in others
            theirs = [rate for name, rate in of.items() if fair(name)]
            against = "cuDNN" if others else "the best cuDNN or PyTorch"
            what = f"{case}, {seq} tokens, width {width}, {way}, against {against}"
            if width == 128 and others and seq in CUDNN:
                cudnn_tflops = CUDNN[seq][way == "backward"]
                what += f" (NVIDIA's table: {cudnn_tflops} TFLOP/s, of one row with 64:8 heads)"
            found.append(_ratio(what, least, mine, theirs))
    return found


def _ratio(what: str, least: float, mine: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    measured = max(mine) / max(theirs) if mine and theirs else None
    return {"what": what, "target": least, "measured": measured}


def _grouped(rows: Rows) -> list[dict[str, Any]]:
    """TFLOP/s of our best."""
    found = []
    for case in OF_GROUPS:
        for way, least in GROUPED.items():
            mine = [
                row["tflops"]
                for row in rows
                if row["kind"] == "grouped" and (row["case"], row["way"]) == (case, way)
                and row["by"] in OURS and "tflops" in row
            ]  # fmt: skip
            what = f"TFLOP/s of a grouped matmul, {case}, {way}"
            found.append({"what": what, "target": least, "measured": max(mine, default=None)})
    return found


def _training(rows: Rows) -> list[dict[str, Any]]:
    of = {row["name"]: row["mfu"] for row in rows if row["kind"] == "recipe" and row.get("mfu") is not None}
    found = [mfu for name, mfu in of.items() if name.startswith(f"{GPT_1_3B}, fp8")]
    what = "MFU of the bfloat16 peak, a step of 1.3B parameters in the best FP8 recipe"
    return [{"what": what, "target": FP8_MFU, "measured": max(found, default=None)}]


def _rings(rows: Rows) -> list[dict[str, Any]]:
    """The products of a ring in two chunks of a rank's part, which is what a plan takes, over whole ones."""
    of = {
        (row["case"], row["way"]): row.get("of_whole") for row in rows if row["kind"] == "ring" and row["chunks"] == 2
    }
    what = "products of a ring in 2 chunks, against whole ones: "
    return [
        {"what": f"{what}{case.name}, {way}", "target": 1.03, "at_most": True, "measured": of.get((case.name, way))}
        for case in rings.TIMED
        for way in rings.WAYS
    ]
