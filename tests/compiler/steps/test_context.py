"""What context strategies move in the program for H100s: their formulas' bytes, behind the attention that they feed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.attention import CONTEXT_STRATEGIES, ContextLayout
from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.attention import attention_request
from tests.compiler.inspected import INTEGERS, inspected, wide

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
