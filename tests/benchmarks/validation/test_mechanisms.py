"""How other software spends a step: beside jaxpar's, and what a row may state."""

from dataclasses import replace

import pytest

from benchmarks.validation.mechanisms import FLASH1, SYSTEMS, Mechanisms, mechanisms_of, other_seconds
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.head import head_time
from jaxpar.cost.layout import Layout
from jaxpar.cost.matmul_quantization import MatmulQuantization
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.step_time.model import Steps, StepTime, step_time

MODEL = ModelConfig(layers=8, embed=4096, heads=32, mlp=16384, vocab=50_304, tied=True)
CLUSTER = parse_cluster("h100:1x8")
"""One host, which waits for no other."""
SPLIT = Layout(replica=2, context=2, tensor=2, zero=1, microbatch=4, remat="full")
NOTHING = Mechanisms("hopper")
"""A system that does what jaxpar does, but for its pipelines."""


def jaxpar(layout: Layout, sequence: int = 2048) -> StepTime:
    return step_time(MODEL, sequence, 64, layout, CLUSTER)


def seconds(layout: Layout, sequence: int = 2048, **changes: object) -> float:
    return other_seconds(MODEL, sequence, 64, layout, CLUSTER, replace(NOTHING, **changes))


def test_without_mechanisms_a_step_is_that_of_jaxpar_without_its_stacks_and_tiles():
    ours, steps = jaxpar(SPLIT), Steps(MODEL, 2048, 64, CLUSTER)
    head = steps.layers(SPLIT).case, steps.vocab, steps.device, steps.network
    tiled, full = (sum(one.seconds for one in head_time(*head, tiled=tiled)) for tiled in (True, False))
    expected = ours.seconds - ours.breakdown["slices"] - 8 * (tiled - full)
    assert seconds(SPLIT) == pytest.approx(expected) and expected < ours.seconds


def test_only_jaxpar_copies_a_pipelines_weights_and_its_bubble_grows_with_them():
    layout = Layout(pipe=8, schedule="1f1b", remat="full")
    spent = jaxpar(layout).breakdown
    makespan = sum(spent.values()) - spent["optimizer"]
    share = spent["slices"] / (makespan - spent["bubble"])
    assert jaxpar(layout).seconds - seconds(layout) == pytest.approx(share * makespan, rel=0.02)


@pytest.mark.parametrize(
    "change",
    [{"attention": "flash2"}, {"attention": "scores"}, {"eager": True}, {"recompute_last": True}, {"added_bytes": 6.0}],
)
def test_work_that_software_adds_takes_longer(change: dict[str, object]):
    assert seconds(SPLIT, **change) > seconds(SPLIT)


@pytest.mark.parametrize("part", ["data", "tensor", "context"])
def test_a_system_hides_no_more_than_its_messages(part: str):
    saved = seconds(SPLIT) - seconds(SPLIT, **{f"overlap_{part}": True})
    assert 0 < saved <= jaxpar(SPLIT).breakdown[part] * 1.0001


def test_scores_in_memory_grow_with_the_square_of_a_row():
    layout = Layout(replica=8)
    more = lambda sequence: seconds(layout, sequence, attention="scores") - seconds(layout, sequence)
    assert 3.5 < more(8192) / more(4096) < 4.5


def test_the_first_flash_attention_takes_a_multiple_of_the_second():
    layout = Layout(replica=8)
    named = replace(layout, attention=tuple((kind, "flash2") for kind in kind_models(MODEL)))
    more = seconds(layout, attention="flash1") - seconds(layout, attention="flash2")
    assert more == pytest.approx((FLASH1 - 1) * jaxpar(named).breakdown["attention"])


def test_float8_with_scales_of_rows_multiplies_as_in_16_bits():
    exact = replace(SPLIT, remat="none")
    layout = replace(exact, matmul_quantization=MatmulQuantization(None, layers=MODEL.layers))
    slower = seconds(layout, row_scales=True) - seconds(layout)
    assert slower == pytest.approx(jaxpar(exact).breakdown["matmuls"] - jaxpar(layout).breakdown["matmuls"])


def test_weights_that_are_waited_for_are_not_hidden():
    layout = Layout(fsdp=8, zero=3, remat="full")
    assert seconds(layout, waits_for_weights=True) > 1.05 * seconds(layout)


def row(**cells: str) -> dict[str, str]:
    return {"framework": "torchtitan", "flash_attention": "1", "mechanisms": ""} | cells


def test_a_row_changes_the_mechanisms_of_its_software():
    titan = dict(SYSTEMS)["torchtitan"]
    assert mechanisms_of(row(), "") == titan and titan.eager
    stated = mechanisms_of(row(mechanisms="compiled=1;overlap_tensor=1"), "")
    assert stated == replace(titan, eager=False, overlap_tensor=True)
    assert mechanisms_of(row(framework="Megatron-LM (2021)", flash_attention="0"), "").attention == "scores"
    assert mechanisms_of(row(framework="of tomorrow"), "") == Mechanisms()
    with pytest.raises(UserError, match=r"here: mechanisms: expected .*, got 'fast=1'"):
        mechanisms_of(row(mechanisms="fast=1"), "here")
