"""Records kernels that passed on a device in `pallas_kernels/verified.json`, so that `auto` may choose them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pallas_kernels.verified import FILE, digest

ALWAYS = ("attention/xla", "attention/cudnn")
"""Kernels that need no record."""


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


def add_records(kernels: Sequence[str], device: Mapping[str, Any], file: Path = FILE) -> list[str]:
    """Write a record for each of `kernels`, in place of an older one of the same device; returns what was added.

    Raises:
        ValueError: If the device is not a GPU: results of an interpreter verify nothing.
    """
    if device["platform"] != "gpu" or not device["compute_capability"]:
        raise ValueError(f"only a run on a GPU is recorded, and this was one on {device['device']}")
    records = json.loads(file.read_text())
    key = lambda record: (record["kernel"], record["device"])
    new = [
        {
            "kernel": kernel,
            "device": device["device"],
            "compute_capability": f"{float(device['compute_capability']):.1f}",
            "date": date.today().isoformat(),
            "versions": dict(device["versions"]),
            "sources": digest(kernel),
        }
        for kernel in kernels
    ]
    replaced = {key(record) for record in new}
    kept = [record for record in records if key(record) not in replaced]
    file.write_text(json.dumps(sorted([*kept, *new], key=key), indent=2) + "\n")
    return list(kernels)
