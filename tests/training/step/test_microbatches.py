"""A batch in several microbatches: the loss and gradients of all its tokens."""

import jax
import pytest

from tests.short_documents import into_documents
from tests.small_run import SmallRun, small, worst_difference


@pytest.mark.long
def test_a_batch_in_four_microbatches_has_the_loss_and_gradients_of_the_whole():
    """Rows differ in how many of their tokens count: a mean of the microbatches' means would be another number."""
    one, four = (SmallRun(small(parallel={"microbatches": count, "fsdp": 2})) for count in (1, 4))
    rows, state = into_documents(one.rows(0), 0), one.step.residency.initial_state()
    assert len(set(rows["mask"].reshape(4, -1).sum(axis=1))) == 4
    loss, gradients = jax.device_get(one.step.gradients(state, one.place(rows)))
    found, found_gradients = jax.device_get(four.step.gradients(state, four.place(rows)))
    assert abs(found - loss) <= 1e-6 * loss
    worst, leaf = worst_difference(found_gradients, gradients)
    assert worst <= 3e-6, f"gradient of {leaf} differs by {worst:.1e}"
