"""Attention in the GPU suite: what is checked and timed, and how ours stands beside others."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import attention, attention_cases, jax_attention, torch_attention
from benchmarks.gpu.attention_cases import CHECKED, Case, timed
from benchmarks.gpu.journal import Journal
from pallas_kernels.device import Target

KINDS = {"have": "xla", "low": "xla", "wanted": None}


def test_a_row_in_zigzag_parts_with_padding_is_attended_as_on_paper():
    case = Case("zigzag", 32, 8, 4, 2, batch=2, packed=7, padding=5, ranks=2, dtype="float32")
    assert case.indices().tolist() == [*range(8), *range(24, 32), *range(8, 16), *range(16, 24)]
    segments = case.segments()
    assert segments is not None and (segments == 0).sum(1).tolist() == [5, 5]
    arrays = case.arrays()
    compiled = {kind: attention.gradients(case, by, True, arrays)().compile() for kind, by in KINDS.items()}
    found = attention._compare(case, True, compiled, varies=())
    assert found["passed"] and max(found["errors"].values()) < 1e-5
    lse = compiled["have"](*arrays)[1]
    assert (np.isneginf(lse).all(-1) == (segments == 0)).all()


def test_cases_on_the_device_give_each_program_three_tiles_and_scores_at_their_cap():
    many = [case for case in CHECKED if case.batch * case.kv_heads * case.seq // 128 >= 3 * 132]
    for packed in (False, True):
        assert {case.width for case in many if (case.packed is not None) == packed} == {64, 96, 128, 192, 256}
    (capped,) = (case for case in CHECKED if case.softcap is not None and case.spread > 1)
    assert capped.softcap is not None and capped.spread > capped.softcap


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


def test_of_mosaic_the_gradient_of_queries_alone_may_differ_in_the_second_run():
    assert attention.VARYING["mosaic"] == ("dq",)


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


def test_documents_fill_their_row_and_are_of_the_mean_that_is_asked():
    case = Case("packed", 16384, packed=1024)
    segments = case.segments()
    assert segments is not None and segments.shape == (1, 16384) and segments.min() == 1
    assert (segments[0, 1:] >= segments[0, :-1]).all() and 8 <= segments.max() <= 32
    assert case.flops() < Case("causal", 16384).flops() / 4


def test_the_attention_of_jax_itself_is_called_with_scaled_queries(monkeypatch: pytest.MonkeyPatch):
    inside = import_module("jax.experimental.pallas.ops.gpu.attention_mgpu")
    called = {}
    monkeypatch.setattr(inside, "attention", lambda q, k, v, config: called.update(q=q, config=config) or q)
    case = Case("causal", 256, 64, 2, 2)
    q, k, v, *_ = case.arrays()
    jax_attention.attend(case)(q, k, v)
    assert jnp.array_equal(called["q"], q / 8) and called["config"].causal
    monkeypatch.setattr(jax_attention, "target", lambda: ("gpu", 9.0, "NVIDIA H20", 78))
    assert jax_attention.refusal(case) is None
    assert "no windows" in (jax_attention.refusal(Case("w", 256, 64, window=8)) or "")
