"""The residual of quantised gradients in a whole run: saved, restored, and begun anew on another mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.checkpoint import Checkpointer
from jaxpar.config import Config
from jaxpar.training.run_folder.saves import read_state
from tests.same_bits import assert_same_bits
from tests.training.runs import fit, folder_of, losses, make_run, run_config, saved_state

MESH = {"fsdp": 4, "zero": 1}
FEEDBACK = {"gradient_wire": "int4", "gradient_error_feedback": True}


def fed_back(folder: Path, steps: int, **parallel: Any) -> Config:
    return run_config(folder, steps, parallel=MESH | parallel, precision={"compute": "float32"} | FEEDBACK)


@pytest.mark.long
def test_a_continued_run_has_the_residual_of_the_uninterrupted_one(tmp_path: Path):
    whole = fed_back(tmp_path / "whole", 4)
    fit(whole)
    fit(fed_back(tmp_path / "parts", 2))
    continued = fed_back(tmp_path / "parts", 4)
    _, recorder = fit(continued)
    assert losses(continued) == losses(whole)
    found, wanted = saved_state(continued, 4), saved_state(whole, 4)
    assert_same_bits(found, wanted)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(found.carried["residual"])) > 0
    assert not [text for text in recorder.messages if "residual" in text]
    same, other = (fed_back(tmp_path / "parts", 5, **own) for own in ({"replica": 2, "fsdp": 2}, {"fsdp": 2}))
    there, messages = residual_on(same)
    assert_same_bits(there, wanted.carried["residual"])
    assert not messages, "a rank goes on with the residual of another, and the sum is the same"
    there, (text,) = residual_on(other)
    assert {leaf.any() for leaf in jax.tree.leaves(there)} == {np.False_}
    assert "residual of quantised gradients begins anew" in text
    _, recorder = fit(other)
    assert [own for own in recorder.messages if "residual" in own] == [text]


def residual_on(config: Config) -> tuple[Any, list[str]]:
    """The residual that a run on another mesh begins with, after step 4, and what it reports of it."""
    messages: list[str] = []
    checkpoints = Checkpointer(folder_of(config) / "checkpoints", keep_last=1, keep_every=None, report=print)
    try:
        run = make_run(config)
        state, _ = read_state(checkpoints, 4, run.saved.abstract, run.layout.carried, messages.append)
    finally:
        checkpoints.close()
    return jax.device_get(state.carried["residual"]), messages
