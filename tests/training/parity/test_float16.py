"""Under float16 the loss is scaled for the backward, and the gradients show nothing of it."""

from dataclasses import asdict

import jax
import pytest

from jaxpar.runtime.loss_scale import INITIAL
from tests.given_weights import state_with
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.small_run import SmallRun, small, worst_difference

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 5e-4, 2e-2
"""Of float16 against float64, max|difference| / max|reference|; 5e-5 and 7e-3 is what there is."""


@pytest.mark.long
def test_scaled_loss_and_gradients_equal_float64_to_half_precision():
    run = SmallRun(
        small(
            model={"layers": 2, "vocab": 61, "kv_heads": 1, "qk_norm": True},
            parallel={"fsdp": 2, "tensor": 2, "context": 2, "zero": 3, "microbatches": 2},
            precision={"compute": "float16"},
        )
    )
    options, rows = asdict(run.config.model), run.rows(0)
    weights = random_weights(options, padded_vocab=64)
    state = state_with(run.step, weights)
    assert float(state.carried["loss_scale"].value) == INITIAL
    loss, gradients = jax.device_get(run.step.gradients(state, run.place(rows)))
    wanted_loss, wanted = decoder64.loss_and_gradients(weights, options, rows)
    assert abs(float(loss) - wanted_loss) <= LOSS_TOLERANCE * wanted_loss
    worst, leaf = worst_difference(gradients, wanted)
    assert worst <= GRADIENT_TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"
