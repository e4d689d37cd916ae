"""Whole steps and evaluation under pipelines are those of one device: norms, metrics, padding and all."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from tests.short_documents import into_documents
from tests.small_run import SmallRun, small, worst_difference

LAYERS, STEPS = 6, 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "interleaved, padded": {
        "schedule": "interleaved", "pipe": 2, "fsdp": 2, "zero": 3, "stage_layers": (1, 2, 2, 1),
    },
    "zb-v, shared ends": {"schedule": "zb-v", "pipe": 2, "tensor": 2, "fsdp": 2, "zero": 2, "pipe_ends": "shared"},
    "zb-h1, branching": {"schedule": "zb-h1", "pipe": 2, "context": 2, "pipe_ticks": "branching"},
}  # fmt: skip


@cache
def run_of(layout: str | None) -> SmallRun:
    parallel = LAYOUTS[layout] | {"microbatches": 4} if layout else {}
    model = {"layers": LAYERS, "norm": "layernorm", "attention_bias": True, "vocab": 61}
    # With a small epsilon Adam's first updates are all of one size, and rounding decides on those of tiny gradients.
    return SmallRun(small(model=model, optimizer={"clip_norm": 0.5, "options": {"epsilon": 1e-3}}, parallel=parallel))


def rows_of(run: SmallRun, step: int) -> Any:
    return run.place(into_documents(run.rows(step), step))


@cache
def trained(layout: str | None) -> tuple[list[dict[str, Any]], Any]:
    """What each step reports, with the squares of gradients by layer, and the weights after the last."""
    run = run_of(layout)
    state, steps = run.step.residency.initial_state(), []
    for step in range(STEPS):
        state, metrics = run.step.train(state, rows_of(run, step), run.step.arguments)
        for shard in metrics.loss.addressable_shards:
            np.testing.assert_array_equal(shard.data, metrics.loss)
        steps.append(jax.device_get(metrics._asdict()) | {"squares": run.by_layer(metrics.squares)})
    return steps, run.by_layer(state.master)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layout", ["interleaved, padded", "zb-v, shared ends"])
def test_steps_report_and_end_as_on_one_device(layout: str):
    (found, weights), (wanted, wanted_weights) = trained(layout), trained(None)
    for a, b in zip(found, wanted, strict=True):
        assert abs(a["loss"] - b["loss"]) <= 1e-5 * b["loss"]
        assert abs(a["grad_norm"] - b["grad_norm"]) <= 1e-5 * b["grad_norm"]
        assert (a["tokens"], a["finite"]) == (b["tokens"], True)
        worst, leaf = worst_difference(a["squares"], b["squares"])
        assert worst <= 2e-5, f"squares of {leaf} differ by {worst:.1e}"
    assert wanted[0]["grad_norm"] > 0.5, "it is clipped"
    worst, leaf = worst_difference(weights, wanted_weights)
    assert worst <= 1e-4, f"{leaf} differs by {worst:.1e}"


@cache
def evaluated(layout: str | None) -> tuple[float, float]:
    """Sum of the losses and number of tokens of a batch."""
    run = run_of(layout)
    total, tokens = run.step.evaluate(run.step.residency.initial_state().master, rows_of(run, 0))
    return float(total["loss"]), float(tokens)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.matrix(quick=1, ci=1)
def test_evaluation_is_that_of_one_device(layout: str):
    (total, tokens), (wanted, count) = evaluated(layout), evaluated(None)
    assert abs(total - wanted) <= 1e-5 * wanted
    assert tokens == count
