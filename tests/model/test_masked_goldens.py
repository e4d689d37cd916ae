"""The masked loss of bidirectional families is that of transformers."""

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.generation.placed_model import place_on
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.training.run.reference import initial_state_from
from tests.goldens.loading import FOLDER, section_of
from tests.reference.decoder64 import plain_batch
from tests.sentences import refused
from tests.small_run import SmallRun, small

NAMES = ("modernbert", "bert")


@pytest.mark.matrix(quick=("bert",), ci=1)
@pytest.mark.parametrize("name", NAMES)
def test_the_masked_loss_is_that_of_transformers(name: str):
    with np.load(FOLDER / name / "logits.npz", allow_pickle=False) as stored:
        tokens, labels, wanted = stored["tokens"], stored["labels"], float(stored["loss"])
    source = HFFolder(FOLDER / name)
    data = {"batch_size": tokens.shape[0], "sequence_length": tokens.shape[1]}
    run = SmallRun(small(model=section_of(source.model), parallel={"tensor": 2, "context": 2}, data=data))
    residency = run.step.residency
    state = initial_state_from(source, residency.initial_state(), residency)
    counted = labels >= 0
    batch = plain_batch(tokens) | {
        "labels": np.where(counted, labels, 0).astype(np.int32), "mask": counted.astype(np.float32),
    }  # fmt: skip
    loss, _ = jax.device_get(run.step.gradients(state, run.place(batch)))
    assert float(loss) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_bidirectional_model_generates_nothing(name: str):
    with refused("model.causal: false", "generation", "expected a causal model"):
        place_on(Config(), HFFolder(FOLDER / name), jax.devices())
