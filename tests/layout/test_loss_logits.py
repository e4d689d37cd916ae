"""What a plan does with the logits of the loss's kernel: as asked, or what memory allows and takes less time."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config import Config, config_from_dict
from jaxpar.config.plan import Choice, Plan
from jaxpar.generation.layout import generation_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.auto_remat import ESTIMATED
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.memory.nearest_fit import describe_fit, nearest_fit
from jaxpar.layout.step_layout import StepLayout
from jaxpar.units import GIB
from tests.sentences import refused

CLUSTER = parse_cluster("h100:1x8")
H100 = DescribedGPU.of(CLUSTER.gpu)


def llama(parallel: dict[str, Any] | None = None, rows: int = 16, **memory: Any) -> Config:
    """Llama 3 8B's with the kernel of the loss, on eight GPUs."""
    sections = {
        "model": {"preset": "llama3-8b"},
        "parallel": {"fsdp": 8, "zero": 3, "microbatches": 2} | (parallel or {}),
        "data": {"source": "synthetic", "sequence_length": 8192, "batch_size": rows, "packed": False},
        "memory": {"loss_backend": "fused", "remat": "gemm_last"} | memory,
        "attention": {"backend": "xla"},
    }
    return resolve_config(config_from_dict(sections), 8)


def planned(config: Config, usable: float = 75 * GIB) -> Plan:
    return make_plan(config, H100, 8, CLUSTER, int(usable))


def needed(config: Config, plan: Plan) -> int:
    return estimate_memory(config, plan).device


@pytest.mark.parametrize("asked", ["recompute", "keep"])
def test_what_is_asked_for_is_planned(asked: str):
    plan = planned(llama(loss_logits=asked), GIB)
    assert plan.loss_logits == Choice(asked, "named by memory.loss_logits")


def test_xla_has_nothing_to_keep_and_refuses_to_be_asked():
    assert planned(llama(loss_backend="xla")).loss_logits == Choice(None)
    for asked in ("keep", "recompute"):
        parts = (f"memory.loss_logits: {asked} is for the kernel", "named by memory.loss_backend", "expected auto")
        with refused(*parts):
            planned(llama(loss_backend="xla", loss_logits=asked))


@pytest.mark.parametrize("asked", ["auto", "keep"])
def test_generation_has_no_use_for_the_kernel_of_the_loss(asked: str):
    memory = generation_config(llama(loss_logits=asked), rows=8, tokens=64, zero=0).memory
    assert (memory.loss_backend, memory.loss_logits) == ("xla", "auto")


def test_auto_keeps_logits_where_the_estimate_of_the_step_has_room():
    config = llama(rows=64, remat="full")
    kept = planned(config)
    assert kept.loss_logits.name == "keep" and "8.0 GiB of them fit: a step takes" in kept.loss_logits.reason
    limit = needed(config, kept) / ESTIMATED
    assert planned(config, limit + 16).loss_logits.name == "keep"
    again = planned(config, limit - 16)
    assert again.loss_logits.name == "recompute" and "with 8.0 GiB of them kept" in again.loss_logits.reason
    assert again.runs == kept.runs and needed(config, again) < needed(config, kept)


def test_kept_logits_take_two_bytes_of_each_and_a_float_of_128():
    """A row of 8192 tokens on a device with the whole vocabulary, where else there are eight chunks of it."""
    config = llama(remat="none")
    plan = planned(config)
    each = {
        name: estimate_memory(config, replace(plan, loss_logits=Choice(name), layer_unroll=Choice(1)))
        for name in ("recompute", "keep")
    }
    tokens, embed, columns, chunk = 8192, 4096, 128256, 128256 // 8
    kept, sums = tokens * columns * (2 + 4 / 128), 4 * embed * (tokens + chunk)
    assert each["keep"].temporaries - each["recompute"].temporaries == kept - 2 * tokens * chunk - sums
    assert each["recompute"].gradients - each["keep"].gradients == 4 * embed * columns


def test_logits_that_take_no_more_than_sums_over_chunks_are_kept_anyway():
    """Those of a row: the gradient of the head is then one matmul's, which no loop adds up."""
    config = llama()
    plan = planned(config, 30 * GIB)
    assert plan.loss_logits.name == "keep"
    assert needed(config, plan) <= needed(config, replace(plan, loss_logits=Choice("recompute")))


def test_auto_of_layers_and_logits_takes_what_saves_more_time():
    """Of two rows, layers and logits want the same memory; what is kept fits beside the rest of the estimate."""
    config, found = llama(rows=32, remat="auto"), {}
    for usable in (75, 64, 36, 32):
        plan = planned(config, usable * GIB)
        found[usable] = plan.loss_logits.name
        assert needed(config, plan) <= ESTIMATED * usable * GIB
        assert "a microbatch saves 30." in plan.loss_logits.reason or plan.loss_logits.name == "recompute"
    assert found[75] == "keep" and "recompute" in found.values(), found


def test_a_plan_that_does_something_else_with_logits_is_refused():
    config = llama(loss_logits="keep")
    plan = planned(config)
    check_plan(plan, config, H100, 8)
    with refused("plan.loss_logits: recompute", "memory.loss_logits is keep"):
        check_plan(replace(plan, loss_logits=Choice("recompute")), config, H100, 8)
    with refused("plan.loss_logits", "expected recompute or keep with plan.loss fused", "got None"):
        check_plan(replace(plan, loss_logits=Choice(None)), config, H100, 8)
    tiled = replace(plan, loss=Choice("xla", "by default"))
    with refused("plan.loss_logits", "expected null with plan.loss xla", "got 'keep'"):
        check_plan(tiled, config, H100, 8)


@pytest.mark.parametrize("asked", ["auto", "keep"])
def test_a_step_that_does_not_fit_is_told_to_recompute_first(asked: str):
    config = llama(rows=64, remat="full", loss_logits=asked)
    plan = planned(config)
    rebuild = lambda changed: StepLayout(changed, planned(changed))
    limit = needed(config, replace(plan, loss_logits=Choice("recompute")))
    found = nearest_fit(StepLayout(config, plan), limit, rebuild)
    assert "the nearest that fits: memory.loss_logits: recompute (about" in describe_fit(found)
