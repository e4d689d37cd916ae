"""Every optimizer trains alike on a split mesh, under each ZeRO stage, and on one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from tests.small_run import SmallRun, small

STEPS = 3
SPLIT = {"fsdp": 2, "tensor": 2}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "lion": {"name": "lion", "learning_rate": 1e-3, "ema": 0.9},
    "adafactor": {"name": "adafactor", "learning_rate": 1e-2, "adafactor_relative": True},
}
_whole: dict[str, tuple[list[float], Any]] = {}


def train(optimizer: str, parallel: dict[str, int]) -> tuple[list[float], Any]:
    run = SmallRun(small(model={"layers": 2}, optimizer=OPTIMIZERS[optimizer], parallel=parallel))
    return run.train(STEPS)


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize(("optimizer", "zero"), [*(("adafactor", zero) for zero in (3, 2, 1, 0)), ("lion", 3)])
def test_a_split_mesh_trains_as_one_device(optimizer: str, zero: int):
    if optimizer not in _whole:
        _whole[optimizer] = train(optimizer, {"zero": 0})
    losses, weights = train(optimizer, {**SPLIT, "zero": zero})
    wanted_losses, wanted = _whole[optimizer]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-6)
    for (path, found), want in zip(jax.tree_util.tree_leaves_with_path(weights), jax.tree.leaves(wanted), strict=True):
        # The sign of a gradient that is zero but for rounding may differ: Lion then steps the other way.
        close = np.isclose(found, want, rtol=1e-4, atol=1e-5)
        assert close.mean() > 0.999, jax.tree_util.keystr(path)
