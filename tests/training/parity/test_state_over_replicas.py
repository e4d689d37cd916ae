"""Master weights and optimizer state split over replicas: losses, norms and updated weights."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.small_run import SmallRun, small, with_overlap

TRAINED: dict[str, dict[str, dict[str, Any]]] = {
    "AdamW with an average": {"parallel": {"replica": 2, "fsdp": 2}, "optimizer": {"name": "adamw", "ema": 0.9}},
    "Muon, ZeRO-1": {"parallel": {"replica": 2, "fsdp": 2, "zero": 1}, "optimizer": {"name": "muon"}},
    "Adafactor, state on the host": {
        "parallel": {"replica": 2, "fsdp": 2},
        "optimizer": {"name": "adafactor", "learning_rate": 1e-2, "options": {"relative": True}},
        "memory": {"optimizer_offload": "host"},
    },
    "AdamW, state on disk": {
        "parallel": {"replica": 2, "fsdp": 2, "zero": 2, "microbatches": 2},
        "optimizer": {"name": "adamw", "ema": 0.9},
        "memory": {"optimizer_offload": "file"},
    },
}

SHARDED = {"shard_state_over_replicas": True}
STEPS = 3


def sharded(sections: dict[str, dict[str, Any]], **more: dict[str, Any]) -> SmallRun:
    parallel = {"parallel": with_overlap(sections["parallel"], **SHARDED)}
    return SmallRun(small(**sections | parallel | more), node_devices=4)


def trained(run: SmallRun) -> tuple[list[tuple[float, float]], Any]:
    """The losses and gradient norms of some steps, and the weights after them, with their average if there is one."""
    state, metrics = run.advance(STEPS)
    weights = (state.master, state.optimizer.get("average"))
    if run.config.memory.optimizer_offload == "file":
        weights = jax.tree.map(lambda array: run.step.residency.readable([array])[0], weights)
    losses_and_norms = [(float(of_step.loss), float(of_step.grad_norm)) for of_step in metrics]
    return losses_and_norms, tuple(run.by_layer(own) for own in weights if own is not None)


@cache
def alone(name: str) -> tuple[list[tuple[float, float]], Any]:
    return trained(SmallRun(small(optimizer=TRAINED[name]["optimizer"])))


@pytest.mark.matrix(quick=("AdamW with an average",), ci=1)
@pytest.mark.parametrize("name", TRAINED)
def test_losses_norms_and_updated_weights_equal_one_device(name: str, tmp_path: Path):
    """The norm counts each element once; clipping and the moving average are of the sharded state."""
    sections = TRAINED[name]
    memory = sections.get("memory", {})
    memory |= {"offload_dir": str(tmp_path)} if memory.get("optimizer_offload") == "file" else {}
    found, weights = trained(sharded(sections, memory=memory))
    wanted, exact = alone(name)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for (path, own), want in zip(jax.tree_util.tree_leaves_with_path(weights), jax.tree.leaves(exact), strict=True):
        # Adam divides by the magnitude of a gradient, whose rounding counts more the smaller it is.
        close = np.abs(own - want) <= 1e-5 * np.abs(want).max()
        assert close.mean() > 0.999, jax.tree_util.keystr(path)
