"""What the GPU suite records: kernels that were right on a GPU, with speeds of attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import attention_cases
from benchmarks.gpu.attention_cases import Case, timed
from benchmarks.gpu.record import add_records, speeds, verified
from pallas_kernels import toolchain
from pallas_kernels import verified as verified_module
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.device import Target
from pallas_kernels.verified import digest, read_records
from tests.benchmarks.gpu.rows import H200, attention_row
from tests.sentences import refused


def check_row(kernel: str, **more: Any) -> dict[str, Any]:
    return {"part": "check", "kind": "check", "kernel": kernel, "case": "c", **more}


def test_a_kernel_is_right_when_all_it_does_not_refuse_is_right():
    rows = [
        check_row("a", passed=True), check_row("a", refused="too wide"), check_row("b", passed=True),
        check_row("b", passed=False), check_row("c", refused="no"), check_row("d", passed=True),
        check_row("d", failed="it crashed"), check_row("attention/cudnn", passed=True), check_row("e", passed=True),
        {"part": "check-e", "kind": "skipped", "what": "e", "why": "time budget"},
    ]  # fmt: skip
    assert verified(rows) == ["a"]


def test_a_part_that_was_cut_off_verifies_nothing():
    rows = [check_row("a", passed=True), {"part": "check", "kind": "broken", "what": "check", "why": "killed"}]
    assert verified(rows) == []


def test_records_are_read_back_by_the_registry(tmp_path: Path):
    file = tmp_path / "new" / "verified.json"
    add_records(["attention/triton"], H200, file)
    add_records(["attention/triton", "linear_cross_entropy/triton"], H200 | {"toolchain": {"jax": "2"}}, file)
    add_records(["attention/triton"], H200 | {"processors": 16}, file)
    found = [(one.kernel, one.device, one.processors, dict(one.versions)) for one in read_records(file)]
    assert found == [
        ("attention/triton", "NVIDIA H200", 16, {"jax": "1", "ptxas": "12.9.86"}),
        ("attention/triton", "NVIDIA H200", 132, {"jax": "2"}),
        ("linear_cross_entropy/triton", "NVIDIA H200", 132, {"jax": "2"}),
    ]
    assert [one.sources for one in read_records(file)] == [digest(one.kernel) for one in read_records(file)]
    with refused("GPU", H200["device"], error=ValueError):
        add_records(["attention/triton"], H200 | {"platform": "cpu"}, file)


@pytest.mark.parametrize(("mosaic", "cudnn", "first"), [(300.0, 400.0, "cudnn"), (400.0, 300.0, "mosaic")])
def test_of_packed_rows_auto_takes_the_faster_of_what_was_timed(
    mosaic: float, cudnn: float, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (case,) = (case for case in timed() if case.packed is not None and case.width == 128)
    rows = [
        attention_row(by, rate, case=case.name, seq=case.seq, way=way, seconds=part * case.flops() / (1e12 * rate))
        for by, rate in (("mosaic", mosaic), ("cudnn", cudnn), ("cudnn, dense mask", 900.0), ("torch varlen", 999.0))
        for way, part in (("forward", 1.0), ("backward", 2.5))
    ]
    device = H200 | {"toolchain": dict(toolchain.versions())}
    file = tmp_path / "verified.json"
    add_records(["attention/mosaic", "attention/cudnn"], device, file, speeds(rows))
    found = {record.kernel: dict(record.speeds) for record in read_records(file)}
    assert found == {"attention/mosaic": {"packed 128": mosaic}, "attention/cudnn": {"packed 128": cudnn}}
    monkeypatch.setattr(verified_module, "records", lambda: read_records(file))
    monkeypatch.setattr(attention_cases, "target", lambda: Target("gpu", 9.0, "NVIDIA H200", 132))
    chosen = REGISTRY.choose("auto", case.request(lse=False))
    assert chosen.name == first and f"{max(mosaic, cudnn):.0f} TFLOP/s" in chosen.reason


def test_speeds_are_recorded_by_kind_of_mask_and_width_where_there_is_something_to_compare():
    def row(by: str, case: str, seq: int, way: str, seconds: float) -> dict[str, Any]:
        found = {"kind": "attention", "by": by, "case": case, "seq": seq, "width": 128, "way": way}
        return found | {"seconds": seconds, "tflops": 1.0}

    cases = [Case("causal", seq, 128, 16, 16, batch=16384 // seq) for seq in (8192, 16384)]
    rows = [
        row(by, case.name, case.seq, way, share * case.flops() / (1e12 * rate))
        for case in cases
        for by, rate in (("mosaic", 500.0), ("cudnn", 400.0), ("xla", 50.0))
        for way, share in (("forward", 1.0), ("backward", 2.5))
    ]
    rows += [row("triton", "causal", 4096, way, 1.0) for way in ("forward", "backward")]
    rows += [row("triton", "causal", 8192, "forward", 1.0)]
    wanted = {"attention/mosaic": {"causal 128": 500.0}, "attention/cudnn": {"causal 128": 400.0}}
    assert speeds(rows) == wanted
