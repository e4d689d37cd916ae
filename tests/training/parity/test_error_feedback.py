"""Error feedback in whole steps: gradients over several steps are those of one device, but for the residual."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.training.step.forward_backward import StepFunctions
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small

MODEL = {"layers": 2, "embed": 64, "mlp": 128}
EXPERTS = {"experts": ExpertsConfig(count=4, per_token=2, width=32, router="hash")}
INT4 = {"gradient_wire": "int4", "gradient_error_feedback": True}
STEPS = 2

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "ZeRO-1 over two nodes": {"parallel": {"fsdp": 8, "zero": 1}},
    "replicas, tensor, accumulation, remat, tied": {
        "parallel": {"replica": 2, "fsdp": 2, "tensor": 2, "zero": 1, "microbatches": 2},
        "precision": INT4 | {"gradient_wire": "int8"},
        "memory": {"remat": "full"},
        "model": {"tied": True},
    },
    "state over replicas": {
        "parallel": {"replica": 2, "fsdp": 4, "zero": 1, "overlap": {"shard_state_over_replicas": True}}
    },
    "ZeRO-0 in a pipeline": {"parallel": {"pipe": 2, "replica": 4, "zero": 0, "microbatches": 2}},
    "experts and context": {"parallel": {"expert": 2, "fsdp": 2, "context": 2, "zero": 1}, "model": EXPERTS},
}


def run_of(sections: dict[str, dict[str, Any]]) -> SmallRun:
    own = {"model": MODEL | sections.get("model", {}), "precision": sections.get("precision", INT4)}
    return SmallRun(small(**sections | own), 2 if sections["parallel"].get("pipe") else 4)


def leaves(tree: Any) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.matrix(quick=("ZeRO-1 over two nodes",), ci=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_of_steps_and_the_residual_add_up_to_those_of_one_device(name: str):
    """With the same weights, of several batches: codes, nodes, microbatches and the pipeline lose nothing."""
    run, one = run_of(LAYOUTS[name]), SmallRun(small(model=MODEL | LAYOUTS[name].get("model", {})))
    layout, functions = run.step.layout, StepFunctions(run.step.layout, run.step.residency)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        results = functions.gradients(state, batch, jnp.uint32(0))
        return results.gradients, results.carried["residual"]

    compiled = run.step.compiled(
        step, (layout.state, layout.batch.partitions), (layout.master, layout.state.carried["residual"])
    )
    state, exact = run.step.residency.initial_state(), one.step.residency.initial_state()
    found, wanted, residual = {}, {}, {}
    for number in range(STEPS):
        gradients, left = compiled(state, run.batch(number))
        state = state._replace(carried=state.carried | {"residual": left})
        residual = leaves(run.by_layer(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64).sum(-1), left)))
        _, true = one.step.gradients(exact, one.batch(number))
        for total, own in ((found, leaves(run.by_layer(gradients))), (wanted, leaves(one.by_layer(true)))):
            total |= {leaf: total.get(leaf, 0.0) + own[leaf] for leaf in own}
    lost = {leaf: np.abs(found[leaf] - wanted[leaf]).max() / np.abs(wanted[leaf]).max() for leaf in wanted}
    for leaf in wanted:
        of_rest = np.abs(found[leaf] + residual.get(leaf, 0.0) - wanted[leaf]).max()
        assert of_rest <= 1e-5 * np.abs(wanted[leaf]).max(), leaf
    assert any("embed" in leaf for leaf in residual) and not any("norm" in leaf for leaf in residual)
    assert min(lost[leaf] for leaf in residual) > 1e-4, "all of these were quantised"
    assert max(lost[leaf] for leaf in {*lost} - {*residual}) <= 1e-5, "norms stay exact"


@pytest.mark.long
def test_a_step_that_is_not_finite_leaves_the_residual_as_it_was():
    run = run_of(LAYOUTS["ZeRO-1 over two nodes"])
    state, _ = run.step.train(run.step.residency.initial_state(), run.batch(0), run.step.arguments)
    before = jax.device_get(state.carried["residual"])
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(before)) > 0
    norm = jax.tree.map(lambda leaf: leaf * jnp.float32("nan"), state.master["final_norm"])
    state = state._replace(master=state.master | {"final_norm": norm})
    state, metrics = run.step.train(state, run.batch(1), run.step.arguments)
    assert not metrics.finite
    assert_same_bits(state.carried["residual"], before)
