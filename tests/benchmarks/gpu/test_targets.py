"""Targets of the kernels: what they compare, and where they are judged."""

import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import grouped, rings
from benchmarks.gpu.report import table
from benchmarks.gpu.targets import OF_GROUPS, targets
from tests.benchmarks.gpu.rows import H200, attention_row


def test_targets_compare_our_best_with_the_best_of_the_others():
    rows = [
        attention_row("triton", 400.0), attention_row("mosaic", 660.0), attention_row("cudnn", 600.0),
        attention_row("torch flash", 700.0), attention_row("triton", 50.0, case="window 1024", seq=16384),
        attention_row("cudnn", 40.0, case="window 1024", seq=16384),
        attention_row("mosaic", 90.0, case="packed, mean 1k", seq=16384),
        attention_row("cudnn, dense mask", 10.0, case="packed, mean 1k", seq=16384),
    ]  # fmt: skip
    ring = {"part": "r", "kind": "ring", "case": rings.TIMED[0].name, "way": rings.WAYS[0], "chunks": 2}
    rows.append(ring | {"of_whole": 1.02})
    found = {target["what"]: target for target in targets(rows, "NVIDIA H200")}
    measured = {what: target for what, target in found.items() if target["measured"] is not None}
    assert [(round(target["measured"], 2), target["met"]) for target in measured.values()] == [
        (1.1, True), (1.25, False), (1.02, True),
    ]  # fmt: skip
    result = {"device": H200, "dry_run": False, "seconds": 1.0, "targets": list(found.values()), "rows": rows}
    printed = table(result)
    assert "\nTargets\n" in printed and "MISSED   1.25 >= 1.5" in printed
    assert "not measured  >= 1.5  packed, mean 1k, 16384 tokens, width 128, forward" in printed, "a straw man"
    assert "not measured  >= 600  TFLOP/s of a grouped matmul, qwen3-30b-a3b, forward" in printed


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200 MIG 3g.71gb"])
def test_targets_are_judged_on_an_h200_alone(device: str):
    rows = [attention_row("mosaic", 500.0), attention_row("cudnn", 600.0)]
    rows += [
        {"part": "g", "kind": "grouped", "case": "deepseek-v3, 32 of 256", "by": by, "way": way, "tflops": rate}
        for by, way, rate in (
            ("mosaic", "forward", 590.0), ("triton", "forward", 610.0), ("jax mosaic", "d_rows", 700.0),
            ("mosaic", "d_weights", 610.0), ("cuBLAS", "d_weights", 700.0),
        )
    ]  # fmt: skip
    rows.append(
        {"part": "g", "kind": "grouped", "case": "qwen3-30b-a3b", "by": "mosaic", "way": "forward", "failed": "x"}
    )
    found = targets(rows, device)
    measured = [(round(target["measured"], 2), target["met"]) for target in found if target["measured"] is not None]
    of_h200 = device == "NVIDIA H200"
    assert measured == [(0.83, False if of_h200 else None), (610.0, True if of_h200 else None),
                        (610.0, False if of_h200 else None)]  # fmt: skip
    drawn = H200 | {"device": device}
    rows = [row | {"rows": 1, "groups": 1, "k": 1, "n": 1} if row["kind"] == "grouped" else row for row in rows]
    printed = table({"device": drawn, "dry_run": False, "seconds": 1.0, "targets": found, "rows": rows})
    assert ("MISSED   0.83 >= 1" in printed) == ("met       610 >= 600" in printed) == of_h200
    assert (f"beside what this {device} has: not judged" in printed) != of_h200
    assert of_h200 or "         0.83 >= 1" in printed


def test_a_run_of_the_suite_is_judged_by_its_own_device():
    rows = [attention_row("mosaic", 500.0), attention_row("cudnn", 400.0)]
    for device, met in (("NVIDIA H200", True), ("NVIDIA H100 80GB HBM3", None)):
        own = H200 | {"part": "device", "kind": "device", "device": device}
        found = [one for one in suite._result([own, *rows], False, 1.0)["targets"] if one["measured"] is not None]
        assert [one["met"] for one in found] == [met]


def test_the_cases_of_targets_are_timed():
    assert {*OF_GROUPS} <= {case.name for case in grouped.TIMED}
