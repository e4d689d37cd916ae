"""Records of the GPU suite: kernels that were right on a GPU, with speeds of attention."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import attention_cases
from benchmarks.gpu.attention_cases import Case, timed
from benchmarks.gpu.record import BESIDE, add_records, ratios, speeds, verified
from pallas_kernels import toolchain
from pallas_kernels import verified as verified_module
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.device import Target
from pallas_kernels.verified import OF_XLA, SOURCES, digest, read_records
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
    add_records(["attention/triton", "linear_attention/mosaic"], H200 | {"toolchain": {"jax": "2"}}, file)
    add_records(["attention/triton"], H200 | {"processors": 16}, file)
    found = [(one.kernel, one.device, one.processors, dict(one.versions)) for one in read_records(file)]
    assert found == [
        ("attention/triton", "NVIDIA H200", 16, {"jax": "1", "ptxas": "12.9.86"}),
        ("attention/triton", "NVIDIA H200", 132, {"jax": "2"}),
        ("linear_attention/mosaic", "NVIDIA H200", 132, {"jax": "2"}),
    ]
    assert [one.sources for one in read_records(file)] == [digest(one.kernel) for one in read_records(file)]
    with refused("GPU", H200["device"], error=ValueError):
        add_records(["attention/triton"], H200 | {"platform": "cpu"}, file)


@pytest.mark.parametrize(("mosaic", "cudnn", "first"), [(300.0, 400.0, "cudnn"), (400.0, 300.0, "mosaic")])
def test_of_packed_rows_auto_takes_the_faster_of_what_was_timed(mosaic, cudnn, first, tmp_path, monkeypatch):
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


def causal_rows(rates: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    """Rows of causal attention of width 128, by implementation and length."""
    cases = {seq: Case("causal", seq, 128, 16, 16, batch=16384 // seq) for seq in (2048, 4096, 8192, 16384)}
    return [
        attention_row(by, rate, seq=seq, way=way, seconds=share * cases[seq].flops() / (1e12 * rate))
        for by, of in rates.items()
        for seq, rate in of.items()
        for way, share in (("forward", 1.0), ("backward", 2.5))
    ]


def test_speeds_are_recorded_by_kind_of_mask_and_width_where_there_is_something_to_compare():
    rows = causal_rows({"mosaic": {8192: 500.0, 16384: 720.0}, "cudnn": {8192: 400.0, 16384: 400.0}, "xla": {8192: 50}})
    rows += [attention_row("triton", 1.0, seq=8192, way="forward", seconds=1.0)]
    wanted = {"attention/mosaic": {"causal 128": 600.0}, "attention/cudnn": {"causal 128": 400.0}}
    assert speeds(rows) == wanted, "geometric means; neither plain XLA nor a forward without a backward"


def test_speeds_are_means_over_the_cases_that_all_have():
    mosaic, cudnn = {2048: 400.0, 8192: 600.0}, {8192: 560.0}
    kind = "causal 128"
    wanted = {"attention/mosaic": {kind: 600.0}, "attention/cudnn": {kind: 560.0}}
    assert speeds(causal_rows({"mosaic": mosaic, "cudnn": cudnn})) == wanted, "cudnn failed where mosaic is slower"
    assert speeds(causal_rows({"cudnn": cudnn, "mosaic": mosaic, "triton": {4096: 700.0}})) == wanted
    three = speeds(causal_rows({"mosaic": mosaic, "cudnn": cudnn | {2048: 300.0}, "triton": {2048: 200.0}}))
    assert three == {
        "attention/mosaic": {kind: 400.0}, "attention/cudnn": {kind: 300.0}, "attention/triton": {kind: 200.0},
    }  # fmt: skip
    rows = causal_rows({"mosaic": mosaic, "cudnn": cudnn | {2048: 300.0}, "triton": {2048: 200.0}})
    verified = ["attention/mosaic", "attention/cudnn"]
    assert speeds(rows, verified)["attention/mosaic"] == {kind: 489.9}, "triton is not recorded"
    assert speeds(causal_rows({"mosaic": {2048: 400.0}, "cudnn": {8192: 500.0}})) == {}


def test_other_kernels_are_recorded_with_their_share_of_the_speed_of_plain_xla():
    def rows(kind: str, by: str, seconds: float, case: str | None = "a", ways: tuple = (None,)) -> list[dict[str, Any]]:
        row = {"part": "p", "kind": kind, "by": by} | ({} if case is None else {"case": case})
        return [row | ({} if way is None else {"way": way}) | {"seconds": seconds} for way in ways]

    both = "forward", "d_rows"
    found = [
        *rows("grouped", "xla", 2.0, ways=both), *rows("grouped", "mosaic", 1.0, ways=both),
        *rows("grouped", "xla", 1.0, "b", both), *rows("grouped", "mosaic", 2.0, "b", both),
        *rows("grouped", "xla", 9.0, "c", both), *rows("grouped", "mosaic", 1.0, "c", ("forward",)),
        *rows("tiled", "xla", 3.0, "llama3-8b up"), *rows("tiled", "mosaic", 2.0, "llama3-8b up"),
        *rows("tiled", "xla", 3.0, "Mixtral up, 8 experts"), *rows("tiled", "mosaic", 4.0, "Mixtral up, 8 experts"),
    ]  # fmt: skip
    assert ratios(found) == {
        "grouped_matmul/mosaic": {OF_XLA: 1.0}, "tiled_matmul/mosaic": {OF_XLA: 1.5},
        "grouped_tiled_matmul/mosaic": {OF_XLA: 0.75},
    }  # fmt: skip
    assert BESIDE.keys() == {kernel for kernel in SOURCES if not kernel.startswith("attention/")}
