"""Context strategies move in the program for H100s their formulas' bytes, behind the attention that they feed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.attention import CONTEXT_STRATEGIES, ContextLayout
from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.report.record import Collective
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.declaration.part import Recurrence
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.linear_attention.transports import TRANSPORTS
from jaxpar.layout.choices.attention import attention_request
from tests.compiler.inspected import INTEGERS, inspected, wide
from tests.small_run import with_overlap

LLAMA = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"
CLUSTER = "h100:1x8"
COLLECTIVES = ("gather_context", "scatter_context", "shift_context", "exchange_heads", "exchange_sequence")

LAYOUTS: dict[str, dict[str, Any]] = {
    "allgather": {"parallel": {"context": 8}, "model": {"kv_heads": 2}},
    "allgather, full remat": {"parallel": {"context": 8}, "memory": {"remat": "full"}},
    "ring": {"parallel": {"context": 8}, "model": {"kv_heads": 2}},
    "ring, full remat": {"parallel": {"context": 4, "fsdp": 2}, "memory": {"remat": "full"}},
    "ring, no remat, two ranks": {"parallel": {"context": 2, "tensor": 4}, "memory": {"remat": "none"}},
    "ring, window of the neighbour": {"parallel": {"context": 8}, "model": {"window": 8}},
    "ulysses": {"parallel": {"context": 8}, "model": {"kv_heads": 2}},
    "ulysses, no remat": {"parallel": {"context": 4, "tensor": 2}, "memory": {"remat": "none"}},
    "ulysses, tiles of the MLP": {"parallel": {"context": 4, "tensor": 2}, "memory": {"remat": "none", "mlp_tiles": 2}},
    "ulysses, full remat": {"parallel": {"context": 4, "fsdp": 2}, "memory": {"remat": "full"}},
    "usp": {"parallel": {"context": 8, "ulysses": 4, "microbatches": 2}, "model": {"kv_heads": 2}},
    "usp, full remat": {"parallel": {"context": 8, "ulysses": 2}, "memory": {"remat": "full"}},
}


@pytest.mark.matrix(ci=3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_device_sends_what_the_formula_of_its_strategy_states(name: str):
    strategy = name.split(",")[0]
    sections = LAYOUTS[name]
    config = wide(**sections | {"parallel": sections["parallel"] | {"context_strategy": strategy}})
    resolved, plan = plan_for(config, parse_cluster(CLUSTER))
    _, report = inspected(config, CLUSTER)
    found = sum(row.bytes for row in report.collectives if row.collective in COLLECTIVES and row.dtype not in INTEGERS)

    (entry,) = (entry for entry in CONTEXT_STRATEGIES if entry.name == strategy)
    request = replace(attention_request(resolved, jax.devices()[0], plan.runs), ulysses=plan.ulysses)
    sent = entry.traffic(request, ContextLayout(plan.context_order.name, plan.ulysses))
    assert found == (sent.forward + sent.backward) * resolved.model.layers * plan.microbatches


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "collectives"), [("ring", ("shift_context",)), ("allgather", ("gather_context",))]
)
def test_at_128k_tokens_of_llama_keys_and_values_travel_behind_the_attention(
    strategy: str, collectives: tuple[str, ...]
):
    config = load_config(LLAMA)
    model = replace(config.model, layers=4)  # of 32, whose weights no GPU could hold whole
    # Under ZeRO-3 gathers of weights go over the same links in each layer, and some wait for one another.
    parallel = replace(config.parallel, fsdp=1, context=8, context_strategy=strategy, microbatches=1, zero=1)
    data = replace(config.data, sequence_length=131072, batch_size=1)
    attention = replace(config.attention, backend="xla")
    _, report = inspected(replace(config, model=model, parallel=parallel, data=data, attention=attention), CLUSTER)
    assert report.fits, "of a step that does not fit the schedule means nothing"
    rows = [row for row in report.collectives if row.collective in collectives and row.dtype not in INTEGERS]
    needed, exposed = sum(row.seconds for row in rows), sum(row.exposed_s for row in rows)
    assert needed > 1e-3
    assert exposed < 0.05 * needed


HOSTS = "h100:4x8"
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
    _, report = inspected(config, HOSTS)
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
