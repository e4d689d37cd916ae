"""The residual of quantised gradients in a whole run: saved, restored, and begun anew on another mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from tests.same_bits import assert_same_bits
from tests.training.runs import fit, losses, run_config, saved_state

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
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(found.residual)) > 0
    assert not [text for text in recorder.messages if "residual" in text]
    other = fed_back(tmp_path / "parts", 5, fsdp=2)
    _, recorder = fit(other)
    (text,) = [text for text in recorder.messages if "residual" in text]
    assert text == "The residual of quantised gradients begins at zero: step 4 was saved by another number of ranks."
