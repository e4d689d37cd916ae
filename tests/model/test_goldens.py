"""A folder of Hugging Face's has the logits here that transformers computes: on one device, and split every way."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.layer_order import Chunk
from jaxpar.mesh.materialize import to_storage, zero_accumulators
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.training.run.reference import initial_state_from
from jaxpar.training.step.train_step import TrainStep
from tests.goldens.loading import BIDIRECTIONAL, FOLDER, NAMES, section_of, short_logits, tokens_and_logits
from tests.reference.decoder64 import plain_batch
from tests.small_run import SmallRun, small

TOLERANCE = 1e-5
"""Largest difference over the largest logit, float32."""


def logits(step: TrainStep) -> Any:
    """Compiled (all weights, batch [1, row, seq]) -> logits [row, seq, padded vocabulary]."""

    def function(state: Weights, batch: Batch) -> jax.Array:
        stages = stages_of(step.layout, train=False)
        weights = to_storage(state, step.layout.placements)
        accumulators = {part: zero_accumulators(w, step.layout.placements, part=part) for part, w in weights.items()}
        microbatch = jax.tree.map(lambda a: a[0], batch)
        chunk = Chunk(weights["layers"], 0, 0)
        x = stages.loop.run(chunk, stages.embed(weights, microbatch), stages.token_context(microbatch))
        return reduce_sum(vary(stages.logits(weights, accumulators, x)), ("pipe",))

    layouts = step.layout.weights, step.layout.batch.partitions
    return step.compiled(function, layouts, PartitionSpec(DATA_AXES, "context", "tensor"))


@pytest.mark.matrix(quick=("granite", "mamba2", "phi3"), ci=4, always=True)
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_transformers(name: str):
    compare(name, {})


@pytest.mark.matrix(quick=("gemma4", "phi3"), ci=4)
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_a_split_model_equal_those_of_transformers(name: str):
    compare(name, {"fsdp": 2, "context": 2, "tensor": 2, "context_order": "contiguous"})


@pytest.mark.matrix(quick=("mamba2-1",), ci=3)
@pytest.mark.parametrize("length", [1, 17])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BIDIRECTIONAL])
def test_logits_of_shorter_rows_equal_those_of_transformers(name: str, length: int):
    compare(name, {}, length)


@pytest.mark.matrix(quick=1, ci=1)
@pytest.mark.parametrize("context", [1, 2])
def test_rows_of_up_to_the_original_length_have_frequencies_of_their_own_under_longrope(context: int):
    compare("phi3_longrope", {"context": context, "context_order": "contiguous"}, 16, short_logits("phi3_longrope"))


def compare(name: str, parallel: dict[str, Any], length: int | None = None, expected: np.ndarray | None = None) -> None:
    """Read a golden's folder into a layout, and compare the logits there with those of transformers."""
    tokens, wanted = (array[:, :length] for array in tokens_and_logits(name))
    wanted = wanted if expected is None else expected
    source = HFFolder(FOLDER / name)
    data = {"batch_size": tokens.shape[0], "sequence_length": tokens.shape[1]}
    run = SmallRun(small(model=section_of(source.model), parallel=parallel, data=data))
    residency = run.step.residency
    weights = initial_state_from(source, residency.initial_state(), residency).master
    found = np.asarray(logits(run.step)(weights, run.place(plain_batch(tokens))))
    vocab = wanted.shape[-1]
    assert np.abs(found[..., :vocab] - wanted).max() <= TOLERANCE * np.abs(wanted).max()
    assert found.shape[-1] == 64 and np.all(np.isneginf(found[..., vocab:])), "padded columns take no probability"
