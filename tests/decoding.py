"""Generation with a cache equals the parallel form, token by token: shared by tests of mixers with a state."""

from typing import Any

import jax
import numpy as np

from jaxpar.generation.generator import Generator
from tests.model.test_goldens import logits
from tests.reference.decoder64 import plain_batch
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import TOLERANCE

NEW, LENGTH = 200, 256


def assert_decodes(model: dict[str, Any], parallel: dict[str, Any]) -> None:
    """Ragged prompts continued by 200 tokens have the log-probabilities of a forward of the whole rows."""
    run, one = (SmallRun(small(model=model, parallel=p, data={"sequence_length": LENGTH})) for p in (parallel, {}))
    prompts = [list(range(1, 4)), list(range(5, 22)), [7]]
    weights = run.step.residency.initial_state().master
    made = Generator(run.config, run.step.mesh, weights).continued(prompts, NEW)
    tokens = np.zeros((8, LENGTH), np.int32)
    for row, (prompt, new) in enumerate(zip(prompts, made, strict=True)):
        tokens[row, : len(prompt) + NEW] = [*prompt, *new.tokens]
    by_training = np.asarray(logits(one.step)(jax.device_get(weights), one.place(plain_batch(tokens))))
    likely = jax.nn.log_softmax(by_training.astype(np.float32), axis=-1)
    for row, (prompt, new) in enumerate(zip(prompts, made, strict=True)):
        after = np.asarray(likely[row, len(prompt) - 1 : len(prompt) + NEW - 1])
        np.testing.assert_allclose(new.log_probabilities, after.max(axis=-1), atol=TOLERANCE, rtol=TOLERANCE)
