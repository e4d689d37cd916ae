"""Every optimizer trains alike on a split mesh, under each ZeRO stage, and on one device: the weights, their average,
and what experts report."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.experts.feed_forward import LOAD, OVERFLOWS, RANK_LOAD
from tests.small_run import SmallRun, small

STEPS = 3
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "lion": {"name": "lion", "learning_rate": 1e-3, "ema": 0.9},
    "adafactor": {"name": "adafactor", "learning_rate": 1e-2, "options": {"relative": True}, "ema": 0.9},
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"experts": ExpertsConfig(count=4, shared=1, router="sigmoid", width=16)},
}
SPLIT: dict[str, dict[str, Any]] = {
    "none": {},
    "dense": {"fsdp": 2, "tensor": 2},
    "experts": {"expert": 2, "fsdp": 2, "tensor": 2, "experts": {"exchange": "all_to_all"}},
    "experts of rows in parts": {"expert": 2, "context": 2, "tensor": 2, "experts": {"exchange": "all_gather"}},
}
OF_LAYOUTS = (RANK_LOAD, OVERFLOWS)
"""What experts report of the ranks that share them; everything else is of the global batch."""


def train(optimizer: str, model: str, split: str, zero: int) -> tuple[list[float], Any, dict[str, float]]:
    """The losses, (weights, their moving average), and what the last step reports."""
    parallel = SPLIT[split] | {"zero": zero}
    run = SmallRun(small(model={"layers": 2} | MODELS[model], optimizer=OPTIMIZERS[optimizer], parallel=parallel))
    state, metrics = run.advance(STEPS)
    report = {name: float(value) for name, value in metrics[-1].report.items() if name not in OF_LAYOUTS}
    return (
        [float(of_step.loss) for of_step in metrics],
        (run.by_layer(state.master), run.by_layer(state.optimizer["average"])),
        report,
    )


@cache
def whole(optimizer: str, model: str) -> tuple[list[float], Any, dict[str, float]]:
    return train(optimizer, model, "none", 0)


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize(
    ("optimizer", "split", "zero"),
    [
        *(("adafactor", "dense", zero) for zero in (3, 2, 1, 0)),
        ("lion", "dense", 3),
        ("adafactor", "experts", 1),
        ("adafactor", "experts of rows in parts", 3),
    ],
)
def test_a_split_mesh_trains_as_one_device(optimizer: str, split: str, zero: int):
    model = split.split()[0]
    losses, state, report = train(optimizer, model, split, zero)
    wanted_losses, wanted, wanted_report = whole(optimizer, model)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-6)
    assert (LOAD in report) == (model == "experts")
    assert report == pytest.approx(wanted_report, rel=1e-5)
    for (path, found), want in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(wanted), strict=True):
        # The sign of a gradient that is zero but for rounding may differ: Lion then steps the other way.
        close = np.isclose(found, want, rtol=1e-4, atol=1e-5)
        assert close.mean() > 0.999, jax.tree_util.keystr(path)
