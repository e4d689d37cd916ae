"""A training step replays what layers recorded in generation or in a plain forward: the experts of tokens."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.generation.generator import Continuation, Generator
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.scorer import Scorer
from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.layer_order import Chunk
from jaxpar.mesh.materialize import to_storage
from jaxpar.runtime.records import Records
from tests.generation.test_generator import prompts
from tests.given_weights import place, state_with
from tests.reference.decoder64 import plain_batch
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small

LAYERS, NEW = 3, 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "experts, context and tensor": {"expert": 2, "context": 2, "tensor": 2},
    "experts and rows": {"expert": 4, "fsdp": 2, "experts": {"exchange": "all_to_all"}},
}


def run_on(layout: dict[str, Any], routing: str | None = None) -> SmallRun:
    """A decoder of which the first layer has no experts, and the others two kinds of them."""
    experts = ExpertsConfig(count=4, per_token=3, width=16)
    narrow = {"count": 4, "per_token": 2, "width": 16, "router": "sigmoid"}
    model = {"layers": LAYERS, "vocab": 61, "experts": experts}
    model["kinds"] = {"dense": {"experts": None}, "wide": {}, "narrow": {"experts": narrow}}
    model["pattern"] = Pattern(prefix=("dense",), unit=("wide", "narrow"))
    data = {"batch_size": 8, "sequence_length": 64, "routing": routing}
    return SmallRun(small(model=model, parallel=layout, data=data))


@pytest.fixture(scope="module")
def weights() -> Any:
    """Weights by layer, as NumPy."""
    run = run_on({})
    return run.by_layer(run.step.residency.initial_state().master)


def batch_of(found: list[Continuation]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The rows of prompts and what was generated, and what was recorded of their tokens but the last."""
    batch, routing = plain_batch(np.zeros((8, 64), np.int32)), np.full((8, 64, LAYERS, 3), -1, np.int32)
    for number, (prompt, own) in enumerate(zip(prompts(61), found, strict=True)):
        row = [*prompt, *own.tokens.tolist()]
        length = len(row) - 1
        batch["tokens"][number, :length], batch["labels"][number, :length] = row[:-1], row[1:]
        routing[number, :length] = own.recorded["routing"]
        for name, value in {"segments": 1, "mask": 1}.items():
            batch[name][number] = np.where(np.arange(64) < length, value, 0)
    for name in ("segments", "mask"):
        batch[name][len(found) :] = 0
    return batch, routing


def recorded_by(run: SmallRun, weights: Any, rows: dict[str, np.ndarray]) -> np.ndarray:
    """The records of a forward of the training step's layout, on one device."""

    def forward(state: Any, batch: Any) -> Records:
        stages = stages_of(run.step.layout, train=False)
        stored, microbatch = to_storage(state, run.step.layout.placements), jax.tree.map(lambda a: a[0], batch)
        x, chunk = stages.embed(stored, microbatch), Chunk(stored["layers"], 0, 0)
        _, records = stages.loop.recorded(chunk, vary(x), stages.token_context(microbatch), stages.empty_records(x))
        return {name: reduce_max(own, ("pipe",)) for name, own in records.items()}

    layouts = run.step.layout.weights, run.step.layout.batch.partitions
    compiled = run.step.compiled(forward, layouts, PartitionSpec(DATA_AXES, ("context", "tensor")))
    return np.asarray(compiled(place(run.step, weights), run.place(rows))["routing"])


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_training_step_replays_the_experts_that_generation_recorded(layout: str, weights: Any):
    """With the same weights the loss and its gradients are those without a replay, to the bit; with other routers the
    experts are those that were recorded."""
    run = run_on(LAYOUTS[layout])
    placed = place(run.step, run.by_row(weights))
    found = Generator(run.config, run.step.mesh, placed).continued(prompts(61), NEW, records=True)
    for prompt, own in zip(prompts(61), found, strict=True):
        routing = own.recorded["routing"]
        assert routing.shape == (len(prompt) + NEW - 1, LAYERS, 3)
        assert (routing[:, 0] == -1).all() and (routing[:, 1] >= 0).all(), "the first layer has no experts"
        assert (routing[:, 2, :2] >= 0).all() and (routing[:, 2, 2] == -1).all()
    rows, routing = batch_of(found)
    free, replaying = run_on({}), run_on({}, "given")
    wanted = free.step.gradients(state_with(free.step, free.by_row(weights)), free.place(rows))
    state = state_with(replaying.step, replaying.by_row(weights))
    assert_same_bits(replaying.step.gradients(state, replaying.place(rows | {"routing": routing})), wanted)
    others = jax.tree_util.tree_map_with_path(lambda path, leaf: -leaf if path[-1].key == "router" else leaf, weights)
    real = rows["segments"] > 0
    after = recorded_by(replaying, replaying.by_row(others), rows | {"routing": routing})
    np.testing.assert_array_equal(after[real], routing[real])
    alone = recorded_by(free, free.by_row(others), rows)
    assert (alone[real] != routing[real]).mean() > 0.2, "without a replay these routers choose other experts"


@pytest.mark.long
def test_a_plain_forward_records_what_generation_does(weights: Any):
    run = run_on({"expert": 2, "context": 2})
    placed = place(run.step, run.by_row(weights))
    found = Generator(run.config, run.step.mesh, placed).continued(prompts(61), NEW, records=True)
    rows = [[*a, *b.tokens.tolist()] for a, b in zip(prompts(61), found, strict=True)]
    scorer = Scorer(PlacedModel(run.config, run.step.mesh, placed))
    for scores, own in zip(scorer.scored(rows, records=True), found, strict=True):
        np.testing.assert_array_equal(scores.recorded["routing"], own.recorded["routing"])
    (alone,) = scorer.scored(rows[:1])
    assert alone.recorded == {}


@pytest.mark.long
def test_rows_that_end_early_have_records_of_the_tokens_that_were_read(weights: Any):
    """Also of the token before one that ends a row; and of nothing where nobody asks."""
    run = run_on({})
    placed = place(run.step, run.by_row(weights))
    generator = Generator(run.config, run.step.mesh, placed)
    full = generator.continued(prompts(61), NEW, records=True)
    first = full[0].tokens.tolist()
    stop = next(token for token in first if token not in first[: first.index(token)] and first.index(token) > 1)
    for own, more in zip(generator.continued(prompts(61), NEW, stop=[stop], records=True), full, strict=True):
        assert len(own.tokens) < NEW or not own.ended
        read = len(more.recorded["routing"]) - NEW + len(own.tokens) + own.ended
        np.testing.assert_array_equal(own.recorded["routing"], more.recorded["routing"][:read])
    (alone,) = generator.continued(prompts(61)[:1], 2)
    assert alone.recorded == {}
