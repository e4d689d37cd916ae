"""The GPU suite without a GPU: it runs, states what it left out, and records only what was right on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from benchmarks import torch_step
from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import (
    attention,
    attention_cases,
    grouped,
    grouped_tiled,
    rings,
    tiles,
    torch_attention,
    torch_recipes,
)
from benchmarks.gpu.attention_cases import CHECKED, Case, timed
from benchmarks.gpu.journal import Journal, read
from benchmarks.gpu.parts import PARTS, SECONDS, Part
from benchmarks.gpu.record import ALWAYS, add_records, speeds, verified
from benchmarks.gpu.report import _step, table
from benchmarks.gpu.targets import OF_GROUPS, targets
from benchmarks.gpu.training import LLAMA_1B, LLAMA_1B_STEP, RECIPES
from jaxpar.config import load_config
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.described import DescribedGPU
from jaxpar.hardware.xla_flags import xla_flags
from jaxpar.layout.choices.matmul import multiplies
from pallas_kernels import toolchain
from pallas_kernels import verified as verified_module
from pallas_kernels.attention import cudnn, cudnn_packed, kinds
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.attention.registry import Unsupported, choose
from pallas_kernels.attention.triton.tiles import AMPERE
from pallas_kernels.device import Target
from pallas_kernels.verified import SOURCES, digest, read_records
from tests.sentences import refused

ABSENT = ("grain", "jax_triton", "tokamax", "pydantic", "tyro", "tensorboardX")
"""Packages that machines with GPUs often lack."""
H200 = {
    "device": "NVIDIA H200", "platform": "gpu", "compute_capability": "9.0", "processors": 132, "count": 1,
    "versions": {"jax": "1"}, "toolchain": {"jax": "1", "ptxas": "12.9.86"},
}  # fmt: skip


@pytest.mark.long
def test_a_dry_run_goes_through_every_part_without_the_packages_that_gpu_machines_lack(tmp_path: Path):
    file = tmp_path / "gpu.json"
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT}, None)); from benchmarks.gpu.__main__ import main; "
        f"sys.exit(main(['--dry-run', '--record', '--json', {str(file)!r}]))"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # it is all compiling
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "only a run on a GPU is recorded" in done.stderr, done.stdout + done.stderr
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert {row["part"] for row in rows} == {part.name for part in PARTS}
    assert not [row for row in rows if suite.wrong(row)]
    right = {row["kernel"] for row in rows if row.get("passed") and row["kind"] == "check"}
    assert right == {*SOURCES} - {*ALWAYS}, "every kernel of ours, in an interpreter"
    assert [row["passed"] for row in rows if row["kind"] == "bits"] == [True]
    recipes = [row["name"] for row in rows if row["kind"] == "recipe" and "step_time_s" in row]
    assert recipes == ["bfloat16", "fp8_current"]
    assert {row["by"] for row in rows if row["kind"] == "cross_entropy"} == {
        "fused", "fused, logits kept", "chunks in plain JAX", "full logits", "jaxpar's tiles",
    }  # fmt: skip
    of_tiles = [(row["launch"], row["entry"]) for row in rows if row["kind"] == "tile"]
    assert {*of_tiles} == {(launch, entry) for launch in ("forward", "dq") for entry in (True, False)}
    assert "DRY RUN" in done.stdout and result["targets"] == []


def test_a_step_of_a_recipe_names_what_multiplies():
    """No record states that the kernel of tiles was right on a GPU, so that it has to be named."""
    every = "precision.matmul_except={first_layers: 0, last_layers: 0}"
    configs = {
        name: load_config(LLAMA_1B, [*LLAMA_1B_STEP, *own, *([every] if own else [])]) for name, own in RECIPES.items()
    }
    found = {name: multiplies(config, DescribedGPU.of(gpu_named("h100"))) for name, config in configs.items()}
    assert found == {
        "bfloat16": "xla", "fp8_current": "cublas", "fp8_delayed": "cublas", "fp8_block": "xla",
        "fp8_block, mosaic": "mosaic",
    }  # fmt: skip
    assert multiplies(configs["fp8_current"], jax.devices()[0]) == "xla"
    row = {
        "kind": "recipe", "name": "fp8_block, mosaic", "mfu": 0.5, "mfu_float8": 0.25, "peak_bytes": 2**30,
        "memory_kind": "device", "parameters": 1e9, "tokens_per_second": 1e4, "step_time_s": 0.5, "attention": "cudnn",
        "matmuls": "mosaic",
    }  # fmt: skip
    assert _step(row).endswith("MFU 50.0% (25.0% of FP8)  peak 1.0 GiB  attention: cudnn  matmuls: mosaic")


@pytest.mark.parametrize("recipe", torch_recipes.RECIPES.values())
def test_the_step_of_pytorch_is_that_of_ours(recipe: str | None):
    config = load_config(LLAMA_1B, list(LLAMA_1B_STEP))
    settings = torch_step.parse(torch_recipes.command_of(config, recipe)[2:])
    model = config.model
    assert (settings.model["layers"], settings.model["embed"], settings.sequence) == (model.layers, model.embed, 4096)
    assert (settings.batch, settings.microbatches, settings.precision) == (8, 2, "bfloat16")
    assert settings.float8 == recipe and settings.compile


@pytest.mark.parametrize(("program", "why"), [
    ("import no_such_package", "no_such_package is not installed"),
    ("assert 0, 'torch sees no GPU'", "torch sees no GPU"),
])  # fmt: skip
def test_a_step_of_pytorch_that_cannot_run_is_skipped_with_the_reason(
    program: str, why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch_recipes, "TORCH", program)
    journal = Journal("fp8-torch", 100)
    torch_recipes.measure(journal)
    assert [(row["kind"], row["why"]) for row in journal.rows] == [("skipped", why)]


def test_rows_outlive_the_process_that_is_killed_while_it_writes(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    journal = Journal("a", 100, file)
    journal.add("check", kernel="k", passed=True)
    with file.open("a") as out:
        out.write('{"part": "a", "kin')
    assert read(file) == journal.rows
    assert read(tmp_path / "none") == []


def test_what_there_is_no_time_for_is_reported(capsys: pytest.CaptureFixture[str]):
    journal = Journal("a", 5)
    assert journal.has_time("short", 1) and not journal.has_time("long", 60)
    assert [(row["kind"], row["what"]) for row in journal.rows] == [("skipped", "long")]
    assert suite.main(["--seconds", "0"]) == 0
    printed = capsys.readouterr().out
    assert "NOT RUN" in printed and all(part.name in printed for part in PARTS)


def test_a_part_that_hangs_is_killed_and_one_that_crashes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suite, "GRACE", 0)
    (tmp_path / "hang.sh").write_text('#!/bin/sh\ncase "$*" in *slow*) sleep 60;; *) echo broken >&2; exit 3;; esac\n')
    (tmp_path / "hang.sh").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "hang.sh"))
    run = lambda name: suite._child(Part(name, 1, lambda journal: None), 0.5, tmp_path / "rows.jsonl", tmp_path)
    assert run("slow") == "killed after 0 s"
    assert run("crash") == "ended with 3: broken"


def test_parts_run_with_the_flags_of_a_run_and_those_that_the_user_set_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "flags.sh").write_text('#!/bin/sh\necho "$XLA_FLAGS" >&2; exit 3\n')
    (tmp_path / "flags.sh").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "flags.sh"))
    own = "--xla_gpu_enable_triton_gemm=true"
    monkeypatch.setenv("XLA_FLAGS", own)
    printed = suite._child(Part("any", 1, lambda journal: None), 10, tmp_path / "rows.jsonl", tmp_path)
    flags = xla_flags()
    assert printed is not None and printed.split()[3:] == [*(flag for flag in flags if "triton_gemm" not in flag), own]


def test_parts_share_the_time_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: list[float] = []
    monkeypatch.setattr(suite, "_child", lambda part, seconds, file, compiled: given.append(seconds))
    suite._in_processes(PARTS, SECONDS)
    suite._in_processes(PARTS, 2 * SECONDS)
    first, twice = given[: len(PARTS)], given[len(PARTS) :]
    assert first[0] == PARTS[0].seconds and twice[0] == 2 * first[0]
    given.clear()
    suite._in_processes(PARTS[:1], 100)
    assert given == [pytest.approx(100, abs=1)], "a part alone has all of it"


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


def test_what_the_registry_supports_has_to_run(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("wgmma does not support this layout")

    monkeypatch.setattr(attention, "DRY_CHECKED", (Case("a", 8, 64, 2, 1), Case("b", 8, 40, 2, 1)))
    monkeypatch.setattr(Case, "call", lambda *_, **__: fail)
    journal = Journal("check-mosaic", 100, dry=True)
    attention.check(journal, "mosaic")
    supported, refused = sorted(journal.rows, key=lambda row: row["case"])
    assert "does not support this layout" in supported["failed"] and "refused" not in supported
    assert "a width of 64" in refused["refused"] and verified(journal.rows) == []


def test_a_row_in_zigzag_parts_with_padding_is_attended_as_on_paper():
    case = Case("zigzag", 32, 8, 4, 2, batch=2, packed=7, padding=5, ranks=2, dtype="float32")
    assert case.indices().tolist() == [*range(8), *range(24, 32), *range(8, 16), *range(16, 24)]
    segments = case.segments()
    assert segments is not None and (segments == 0).sum(1).tolist() == [5, 5]
    arrays = case.arrays()
    compiled = {kind: attention.gradients(case, by, True, arrays)().compile() for kind, by in KINDS.items()}
    found = attention._compare(case, True, compiled)
    assert found["passed"] and max(found["errors"].values()) < 1e-5
    lse = compiled["have"](*arrays)[1]
    assert (np.isneginf(lse).all(-1) == (segments == 0)).all()


KINDS = {"have": "xla", "low": "xla", "wanted": None}


def test_cases_on_the_device_give_each_program_three_tiles_and_scores_at_their_cap():
    many = [case for case in CHECKED if case.batch * case.kv_heads * case.seq // 128 >= 3 * 132]
    for packed in (False, True):
        assert {case.width for case in many if (case.packed is not None) == packed} == {64, 96, 128, 192, 256}
    (capped,) = (case for case in CHECKED if case.softcap is not None and case.spread > 1)
    assert capped.softcap is not None and capped.spread > capped.softcap


def test_what_a_run_calls_of_cudnn_for_packed_documents_is_timed(monkeypatch: pytest.MonkeyPatch):
    inside = import_module(cudnn_packed.MODULE)
    monkeypatch.setattr(inside, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(inside, "is_cuda_compute_capability_equal", lambda capability: False)
    monkeypatch.setattr(inside, "check_cudnn_version", lambda: 91900)
    case = Case("packed", 1024, 64, 4, 2, batch=2, packed=200)
    assert "an NVIDIA GPU" in str(cudnn.supports(case.request(lse=False)))
    with refused("cudnn", "the platform is cpu", error=Unsupported):
        jax.eval_shape(case.call("cudnn", lse=False), *case.arrays()[:3])
    monkeypatch.setattr(attention_cases, "target", lambda: Target("gpu", 9.0, "NVIDIA H200", 132))
    total = lambda q, k, v: case.call("cudnn", lse=False)(q, k, v).astype("float32").sum()
    text = str(jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(*case.arrays()[:3]))
    assert "dot_product_attention_fwd" in text and "dot_product_attention_bwd" in text
    assert cudnn_packed.CALLS in text or "while" in text, "the loop over calls is timed too"


def test_a_packed_call_that_is_not_that_of_plain_xla_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_cases, "target", lambda: Target("gpu", 9.0, "NVIDIA H200", 132))
    monkeypatch.setattr(attention, "DRY_TIMED", (Case("packed", 1024, 64, 1, 1, packed=200),))
    monkeypatch.setattr(attention.comparison, "compare", lambda request: f"dq errs in {request.mask}")
    asked: list[str] = []
    monkeypatch.setattr(attention, "_ways", lambda case, name, arrays: asked.append(name) or [])
    monkeypatch.setattr(attention, "_lowered", lambda *_: [])
    journal = Journal("attention", 100, dry=True)
    attention.measure(journal)
    assert "cudnn" not in asked and "mosaic" in asked
    (row,) = (row for row in journal.rows if row["kind"] == "attention")
    assert row["by"] == "cudnn" and "dq errs" in row["failed"]
    monkeypatch.setattr(attention.comparison, "compare", lambda request: None)
    attention.measure(Journal("attention", 100, dry=True))
    assert "cudnn" in asked


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
    chosen = choose("auto", case.request(lse=False))
    assert chosen.name == first and f"{max(mosaic, cudnn):.0f} TFLOP/s" in chosen.reason


def attention_row(by: str, tflops: float, **more: Any) -> dict[str, Any]:
    row = {"part": "attention", "kind": "attention", "case": "causal", "seq": 8192, "width": 128, "way": "forward"}
    return row | {"heads": 16, "kv_heads": 16, "by": by, "tflops": tflops} | more


def test_targets_compare_our_best_with_the_best_of_the_others():
    rows = [
        attention_row("triton", 400.0), attention_row("mosaic", 660.0), attention_row("cudnn", 600.0),
        attention_row("torch flash", 700.0), attention_row("triton", 50.0, case="window 1024", seq=16384),
        attention_row("cudnn", 40.0, case="window 1024", seq=16384),
        attention_row("mosaic", 90.0, case="packed, mean 1k", seq=16384),
        attention_row("cudnn, dense mask", 10.0, case="packed, mean 1k", seq=16384),
    ]  # fmt: skip
    rows += [
        {"part": "c", "kind": "cross_entropy", "by": by, "seconds": seconds, "temporary_bytes": size, "tflops": 1.0}
        for by, seconds, size in (("fused", 0.12, 10), ("full logits", 0.1, 200))
    ]
    found = {target["what"]: target for target in targets(rows, "NVIDIA H200")}
    measured = {what: target for what, target in found.items() if target["measured"] is not None}
    assert [(round(target["measured"], 2), target["met"]) for target in measured.values()] == [
        (1.1, True), (1.25, False), (1.2, False), (0.05, True),
    ]  # fmt: skip
    result = {"device": H200, "dry_run": False, "seconds": 1.0, "targets": list(found.values()), "rows": rows}
    printed = table(result)
    assert "\nTargets\n" in printed and "MISSED   1.25 >= 1.5" in printed
    assert "not measured  >= 1.5  packed, mean 1k, 16384 tokens, width 128, forward" in printed, "a straw man"
    assert "not measured  >= 600  TFLOP/s of a grouped matmul, qwen3-30b-a3b, forward" in printed


def test_ours_are_in_the_table_as_shares_of_cudnn_of_pytorch_and_of_jax():
    rates = {"mosaic": (600, 400), "cudnn": (500, 500), "torch flash": (300, 320), "torch cudnn": (400, 250)}
    rates |= {"jax mosaic": (1200, None), "cudnn, dense mask": (1000, 1000)}
    rows = [
        attention_row(name, float(rate), way=way)
        for name, both in rates.items()
        for way, rate in zip(("forward", "backward"), both, strict=True)
        if rate is not None
    ]
    printed = table({"device": H200, "dry_run": False, "seconds": 1.0, "targets": [], "rows": rows}).splitlines()
    (head,) = (line for line in printed if line.endswith("/ cuDNN    / PyTorch        / JAX"))
    of = {name: [line for line in printed if f"  {name:20}" in line] for name in rates}
    assert of["mosaic"][0].split()[-8:] == ["600", "400", "1.20", "0.80", "1.50", "1.25", "0.50", "-"]
    assert len(of["mosaic"][0]) == len(head), "columns end together"
    assert of["cudnn"][0].split()[-2:] == ["500", "500"] and of["jax mosaic"][0].split()[-2:] == ["1200", "-"]


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


def test_the_cases_of_targets_are_timed():
    assert {*OF_GROUPS} <= {case.name for case in grouped.TIMED}


def test_timed_cases_are_of_16k_tokens_and_cover_what_is_asked():
    cases = timed()
    assert {case.seq for case in cases} == {2048, 4096, 8192, 16384, 32768}
    of_kinds = {kind: {c.width for c in cases if kinds.kind_of(c.mask) == kind} for kind in kinds.KINDS}
    assert of_kinds == {
        "causal": {64, 96, 128, 192, 256}, "full": {64, 128}, "window": {64, 128, 256}, "packed": {64, 128, 256},
    }, "docs/kernels.md lists what has no recorded speed"  # fmt: skip
    assert all(case.batch * case.seq == max(16384, case.seq) for case in cases)
    assert {case.window for case in cases} >= {1024, 4096} and any(case.packed == 1024 for case in cases)
    assert len({(case.name, case.seq, case.width) for case in cases}) == len(cases)
    assert {1, 113, 203, 1000, 1023, 1024, 2048, 4224} == {case.seq for case in CHECKED}


def test_gradients_in_bfloat16_beside_those_of_codes_are_refused_without_a_gpu():
    (case,) = (case for case in grouped_tiled.DRY if case.of == "weights")
    with refused("'mosaic'", "the platform is cpu", error=Unsupported):
        jax.eval_shape(grouped_tiled._paths(case)["mosaic bfloat16"], *case.arrays())


def test_pytorch_gets_values_of_the_width_of_the_case():
    class Array(NamedTuple):
        shape: tuple[int, ...]

        def requires_grad_(self) -> Array:
            return self

    (case,) = (case for case in timed() if case.value_width is not None)
    made: Any = SimpleNamespace(randn=lambda shape, **_: Array(shape), bfloat16=None)
    found = [x.shape for x in torch_attention._arrays(made, case, heads_first=False)]
    ours = [(x.shape[0] * x.shape[1], *x.shape[2:]) for x in jax.eval_shape(lambda: case.arrays())[:4]]
    assert found == ours and ours[2][-1] == 128 and ours[0][-1] == 192


def test_an_entry_of_a_table_is_timed_beside_what_differs_by_one_step_in_one_thing():
    entry = AMPERE[128, 128].forward
    found = tiles.of_triton(entry)
    assert len(set(found)) == 7 and entry not in found
    assert all(sum(a != b for a, b in zip(entry, one, strict=True)) == 1 for one in found)
    of_hopper = TABLE[128, 128]
    assert {one.keys for one in tiles.of_mosaic(of_hopper.forward)} == {64, 128, 192}
    (_, cut), *_ = of_hopper.key_gradients
    assert {(name, one.stages) for ((name, one),) in tiles.of_mosaic((("kv", cut),))} == {
        ("kv", cut.stages + by) for by in (-1, 0, 1)
    }
    assert {(case.width, case.name) for case in tiles.cases()} == {
        (wide, kind) for wide, _ in AMPERE for kind in kinds.KINDS
    }
    assert all(kinds.kind_of(case.mask) == case.name for case in tiles.cases())


def test_the_report_states_what_an_entry_should_be():
    row = {"part": "tiles", "kind": "tile", "kernel": "triton", "launch": "dq", "width": 64, "mask": "packed"}
    entry = row | {"tile": "a", "entry": True, "best": False, "of_entry": 1.0, "seconds": 2e-3}
    other = row | {"tile": "b", "entry": False, "best": True, "of_entry": 0.9, "seconds": 1.8e-3}
    result = {"device": H200, "dry_run": False, "seconds": 1.0, "targets": []}
    assert "2.000 ms  a should be b, 0.90 of its time" in table(result | {"rows": [entry, other]})
    assert "2.000 ms  a stays" in table(result | {"rows": [entry | {"best": True}, other | {"best": False}]})
    assert "FAILED: too much" in table(result | {"rows": [row | {"tile": "a", "entry": True, "failed": "too much"}]})


def test_documents_fill_their_row_and_are_of_the_mean_that_is_asked():
    case = Case("packed", 16384, packed=1024)
    segments = case.segments()
    assert segments is not None and segments.shape == (1, 16384) and segments.min() == 1
    assert (segments[0, 1:] >= segments[0, :-1]).all() and 8 <= segments.max() <= 32
    assert case.flops() < Case("causal", 16384).flops() / 4


@pytest.mark.parametrize("case", rings.DRY, ids=lambda case: case.kind)
def test_products_in_chunks_of_a_ring_are_those_of_whole_ones_in_as_many_matmuls(case: rings.Case):
    arrays = case.arrays()
    for way, each in (("forward", 1), ("backward", 2)):
        programs = {chunks: case.program(chunks, way) for chunks in (None, 2)}
        count = lambda run: run.lower(*arrays).as_text().count("stablehlo.dot_general")
        whole, cut = count(programs[None]), count(programs[2])
        assert (whole, cut) == (each * len(case.widths), each * len(case.widths) * case.ranks * 2)
        for one, other in zip(*(jax.tree.leaves(run(*arrays)) for run in programs.values()), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-4)


def test_rings_are_timed_beside_whole_products_and_held_to_their_target():
    journal = Journal("rings", float("inf"), dry=True)
    rings.measure(journal)
    rows = [row for row in journal.rows if row["kind"] == "ring"]
    assert {(row["case"], row["chunks"], row["way"]) for row in rows} == {
        (case.name, chunks, way) for case in rings.DRY for chunks in (None, 2) for way in rings.WAYS
    }
    wholes = {(row["case"], row["way"]): row["seconds"] for row in rows if row["chunks"] is None}
    assert all(row["of_whole"] == row["seconds"] / wholes[row["case"], row["way"]] for row in rows)
    timed = [
        row | {"case": rings.TIMED[0].name, "of_whole": ratio}
        for ratio, row in zip(
            (1.02, 1.04),
            (next(row for row in rows if (row["chunks"], row["way"]) == (2, way)) for way in rings.WAYS),
            strict=True,
        )
    ]
    found = {target["what"]: target["met"] for target in targets(timed, "NVIDIA H200") if "of a ring" in target["what"]}
    assert [found.pop(f"products of a ring in 2 chunks, against whole ones: {rings.TIMED[0].name}, {way}")
            for way in rings.WAYS] == [True, False]  # fmt: skip
    assert len(found) == 6 and {*found.values()} == {None}
    printed = table(
        {"rows": rows, "device": {"count": 1, "device": "cpu"}, "seconds": 1, "dry_run": True, "targets": []}
    )
    assert "2 chunks" in printed and "of whole" in printed
