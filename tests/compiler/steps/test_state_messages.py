"""Context ranks send as many bytes of states, in the program for H100s, whatever the length of the sequence."""

from __future__ import annotations

import pytest

from jaxpar.layers.declaration.part import Recurrence
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.linear_attention.transports import TRANSPORTS
from tests.compiler.inspected import inspected, wide
from tests.small_run import with_overlap

CLUSTER = "h100:4x8"
RANKS = 32
EXCHANGES = ("gather_context", "scatter_context", "shift_context")


def exchanged(transport: str, length: int) -> float:
    """Bytes that a device sends of states, in float32, for a row of so many tokens."""
    config = wide(
        model={"layers": 2, "mixer": "gated_deltanet"},
        parallel=with_overlap({"context": RANKS, "zero": 1}, state_messages=transport),
        data={"sequence_length": length, "batch_size": 1},
    )
    _, report = inspected(config, CLUSTER)
    assert report.fits
    return sum(row.bytes for row in report.collectives if row.collective in EXCHANGES and row.dtype == "f32")


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_of_states_are_the_same_at_128k_and_2m_tokens(transport: str):
    """Forward, once more before the backward, which needs the states again, and their gradients back."""
    model = wide(model={"mixer": "gated_deltanet"}).model
    (one,) = (one for _, one in declare_layer(model).operations if isinstance(one, Recurrence))
    messages = TRANSPORTS[transport].messages(one.mapped, one.made, RANKS)
    # A gather sends its result but for a rank's part; the reader counts a shift for each hop, though one rank sends.
    each = messages.size * (RANKS - 1) / RANKS if messages.kind == "gather" else messages.size * messages.count
    assert [exchanged(transport, 1 << power) for power in (17, 21)] == [2 * 3 * each] * 2
