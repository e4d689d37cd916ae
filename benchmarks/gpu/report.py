"""The results of the suite as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.generate.turns import table as generated
from benchmarks.gpu import bounds, jax_attention
from benchmarks.gpu.bounds import B200, H100
from benchmarks.gpu.targets import DENSE_MASK, JUDGED, OURS
from jaxpar.pages.units import GIGA, MILLI, percent, seconds, size


def table(result: Mapping[str, Any]) -> str:
    """The whole result, skipped items included."""
    rows = result["rows"]
    of = lambda kind: [row for row in rows if row["kind"] == kind]
    device = result["device"]
    lines = [f"{device['count']} x {device['device']}; {seconds(result['seconds'])} in all"]
    lines += [f"XLA_FLAGS {flags}"] if (flags := device.get("xla_flags")) else []
    if result["dry_run"]:
        lines.append("DRY RUN: tiny shapes, to see that the suite runs; no number here means anything.")
    sections = (
        ("Right or wrong, against float64", [_check(row) for row in of("check")]),
        (
            "Attention, TFLOP/s (median of turns), and ours over the best of others, forward and backward",
            _attention(of("attention")),
        ),
        ("Grouped matmuls, TFLOP/s (median of turns)", [_grouped(row, device["device"]) for row in of("grouped")]),
        ("Matmuls of FP8 tiles, TFLOP/s (median of turns)", [_tiled(row) for row in of("tiled")]),
        ("Linear attention, TFLOP/s (median of turns)", [_linear(row) for row in of("linear_attention")]),
        ("Tiles: the table's entry, and the fastest of its neighbours", _tiles(of("tile"))),
        ("Products in the chunks of a ring, beside whole ones (median of turns)", [_ring(row) for row in of("ring")]),
        ("State on the device and on the host: the same bits", [_bits(row) for row in of("bits")]),
        ("A step", [_step(row) for row in of("step")]),
        (
            "The same with Triton's matmuls, and the file of their tiles",
            [line for row in of("triton") for line in (_step(row), row["tiles"])],
        ),
        ("A step in each FP8 recipe (MFU: of the bfloat16 peak)", [_step(row) for row in of("recipe")]),
        ("Generation, tokens/s (median of turns)", _generation(of("generation"))),
        ("The deepest model, by where its state is stored", [_step(row) for row in of("tier")]),
        (_of_targets(device["device"]), [_target(target) for target in result["targets"]]),
        ("NOT RUN", [f"{row['part']}: {row['what']}: {row['why']}" for row in of("skipped")]),
    )
    for title, content in sections:
        if content:
            lines += ["", title, *(f"  {line}" for line in content)]
    return "\n".join(lines)


def _check(row: Mapping[str, Any]) -> str:
    head = f"{row['kernel']:32}{row['case']:46}"
    if "passed" not in row:
        return head + _why_not(row)
    worst = max(row["errors"], key=lambda name: row["errors"][name] / row["allowed"][name])
    verdict = "ok" if row["passed"] else "WRONG"
    bits = "" if row["same_bits"] else f", other bits of {', '.join(row['differ'])} the second time"
    return f"{head}{verdict:7}{worst} {row['errors'][worst]:.1e} of {row['allowed'][worst]:.1e}{bits}"


BESIDE = {"cuDNN": ("cudnn",), "PyTorch": ("torch ",), "JAX": (jax_attention.NAME,)}
"""What our kernels are compared with in columns, and how the names of its rows begin; "cudnn, dense mask" is not meant:
it computes the pairs that documents mask."""


def _attention(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each implementation of a case; those of ours with their speed as a share of the best of others."""
    cases: dict[tuple, dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = row["case"], row["seq"], row["width"], f"{row['heads']}:{row['kv_heads']}"
        cases.setdefault(key, {}).setdefault(row["by"], {}).update({row.get("way", "none"): row})
    columns = "".join(f"{'/ ' + name:>13}" for name in BESIDE)
    lines = [f"{'case':22}{'tokens':>8}{'width':>7}{'heads':>8}  {'by':20}{'forward':>9}{'backward':>10}{columns}"]
    for (case, seq, width, heads), by_name in cases.items():
        for name, ways in by_name.items():
            head = f"{case:22}{seq:8}{width:7}{heads:>8}  {name:20}"
            rate = lambda way, ways=ways: f"{ways[way]['tflops']:.0f}" if way in ways else "-"
            ratios = "".join(f"{one:>13}" for one in _ratios(ways, by_name)) if name in OURS else ""
            why = _why_not(ways.get("none", {}))
            lines.append(f"{head}{rate('forward'):>9}{rate('backward'):>10}{ratios}  {why}".rstrip())
    return lines if rows else []


def _ratios(ways: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Forward and backward as a share of the best of each of `BESIDE`, as in `1.02 0.87`; `-` where one is missing."""
    found = []
    for starts in BESIDE.values():
        others = [other for name, other in by_name.items() if name.startswith(starts) and name != DENSE_MASK]
        each = []
        for way in ("forward", "backward"):
            best = max((other[way]["tflops"] for other in others if way in other), default=None)
            each.append("-" if best is None or way not in ways else f"{ways[way]['tflops'] / best:.2f}")
        found.append(" ".join(each))
    return found


def _tiles(rows: list[dict[str, Any]]) -> list[str]:
    launches: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        launches.setdefault((row["kernel"], row["launch"], row["width"], row["mask"]), []).append(row)
    lines = []
    for (kernel, launch, width, mask), found in launches.items():
        head = f"{kernel:8}{launch:17}{width:4}  {mask:8}"
        entry = next((row for row in found if row["entry"]), None)
        best = next((row for row in found if row.get("best")), None)
        if entry is None or best is None:
            lines.append(head + _why_not(entry or {}))
            continue
        verdict = "stays" if best is entry else f"should be {best['tile']}, {best['of_entry']:.2f} of its time"
        lines.append(f"{head}{entry['seconds'] / MILLI:8.3f} ms  {entry['tile']} {verdict}")
    return lines


def _why_not(row: Mapping[str, Any]) -> str:
    return f"FAILED: {row['failed']}" if "failed" in row else f"refused: {row['refused']}" if "refused" in row else ""


def _grouped(row: Mapping[str, Any], device: str) -> str:
    machine = B200 if "B200" in device else H100
    head = f"{row['case']:26}{row['rows']:7} rows, {row['groups']:3} groups, {row['k']} x {row['n']:6}  "
    wide = row["k"] if row["way"] == "d_rows" else row["n"]
    return f"{head}{row['by']:12}{row['way']:10}{_rate(row, bounds.grouped(wide, machine))}"


def _tiled(row: Mapping[str, Any]) -> str:
    rate = _rate(row, bounds.tiled(row["n"], H100))
    return f"{row['case']:28}{row['m']:6} x {row['n']:6} x {row['k']:6}  {row['by']:18}{rate}"


def _rate(row: Mapping[str, Any], bound: float) -> str:
    """TFLOP/s, and of `mosaic` their share of what the GPU allows, FLOP/s."""
    if "tflops" not in row:
        return _why_not(row)
    share = row["tflops"] * 1e12 / bound
    return f"{row['tflops']:8.0f}" + (f"  {share:.2f} of its bound" if row["by"] == "mosaic" else "")


def _linear(row: Mapping[str, Any]) -> str:
    head = f"{row['case']:22}{row['rows']:3} x {row['tokens']:6} tokens, {row['heads']:3} heads of "
    rate = f"{row['tflops']:8.1f}" if "tflops" in row else _why_not(row)
    return f"{head}{row['key']} x {row['value']:4}  {row['by']:8}{row['way']:9}{rate}"


def _ring(row: Mapping[str, Any]) -> str:
    by = "whole" if row["chunks"] is None else f"{row['chunks']} chunks"
    head = f"{row['case']:36}{row['way']:10}{by:10}"
    if "seconds" not in row:
        return head + _why_not(row)
    ratio = f"  {row['of_whole']:.3f} of whole" if row["chunks"] is not None and "of_whole" in row else ""
    return f"{head}{row['seconds'] / MILLI:8.3f} ms{ratio}"


def _bits(row: Mapping[str, Any]) -> str:
    if "passed" not in row:
        return f"{row['name']:12}{_why_not(row)}"
    return f"{row['name']:12}{'equal' if row['passed'] else 'NOT EQUAL'} ({row['compared']} arrays)"


def _step(row: Mapping[str, Any]) -> str:
    head = f"{row['name']:19}" + (f"state: {row['tier']:6}" if "tier" in row else "")
    if "step_time_s" not in row:
        return head + _why_not(row)
    mfu = "-" if row["mfu"] is None else percent(row["mfu"])
    peak = size(row["peak_bytes"]) + ("" if row["memory_kind"] == "device" else " (of the process)")
    return (
        f"{head}{row['parameters'] / GIGA:7.2f}B{row['tokens_per_second']:12,.0f} tokens/s"
        f"{row['step_time_s'] / MILLI:11.1f} ms  MFU {mfu}  peak {peak}  attention: {row['attention']}  "
        f"matmuls: {row['matmuls']}"
    )


def _generation(rows: list[dict[str, Any]]) -> list[str]:
    failed = [f"batch {row['batch']}: {_why_not(row)}" for row in rows if "failed" in row]
    done = [row for row in rows if "failed" not in row]
    return [*(generated(done).splitlines() if done else ()), *failed]


def _of_targets(device: str) -> str:
    return "Targets" if device == JUDGED else f"Targets of an {JUDGED}, beside what this {device} has: not judged"


def _target(target: Mapping[str, Any]) -> str:
    sign = "<=" if target.get("at_most") else ">="
    number = lambda x: f"{x:.0f}" if x >= 100 else f"{x:.2f}"
    wanted = f"{sign} {target['target']:<5g}{target['what']}"
    if target["measured"] is None:
        return f"{'not measured':14}{wanted}"
    verdict = {None: "", True: "met", False: "MISSED"}[target["met"]]
    return f"{verdict:8}{number(target['measured']):>5} {wanted}"
