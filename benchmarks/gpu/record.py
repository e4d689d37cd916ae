"""Records kernels that passed on a device in the user's `verified.json`, so that `auto` may choose them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pallas_kernels.verified import digest, user_file

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


def new_records(kernels: Sequence[str], device: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A record for each of `kernels`, as `pallas_kernels.verified.Record` has it.

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
        }
        for kernel in kernels
    ]


def add_records(kernels: Sequence[str], device: Mapping[str, Any], file: Path | None = None) -> list[str]:
    """Write a record for each of `kernels`, in place of an older one of the same device; returns what was added.

    They go to the user's own file where `file` is None. Raises `ValueError` as `new_records` does.
    """
    new = new_records(kernels, device)
    file = user_file() if file is None else file
    records = json.loads(file.read_text()) if file.exists() else []
    key = lambda record: (record["kernel"], record["device"], record["processors"])
    replaced = {key(record) for record in new}
    kept = [record for record in records if key(record) not in replaced]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sorted([*kept, *new], key=key), indent=2) + "\n")
    return list(kernels)
