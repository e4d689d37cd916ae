"""Buffers of what layers keep, which GPUs do not fill where every entry is written before it is read."""

import jax.numpy as jnp
import pytest

from tests.nonzero_gradients import nonzero_gradients
from tests.small_run import SmallRun, small, worst_difference

MODEL = {"layers": 3, "z_loss": 1e-3}


@pytest.mark.long
def test_what_was_in_the_memory_counts_nowhere(allocated: list[tuple[int, ...]]):
    loss, gradients = nonzero_gradients(SmallRun(small(model=MODEL, parallel={"fsdp": 2, "microbatches": 2})))
    assert allocated
    wanted_loss, wanted = nonzero_gradients(SmallRun(small(model=MODEL, parallel={"fsdp": 1})))
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert worst_difference(gradients, wanted)[0] <= 1e-5


@pytest.mark.long
def test_pipelines_begin_with_zeros(allocated: list[tuple[int, ...]]):
    """A rank without work in a tick reads entries that were not written."""
    run = SmallRun(small(model=MODEL | {"layers": 4}, parallel={"pipe": 2, "microbatches": 2}))
    assert jnp.isfinite(nonzero_gradients(run)[0])
    assert not allocated
