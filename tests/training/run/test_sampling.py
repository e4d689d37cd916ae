"""The sample at the end of a run: with a cache, and by whole windows under a pipeline."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.training.run import sampling
from jaxpar.training.run.run import Run
from tests.small_run import layout_of, small


def run_of(**parallel: Any) -> Run:
    config = small(parallel=parallel, data={"sequence_length": 16})
    return Run(config, devices=jax.devices()[: layout_of(config.parallel)])


@pytest.mark.long
def test_a_sample_by_the_cache_is_that_by_windows() -> None:
    run = run_of(fsdp=2, tensor=2)
    start = np.arange(1, 6, dtype=np.int32)
    found = sampling.continue_tokens(run, start, 11, 0.0)
    assert found.tolist() == sampling._by_windows(run, start, 11, 0.0).tolist() and len(found) == 11


@pytest.mark.long
def test_a_sample_may_be_longer_than_the_models_sequence() -> None:
    run = run_of(fsdp=2)
    found = sampling.continue_tokens(run, np.arange(1, 14, dtype=np.int32), 40, 1.0)
    assert 0 < len(found) <= 40 and found.max() < 64
