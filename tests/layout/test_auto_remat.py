"""`memory.remat: auto`: the cheapest that fits, and a sentence where nothing does."""

from pathlib import Path

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.declared import hidden_names
from jaxpar.layout.auto_remat import ESTIMATED, OVERLAPPED
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.memory.remat import cheap
from tests.compiler.inspected import inspected
from tests.memory.shapes import layer_shape
from tests.sentences import refused

LLAMA = Path(__file__).parents[2] / "configs" / "llama3_8b.yaml"
ON = parse_cluster("h100:1x8")
TWO_ROWS = ("parallel.microbatches=4",)


SMALLER = parse_cluster("v100-32:1x8")


def planned(*overrides: str, on: Cluster = ON) -> tuple[Plan, StepLayout]:
    settings = ["memory.remat=auto", "attention.backend=xla", *overrides]
    config, plan = plan_for(load_config(LLAMA, settings), on)
    return plan, StepLayout(config, plan)


BEHIND = {"attention_projected", "mlp_projected"}
"""Activations of models with norms behind the blocks, which Llama does not have."""


def recomputed(plan: Plan) -> list[set[str]]:
    return [{name for name, own in run.activations.items() if own == "recompute"} - BEHIND for run in plan.runs]


def test_nothing_that_takes_time_is_made_again_where_everything_fits():
    assert recomputed(planned()[0]) == [{"mlp_activated"}], "the kernel that multiplies by it makes it again"


def test_what_costs_least_goes_first_and_the_memory_is_used():
    plan, layout = planned(*TWO_ROWS)
    most_layers = max(plan.runs, key=lambda run: run.layers)
    assert most_layers.layers >= 23
    assert {name for name, own in most_layers.activations.items() if own == "recompute" and not cheap(name)} <= BEHIND
    most = OVERLAPPED * ESTIMATED * pool_bytes(ON.device_bytes)
    layer = sum(activation_bytes(layer_shape(layout.config, plan.axes, plan.microbatch_rows)).values())
    assert most - layer < estimate_memory(layout.config, layout.plan).device <= most


def test_attention_is_made_again_where_the_kernel_that_runs_is_fast():
    """At 512 tokens a row, with memory for a part: Triton's kernel is cheaper than products, plain XLA is not."""
    rows = "data.sequence_length=512", "data.batch_size=256", "parallel.microbatches=1"
    kernel, plain = (planned(*rows, f"attention.backend={name}")[0] for name in ("triton", "xla"))
    assert {kernel.attention["all"].name, plain.attention["all"].name} == {"triton", "xla"}
    assert any("attention_output" in again for again in recomputed(kernel))
    assert not any("attention_output" in again for again in recomputed(plain))


def test_what_tiles_make_again_takes_no_room():
    tiled, _ = planned("memory.mlp_tiles=8", "data.sequence_length=32768", "data.batch_size=8",
                       "parallel.microbatches=1")  # fmt: skip
    assert all(again >= set(hidden_names()) for again in recomputed(tiled))
    assert not set.union(*recomputed(tiled)) & {"query", "key", "value", "attention_output"}


def test_rows_for_which_the_feed_forward_is_in_tiles_fit():
    """131,072 tokens a GPU; XLA asks for 69.7 GiB under `full` (`python -m jaxpar.inspect`)."""
    long = ("data.sequence_length=131072", "data.batch_size=8", "parallel.microbatches=1")
    _, layout = planned(*long, "memory.remat=full")
    assert estimate_memory(layout.config, layout.plan).device / 2**30 == pytest.approx(69.7, rel=0.1)
    assert planned(*long)[0].mlp_tiles.name > 1


@pytest.mark.parametrize("limit", [10**9, 3 * 10**9])
def test_host_memory_is_used_up_to_its_limit(limit: int):
    """Without it rows of 16,384 tokens do not fit GPUs of 32 GB."""
    _, layout = planned("data.sequence_length=16384", f"memory.host_limit={limit}", on=SMALLER)
    estimate = estimate_memory(layout.config, layout.plan)
    assert 0.75 * limit < estimate.host <= limit
    assert estimate.device <= ESTIMATED * pool_bytes(SMALLER.device_bytes)


def test_the_host_is_used_at_once_where_the_user_gives_its_limit():
    """Rows of 16,384 tokens fit GPUs of 80 GB without it, and what must be recomputed for that takes longer."""
    away = lambda *overrides: {
        name
        for run in planned("data.sequence_length=16384", *overrides)[0].runs
        for name, own in run.activations.items()
        if own == "offload"
    }
    assert not away()
    assert away("memory.host_limit=20000000000")


def test_a_share_of_what_auto_keeps_is_refused():
    with refused("offload_fraction: 0.5", "expected 0", "memory.remat"):
        planned("memory.offload_fraction=0.5")


def test_too_little_host_memory_is_reported():
    with refused("95.37 MiB of host memory", "memory.host_limit", "of the 27"):
        planned("data.sequence_length=16384", "memory.host_limit=100000000", on=SMALLER)


def test_where_nothing_fits_it_states_by_how_much_and_what_to_change():
    with refused("memory.remat: auto", "activations take ", "iB", "memory.optimizer_offload: host") as refusal:
        planned("data.sequence_length=4194304", "data.batch_size=8", "parallel.microbatches=1")
    assert "zero: 3" not in str(refusal.value), "it is 3 already"


@pytest.mark.long
def test_what_is_chosen_fits_when_it_is_compiled():
    plan, layout = planned(*TWO_ROWS)
    assert plan.remat == "auto"
    _, report = inspected(layout.config, ON.name)
    assert report.fits
    assert report.peak_bytes == pytest.approx(estimate_memory(layout.config, layout.plan).device, rel=0.05)
    assert report.compiler_recomputes < 5, (
        "near the limit XLA may run a kernel twice; short of memory it does with dozens"
    )
