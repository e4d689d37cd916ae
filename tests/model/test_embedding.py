"""The embedding's gradient is summed in float32, however many tokens share a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import vary
from jaxpar.mesh.materialize import to_optimizer, to_storage, zero_accumulators
from tests.small_run import SmallRun, small

LENGTH, ROWS, COTANGENT = 512, 8, 1e-3


def embedding_gradient(run: SmallRun, batch):
    """Gradient of `COTANGENT` times the sum of all embeddings, in optimizer placement, as NumPy."""
    step = run.step

    def gradient(master, batch):
        stages = stages_of(step.layout, train=False)
        weights = to_storage(master, step.layout.placements)
        accumulators = {part: zero_accumulators(w, step.layout.placements, part=part) for part, w in weights.items()}
        row = jax.tree.map(lambda a: a[0], batch)
        x = jax.eval_shape(stages.embed, weights, row)
        found = stages.embed_gradients(weights, row, vary(jnp.full(x.shape, COTANGENT, x.dtype)), accumulators)
        return to_optimizer(found, step.layout.placements)

    function = step.compiled(gradient, (step.layout.master, step.layout.batch.partitions), step.layout.master)
    return jax.device_get(function(step.residency.initial_state().master, batch)["embedding"])


@pytest.mark.parametrize(
    "axes",
    [{}, {"tensor": 4, "fsdp": 2}, {"fsdp": 4, "context": 2, "overlap": {"embedding_messages": "rows"}}],
    ids=["one device", "split vocabulary", "exchanged rows"],
)
@pytest.mark.parametrize("token", [5, 60])
def test_thousands_of_equal_tokens_all_count_in_bfloat16(axes, token):
    run = SmallRun(
        small(
            model={"position": "learned", "max_positions": LENGTH},
            parallel=axes,
            precision={"compute": "bfloat16"},
            data={"sequence_length": LENGTH, "batch_size": ROWS},
        )
    )
    rows = run.rows(0)
    found = embedding_gradient(
        run, run.place(rows | {"tokens": np.full_like(rows["tokens"], token), "positions": rows["indices"]})
    )
    term = float(jnp.bfloat16(COTANGENT))
    wanted = np.zeros_like(found["tokens"])
    wanted[token] = LENGTH * ROWS * term
    np.testing.assert_allclose(found["tokens"], wanted, rtol=1e-5)
    np.testing.assert_allclose(found["positions"], np.full_like(found["positions"], ROWS * term), rtol=1e-5)
