"""Records kernels that passed on a device in the user's `verified.json`, so that `auto` may choose them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.gpu.attention_cases import timed
from pallas_kernels.attention.kinds import kind_of
from pallas_kernels.verified import digest, user_file

ALWAYS = ("attention/xla", "attention/cudnn")
"""Kernels that need no record to be chosen."""
TIMED = ("mosaic", "mosaic_deterministic", "triton", "cudnn")
"""Implementations of attention whose speeds are recorded."""


def verified(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kernels whose supported cases all passed, with at least one passed and none skipped."""
    kernels = dict.fromkeys(row["kernel"] for row in rows if row["kind"] == "check")
    left_out = {row["what"] for row in rows if row["kind"] == "skipped"}
    broken = {row["part"] for row in rows if row["kind"] == "broken"}
    found = []
    for kernel in kernels:
        cases = [row for row in rows if row["kind"] == "check" and row["kernel"] == kernel and "refused" not in row]
        whole = not left_out & {kernel, f"the rest of {kernel}"} and not broken & {row["part"] for row in cases}
        if cases and whole and all(row.get("passed") for row in cases):
            found.append(kernel)
    return [kernel for kernel in found if kernel not in ALWAYS]


def speeds(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = TIMED) -> dict[str, dict[str, float]]:
    """By kernel of attention, then kind of mask and width: TFLOP/s of forward and backward together, the geometric mean
    over the cases of that kind that it was timed in beside another."""
    seconds: dict[tuple, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["kind"] == "attention" and "seconds" in row and row["by"] in names:
            case = row["case"], row["seq"], row["width"]
            seconds.setdefault(case, {}).setdefault(row["by"], {})[row["way"]] = row["seconds"]
    found: dict[str, dict[str, list[float]]] = {}
    for case in timed():
        whole = {
            name: sum(ways.values())
            for name, ways in seconds.get((case.name, case.seq, case.width), {}).items()
            if len(ways) == 2
        }
        if len(whole) < 2:  # nothing to compare
            continue
        for name, total in whole.items():
            kind = f"{kind_of(case.mask)} {case.width}"
            found.setdefault(f"attention/{name}", {}).setdefault(kind, []).append(3.5 * case.flops() / total / 1e12)
    return {name: {kind: round(geometric_mean(rates), 1) for kind, rates in of.items()} for name, of in found.items()}


def new_records(
    kernels: Sequence[str], device: Mapping[str, Any], found: Mapping[str, Mapping[str, float]] | None = None
) -> list[dict[str, Any]]:
    """A record for each of `kernels`, as `pallas_kernels.verified.Record` has it, with the speeds that were `found`.

    Raises:
        ValueError: If the device is not a GPU: results of an interpreter verify nothing.
    """
    if device["platform"] != "gpu":
        raise ValueError(f"only a run on a GPU is recorded, and this was one on {device['device']}")
    return [
        {
            "kernel": kernel,
            "device": device["device"],
            "processors": device["processors"],
            "date": date.today().isoformat(),
            "versions": dict(device["toolchain"]),
            "sources": digest(kernel),
            "speeds": dict((found or {}).get(kernel, {})),
        }
        for kernel in kernels
    ]


def add_records(
    kernels: Sequence[str],
    device: Mapping[str, Any],
    file: Path | None = None,
    found: Mapping[str, Mapping[str, float]] | None = None,
) -> list[str]:
    """Write a record for each of `kernels`, in place of an older one of the same device; returns what was added.

    They go to the user's own file where `file` is None. Raises `ValueError` as `new_records` does.
    """
    new = new_records(kernels, device, found)
    _replace(kernels, device, new, file)
    return list(kernels)


def drop_records(kernels: Sequence[str], device: Mapping[str, Any], file: Path | None = None) -> None:
    """Remove the records of `kernels` on this device from the user's own file, or from `file`."""
    _replace(kernels, device, [], file)


def _replace(kernels: Sequence[str], device: Mapping[str, Any], new: list[dict[str, Any]], file: Path | None) -> None:
    file = user_file() if file is None else file
    old = json.loads(file.read_text()) if file.exists() else []
    key = lambda record: (record["kernel"], record["device"], record["processors"])
    replaced = {(kernel, device["device"], device["processors"]) for kernel in kernels}
    records = sorted([*(record for record in old if key(record) not in replaced), *new], key=key)
    if records != old:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(records, indent=2) + "\n")
