"""Every place of the model that drops has a mask of its own, the same on every layout; evaluation drops nothing.

All weights are zero but the token embedding and the output biases, each of them a power of two of its own: the sum that
leaves the last layer then shows, bit by bit, which places have dropped an element.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.mesh.build import mapped
from jaxpar.mesh.layer_order import Chunk
from jaxpar.mesh.materialize import to_storage
from jaxpar.runtime.batch import SEED
from tests.given_weights import place
from tests.small_run import SmallRun, small

RATE, LAYERS = 0.25, 3
PLACES = 1 + 2 * LAYERS
LAYOUTS: dict[str, dict[str, int]] = {
    "one_device": {},
    "split": {"fsdp": 2, "context": 2, "tensor": 2, "zero": 3},
    "rows_and_tensor": {"replica": 2, "tensor": 4},
}


def weights_that_count(step: Any) -> Any:
    """Embedding 1, then 2, 4, 8, ... for the attention and MLP biases of layer after layer."""
    weights = jax.tree.map(lambda leaf: np.zeros(leaf.shape), step.layout.abstract_state(step.mesh).master)
    weights["embedding"]["tokens"][:] = 1
    for layer in range(LAYERS):
        weights["layers"]["all"]["attention"]["output_bias"][layer] = 2 ** (1 + 2 * layer)
        weights["layers"]["all"]["mlp"]["down_bias"][layer] = 2 ** (2 + 2 * layer)
    return weights


def kept(layout: dict[str, int], *, train: bool) -> np.ndarray:
    """Whether each place keeps each element: [place, row, token, embed]."""
    model = {"layers": LAYERS, "dropout": RATE, "attention_bias": True, "mlp_bias": True}
    run = SmallRun(small(model=model, parallel=layout))
    stages = stages_of(run.step.layout, train=train)

    def activations(master: Any, batch: Any) -> jax.Array:
        weights = to_storage(master, run.step.layout.placements)
        microbatch = jax.tree.map(lambda a: a[0], batch) | {SEED: jnp.uint32(0)}
        chunk = Chunk(weights["layers"], 0, 0)
        x = stages.loop.run(chunk, stages.embed(weights, microbatch), stages.token_context(microbatch))
        return jax.lax.psum(x, "pipe")  # of size 1

    sequence = PartitionSpec(DATA_AXES, ("context", "tensor"))
    function = mapped(
        activations,
        run.step.mesh,
        run.config.precision.compute,
        (run.step.layout.master, run.step.layout.batch.partitions),
        sequence,
    )
    placed = np.asarray(jax.jit(function)(place(run.step, weights_that_count(run.step)), run.batch(0)))
    found = placed[:, np.argsort(run.place.batch.order)]  # tokens back in their natural order
    counts = np.rint(found * (1 - RATE if train else 1)).astype(int)
    return np.stack([(counts >> bit) & 1 for bit in range(PLACES)])


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    return kept(LAYOUTS["one_device"], train=True)


def test_each_place_drops_at_the_rate_and_independently_of_all_others(masks: np.ndarray):
    size = masks[0].size
    deviation = lambda chance: 5 * np.sqrt(chance * (1 - chance) / size)
    assert np.abs(masks.mean((1, 2, 3)) - (1 - RATE)).max() < deviation(RATE)
    alike = RATE**2 + (1 - RATE) ** 2
    for a, b in itertools.combinations(range(PLACES), 2):
        assert abs((masks[a] == masks[b]).mean() - alike) < deviation(alike), f"places {a} and {b} drop alike"


@pytest.mark.parametrize("name", ["split", "rows_and_tensor"])
def test_every_place_drops_the_same_elements_on_every_layout(name: str, masks: np.ndarray):
    np.testing.assert_array_equal(kept(LAYOUTS[name], train=True), masks)


def test_evaluation_drops_nothing():
    assert kept(LAYOUTS["split"], train=False).all()
