"""How a plan passes on states: by the transport whose messages take the least time, or the one that is named."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

from jaxpar.config.plan import AxisSizes, Choice
from jaxpar.config.schema.model import Pattern
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.reasons import choice_rows
from jaxpar.layout.choices.state_messages import check_state_messages, state_messages
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.plan_file import PlanFile, write
from jaxpar.planner.report.explain import print_explanation
from tests.layout.choices.test_embedding import OnGpu
from tests.sentences import refused
from tests.small_run import small, with_overlap

HYBRID = {
    "layers": 4,
    "kinds": {"state": {"mixer": "gated_deltanet"}, "full": {}},
    "pattern": Pattern(unit=("state", "state", "state", "full")),
}


def chosen(
    rows: int, context: int = 8, mixer: str = "gated_deltanet", cluster: str = "h100:1x8", **parallel: Any
) -> Any:
    """The choice for 32 heads of 128 x 128."""
    config = small(
        model={"mixer": mixer, "embed": 4096, "heads": 32, "kv_heads": 32},
        data={"sequence_length": 4096},
        parallel=parallel | {"context": context},
    )
    device: Any = OnGpu()
    return state_messages(config, AxisSizes(context=context), device, rows, parse_cluster(cluster))


@pytest.mark.parametrize(
    ("rows", "context", "mixer", "cluster", "transport"),
    [
        (1, 8, "gated_deltanet", "h100:1x8", "allgather"),
        (6, 8, "gated_deltanet", "h100:1x8", "ring"),
        (16, 8, "gated_deltanet", "h100:1x8", "pipelined"),
        (16, 8, "lightning", "h100:1x8", "pipelined"),
        (1, 32, "gated_deltanet", "h100:4x8", "allgather"),
    ],
)
def test_large_states_are_relayed(rows: int, context: int, mixer: str, cluster: str, transport: str):
    """A gather starts once, but sends each rank the map and the state of every other."""
    choice = chosen(rows, context, mixer, cluster)
    assert choice.name == transport
    assert "of messages of all layers" in choice.reason and len(choice.rejected) == 2
    assert all(reason.startswith("it would take") for reason in choice.rejected.values())


def test_a_transport_that_is_named_is_taken(tmp_path: Path):
    assert chosen(1, overlap={"state_messages": "ring"}).name == "ring"
    config = resolve_config(small(model=HYBRID, parallel=with_overlap({"context": 4}, state_messages="pipelined")), 4)
    plan = make_plan(config, jax.devices()[0])
    assert ("state messages", "pipelined", "named by parallel.overlap.state_messages") in choice_rows(plan)
    check_state_messages(plan, config)
    write(tmp_path / "plan.json", PlanFile(config, plan))
    printed = StringIO()
    print_explanation(tmp_path / "plan.json", Console(file=printed, width=200))
    assert "states     pipelined: named by parallel.overlap.state_messages" in printed.getvalue()


def test_a_plan_without_context_ranks_or_states_has_nothing_to_choose():
    assert chosen(1, context=1) == chosen(1, mixer="attention") == Choice("allgather")


@pytest.mark.parametrize(
    ("model", "parallel", "why"),
    [
        ({"mixer": "gla"}, {}, "parallel.context is 1"),
        ({}, {"context": 4}, "no layer has a mixer with a state"),
        (
            {"mixer": "lightning", "layers": 4},
            {"context": 2, "pipe": 2, "microbatches": 2, "pipe_ticks": "branching"},
            "parallel.pipe_ticks",
        ),
    ],
)
def test_what_is_not_possible_is_refused(model: dict[str, Any], parallel: dict[str, Any], why: str):
    devices = parallel.get("context", 1) * parallel.get("pipe", 1)
    config = resolve_config(small(model=model, parallel=parallel), devices)
    plan = make_plan(config, jax.devices()[0])
    assert plan.state_messages.name == "allgather"
    for transport in ("ring", "pipelined"):
        with refused(f"parallel.overlap.state_messages: {transport} is not possible", why):
            make_plan(
                resolve_config(small(model=model, parallel=with_overlap(parallel, state_messages=transport)), devices),
                jax.devices()[0],
            )
        with refused(f"plan.state_messages: {transport} is not possible", why, "expected allgather"):
            check_state_messages(replace(plan, state_messages=Choice(transport)), config)
