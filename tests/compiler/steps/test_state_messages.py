"""Context ranks send as many bytes of states, in the program for H100s, whatever the length of the sequence; what they
compute meanwhile hides a gather."""

from __future__ import annotations

import pytest

from jaxpar.compiler.report.record import Collective
from jaxpar.layers.declaration.part import Recurrence
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.linear_attention.transports import TRANSPORTS
from tests.compiler.inspected import inspected, wide
from tests.small_run import with_overlap

CLUSTER = "h100:4x8"
RANKS = 32
EXCHANGES = ("gather_context", "shift_context")


MODEL = {"layers": 2, "mixer": "gated_deltanet", "embed": 1024, "heads": 8, "kv_heads": 8}
"""Heads of 128 x 128. Forward, the delta rule leaves the projection of the gate to compute beside a gather: the widths
of a layer decide whether that is enough."""
HIDDEN = 0.95


def exchanged(transport: str, length: int) -> list[Collective]:
    """The messages of states, in float32, for a row of so many tokens."""
    config = wide(
        model=MODEL,
        parallel=with_overlap({"context": RANKS, "zero": 1}, state_messages=transport),
        data={"sequence_length": length, "batch_size": 1},
    )
    _, report = inspected(config, CLUSTER)
    assert report.fits
    return [row for row in report.collectives if row.collective in EXCHANGES and row.dtype == "f32"]


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_of_states_are_the_same_at_128k_and_2m_tokens_and_long_rows_hide_a_gather(transport: str):
    """States forward, and their gradients back."""
    model = wide(model=MODEL).model
    (one,) = (one for _, one in declare_layer(model).operations if isinstance(one, Recurrence))
    messages = TRANSPORTS[transport].messages(one.mapped, one.made, RANKS)
    # A gather sends its result but for a rank's part; the reader counts a shift for each hop, though one rank sends.
    each = messages.size * (RANKS - 1) / RANKS if messages.kind == "gather" else messages.size * messages.count
    short, long = (exchanged(transport, 1 << power) for power in (17, 21))
    assert [sum(row.bytes for row in rows) for rows in (short, long)] == [2 * 2 * each] * 2
    if transport == "allgather":
        assert sum(row.exposed_s for row in long) <= (1 - HIDDEN) * sum(row.seconds for row in long)
