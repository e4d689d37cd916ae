"""Training with moments in fewer bits: the loss of a small decoder, saves, and what is refused."""

from functools import cache

import jax
import numpy as np
import pytest

from jaxpar.config.validate import validate
from jaxpar.layout.memory.state_bytes import state_bytes
from tests.sentences import refused
from tests.small_run import SmallRun, small

MODEL = {"layers": 2, "embed": 64, "heads": 2, "kv_heads": 2, "mlp": 256}
"""Blocks of 32 along heads and hidden features, so that all matrices rest in 8 bits."""
STEPS = 200


@cache
def trained(moments: str) -> list[float]:
    """Losses of 200 steps in float32 but for the moments."""
    settings = {"learning_rate": 3e-3, "warmup_steps": 10}
    run = SmallRun(small(model=MODEL, optimizer=settings, precision={"moments": moments}, run={"steps": STEPS}))
    return run.train(STEPS)[0]


@pytest.mark.long
@pytest.mark.parametrize(("moments", "bound"), [("bfloat16", 0.001), ("int8", 0.003)])
def test_a_small_decoder_trains_to_the_loss_of_float32(moments: str, bound: float):
    """Mean loss of the last 20 of 200 steps."""
    wanted = np.mean(trained("float32")[-20:])
    assert trained("float32")[0] - wanted > 0.5
    assert np.mean(trained(moments)[-20:]) == pytest.approx(wanted, rel=bound)


def test_the_state_takes_the_bytes_of_its_forms():
    run = {moments: SmallRun(small(model=MODEL, precision={"moments": moments})).step.layout for moments in FORMS}
    specs = jax.tree.leaves(run["int8"].specs, is_leaf=lambda x: hasattr(x, "axes"))
    matrices = sum(spec.size for spec in specs if spec.matrix)
    tables = sum(spec.size for spec in specs if spec.decay and not spec.matrix)
    vectors = sum(spec.size for spec in specs if not spec.decay)
    rest = 3 * 4  # three counters
    count = matrices + tables + vectors
    assert state_bytes(run["float32"]) - rest == 12 * count
    assert state_bytes(run["bfloat16"]) - rest == 8 * count
    assert state_bytes(run["int8"]) - rest == 4 * count + (2 + 8 / 32) * matrices + 4 * tables + 8 * vectors


FORMS = ("float32", "bfloat16", "int8")


def test_adafactor_has_nothing_to_round():
    with refused("precision.moments", "float32", "optimizer.name: adafactor", "int8"):
        validate(small(optimizer={"name": "adafactor"}, precision={"moments": "int8"}))


def test_a_form_that_there_is_not_names_the_nearest():
    with refused("precision.moments", "float32, bfloat16 or int8", "'int9'", " int8?"):
        validate(small(precision={"moments": "int9"}))
