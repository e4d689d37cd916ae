"""Spikes as inputs of matmuls (`precision.spikes`): what they are, on any layout, and where they are refused."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.ops.spikes import spiked
from jaxpar.training.run.run import Run
from tests.model.test_goldens import TOLERANCE, logits
from tests.reference.decoder64 import plain_batch
from tests.sentences import refused
from tests.small_run import SmallRun, small


def test_spikes_are_counts_times_the_mean_of_a_token_over_the_rate():
    """And the spikes of a zero are none."""
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    x[0, 0], rate = 0.0, 3.0
    threshold = np.abs(x).mean(axis=(2, 3), keepdims=True) / rate
    wanted = np.where(threshold > 0, np.round(x / np.where(threshold > 0, threshold, 1)) * threshold, 0)
    found = np.asarray(spiked(jnp.asarray(x, jnp.float32), rate, split=False))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert len(np.unique(np.round(found[1, 1] / threshold[1, 1]))) < 15


def logits_of(rate: float | None, parallel: dict[str, Any]) -> np.ndarray:
    data = {"batch_size": 8, "sequence_length": 16}
    run = SmallRun(small(parallel=parallel, data=data, precision={"compute": "float32", "spikes": rate}))
    vocab = run.config.model.vocab
    assert vocab is not None
    batch = plain_batch(np.random.default_rng(0).integers(0, vocab, (8, 16)).astype(np.int32))
    weights = run.step.residency.initial_state().master
    return np.asarray(logits(run.step)(weights, run.place(batch)))[..., :vocab]


def test_logits_with_spikes_are_the_same_on_any_layout_and_near_those_without():
    """Many spikes for each input are as good as none; a few are a rounding that shows."""
    few, exact = logits_of(3.0, {}), logits_of(None, {})
    size = np.abs(exact).max()
    assert (
        np.abs(logits_of(3.0, {"tensor": 2, "context": 2, "fsdp": 2, "context_order": "contiguous"}) - few).max()
        <= TOLERANCE * size
    )
    assert 0.01 * size < np.abs(few - exact).max() < 0.5 * size
    assert np.abs(logits_of(1e5, {}) - exact).max() < 1e-4 * size


def test_spikes_are_refused_in_training_with_experts_and_with_fp8():
    with refused("precision.spikes: 3", "no gradient", "jaxpar.evaluate"):
        Run(small(precision={"spikes": 3.0}))
    with refused("precision.spikes: 3", "model.experts"):
        SmallRun(small(model={"experts": ExpertsConfig(4)}, precision={"spikes": 3.0}))
    with refused("precision.spikes: 3", "precision.matmul: fp8_current"):
        SmallRun(small(precision={"spikes": 3.0, "matmul": "fp8_current"}))
