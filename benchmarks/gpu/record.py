"""Records kernels that passed on a device in the user's `verified.json`, so that `auto` may choose them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks.gpu import linear_attention, tiled
from benchmarks.gpu.attention_cases import timed
from jaxpar.config.strict_json import json_text
from pallas_kernels.verified import OF_XLA, digest, user_file

ALWAYS = ("attention/xla", "attention/cudnn")
"""Kernels that need no record to be chosen."""
TIMED = ("attention/mosaic", "attention/mosaic_deterministic", "attention/triton", "attention/cudnn")
"""Kernels of attention, whose speeds are recorded."""


class Beside(NamedTuple):
    """How the speed of another kernel is found beside that of plain XLA, in the rows of a run."""

    kind: str
    by: str
    plain: tuple[str, ...] = ("xla",)
    """What runs in its place; the fastest of them counts."""
    cases: frozenset[str] | None = None
    """Of the kernel; None for all of the kind."""


_NAMES = lambda cases: frozenset(case.name for case in cases)
BESIDE = {
    "grouped_matmul/mosaic": Beside("grouped", "mosaic"),
    "grouped_matmul/triton": Beside("grouped", "triton"),
    **{kernel: Beside("tiled", "mosaic", cases=_NAMES(cases)) for kernel, cases in tiled.TIMED.items()},
    linear_attention.KERNEL: Beside("linear_attention", "mosaic"),
}


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


def speeds(rows: Sequence[Mapping[str, Any]], kernels: Sequence[str] = TIMED) -> dict[str, dict[str, float]]:
    """By kernel of attention, then kind of mask and width: TFLOP/s of forward and backward together, the geometric mean
    over the cases of that kind that all of these `kernels` were timed in.

    Where no case has all of them, it is over the cases that have the most; the others get no speed of that kind.
    """
    seconds: dict[tuple, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["kind"] == "attention" and "seconds" in row and f"attention/{row['by']}" in kernels:
            case = row["case"], row["seq"], row["width"]
            seconds.setdefault(case, {}).setdefault(f"attention/{row['by']}", {})[row["way"]] = row["seconds"]
    rates: dict[str, list[dict[str, float]]] = {}
    for case in timed():
        ways = seconds.get((case.name, case.seq, case.width), {})
        whole = {kernel: sum(of.values()) for kernel, of in ways.items() if len(of) == 2}
        of_kind = rates.setdefault(f"{case.mask.kind} {case.width}", [])
        of_kind.append({kernel: 3.5 * case.flops() / total / 1e12 for kernel, total in whole.items()})
    found: dict[str, dict[str, float]] = {}
    for kind, cases in rates.items():
        shared = lambda names, cases=cases: [case for case in cases if names <= case.keys()]
        names = max((case.keys() for case in cases), key=lambda names: (len(names), len(shared(names))))
        if len(names) < 2:  # nothing to compare
            continue
        for kernel in sorted(names):
            mean = geometric_mean(case[kernel] for case in shared(names))
            found.setdefault(kernel, {})[kind] = round(mean, 1)
    return found


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By kernel beside those of attention: its speed as a share of plain XLA's, the geometric mean over the cases that
    both ran in all ways that either did."""
    found = {}
    for kernel, beside in BESIDE.items():
        seconds: dict[Any, dict[str, dict[Any, float]]] = {}
        for row in rows:
            own = beside.cases is None or row.get("case") in beside.cases
            if row["kind"] == beside.kind and "seconds" in row and own:
                of_case = seconds.setdefault(row.get("case"), {})
                of_case.setdefault(row["by"], {})[row.get("way")] = row["seconds"]
        shares = []
        for by in seconds.values():
            ours = by.get(beside.by, {})
            plain = [by[name] for name in beside.plain if name in by and by[name].keys() == ours.keys()]
            if plain:
                shares.append(min(sum(ways.values()) for ways in plain) / sum(ours.values()))
        if shares:
            found[kernel] = {OF_XLA: round(geometric_mean(shares), 3)}
    return found


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
        file.write_text(json_text(records, indent=2) + "\n")
