"""The sample at the end of a run."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import LossConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.generation.sampling import NotFinite
from jaxpar.training.run.continuing import continue_tokens
from jaxpar.training.run.run import Run
from tests.small_run import layout_of, small


def run_of(**parallel: Any) -> Run:
    config = small(parallel=parallel, data={"sequence_length": 16})
    return Run(config, devices=jax.devices()[: layout_of(config.parallel)])


@pytest.mark.long
def test_a_sample_under_a_pipeline_is_that_of_one_device() -> None:
    """Also of stages that share devices with data and tensor ranks, and share the vocabulary."""
    start = np.arange(1, 6, dtype=np.int32)
    wanted = continue_tokens(run_of(), start, 11, 0.0)
    for parallel in ({"pipe": 2, "fsdp": 2}, {"pipe": 2, "tensor": 2, "pipe_ends": "shared", "microbatches": 2}):
        assert continue_tokens(run_of(**parallel), start, 11, 0.0).tolist() == wanted.tolist()
    assert len(wanted) == 11


@pytest.mark.long
def test_a_sample_may_be_longer_than_the_models_sequence() -> None:
    run = run_of(fsdp=2)
    found = continue_tokens(run, np.arange(1, 14, dtype=np.int32), 40, 1.0)
    assert 0 < len(found) <= 40 and found.max() < 64


def test_a_sample_under_a_pipeline_needs_no_pairs_and_no_replayed_experts_but_finite_weights() -> None:
    """The batches of such a run have arrays that a forward does not read; the sample is that of the same weights."""
    config = small(model={"layers": 2, "experts": ExpertsConfig(count=2, width=16)}, data={"sequence_length": 16})
    config = replace(config, parallel=replace(config.parallel, pipe=2))
    run = Run(config, devices=jax.devices()[:2])
    start = np.arange(1, 6, dtype=np.int32)
    wanted = continue_tokens(run, start, 3, 0.0)
    assert len(wanted) == 3
    run.config = replace(run.config, loss=LossConfig(name="dpo"), data=replace(run.config.data, routing="recorded"))
    assert continue_tokens(run, start, 3, 0.0).tolist() == wanted.tolist()
    run.state = run.state._replace(master=jax.tree.map(lambda leaf: leaf * jnp.nan, run.state.master))
    with pytest.raises(NotFinite):
        continue_tokens(run, start, 3, 0.0)
