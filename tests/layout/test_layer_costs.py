"""What it costs not to keep an activation under `precision.matmul`: as much as a step takes longer."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.layers.declaration.activations import LAYER_INPUT
from jaxpar.layout.auto_remat import costs_of_kinds
from jaxpar.layout.make_plan import resolve_config
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.pareto import cheapest, point_of
from jaxpar.memory.remat import Treatment
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Choice, Group, Space
from tests.planner.search.test_matmul_quantization import KEPT, recipe, timed

ON = parse_cluster("h100:1x8")
LAYERS, MICROBATCHES = 32, 8
"""Of configs/llama3_8b.yaml on 8 GPUs, of a row each."""
RECIPES = {
    "16 bits": (),
    "delayed": recipe("fp8_delayed"),
    "current": recipe("fp8_current"),
    "tiles by xla": recipe("fp8_block", backend="xla"),
    "tiles by the kernel": recipe("fp8_block", backend="mosaic"),
    "half of the layers": recipe("fp8_delayed", matmul_options="{first_layers: 8, last_layers: 8}"),
}


@cache
def costs(case: str) -> LayerCosts:
    return of_config("llama3_8b", ON, *RECIPES[case])


def of_config(name: str, cluster: Cluster, *options: str) -> LayerCosts:
    config = resolve_config(load_config(f"configs/{name}.yaml", [*options]), cluster.devices)
    (own,) = costs_of_kinds(config, cluster).values()
    return own


def again(case: str, *runs: tuple[int, dict[str, Treatment]]) -> float:
    """Seconds of recomputation of a step whose layers keep `runs`, as the planner takes them."""
    remat = tuple((layers, tuple(own.items())) for layers, own in runs)
    return timed(replace(KEPT, remat=remat), *RECIPES[case]).breakdown["recomputation"]


@pytest.mark.parametrize("case", RECIPES)
def test_an_operation_that_runs_again_costs_what_a_step_takes_longer(case: str):
    own = costs(case)
    for one in own.recomputations:
        treatments: dict[str, Treatment] = {name: "recompute" if name in one.outputs else "save" for name in own.sizes}
        longer = again(case, (LAYERS, treatments))
        assert LAYERS * MICROBATCHES * one.seconds == pytest.approx(longer), one.outputs


def test_products_in_fp8_are_given_up_before_attention_and_exceptions():
    """In 16 bits a query costs more, for each byte, than what the exception `attention_out` makes, and in FP8 less.
    Where each layer has room for one of the two beside attention itself, prices in 16 bits choose the slower."""
    sixteen, own = costs("16 bits"), costs("delayed")
    assert sixteen.sizes == own.sizes
    kept = (LAYER_INPUT, "attention_output", "attention_lse", "attention_residual")
    assert own.sizes["query"] == own.sizes["attention_residual"]
    chosen = {case: cheapest(costs(case), LAYERS, LAYERS * sum(own.sizes[name] for name in kept)) for case in RECIPES}
    saved = {case: {name for name, what in runs[0][1].items() if what == "save"} for case, runs in chosen.items()}
    assert saved["delayed"] == set(kept)
    assert saved["16 bits"] == {*kept, "query"} - {"attention_residual"}
    lost = lambda runs: sum(layers * point_of(own, treatments).seconds for layers, treatments in runs)
    for case in ("16 bits", "delayed"):
        assert MICROBATCHES * lost(chosen[case]) == pytest.approx(again("delayed", *chosen[case]))
    assert again("delayed", *chosen["delayed"]) < again("delayed", *chosen["16 bits"])
    assert again("16 bits", *chosen["delayed"]) > again("16 bits", *chosen["16 bits"])


def test_a_run_keeps_what_costs_most_in_its_own_recipe():
    """With four rows a device and little memory: the output of the exception, and not the query."""
    options = ("memory.remat=auto", "attention.backend=xla", "parallel.microbatches=2")
    plans = {
        case: plan_for(load_config("configs/llama3_8b.yaml", [*RECIPES[case], *options]), ON, usable=60 * 2**30)[1]
        for case in ("16 bits", "delayed")
    }
    kept = lambda case, name: sum(run.layers for run in plans[case].runs if run.activations[name] == "save")
    assert kept("delayed", "attention_residual") > kept("delayed", "query")
    assert kept("16 bits", "attention_residual") < kept("16 bits", "query")


def test_experts_that_a_kernel_multiplies_run_again_at_its_speed():
    """Where a GPU has four rows: casts of matrices take more than two rows gain."""
    seconds, options = {}, ("parallel.zero=3", "parallel.microbatches=16")
    for case in ("16 bits", "tiles by the kernel"):
        own = of_config("qwen3_30b_a3b", parse_cluster("h100:2x8"), *RECIPES[case], *options)
        seconds[case] = {name: one.seconds for one in own.recomputations for name in one.outputs}
    assert seconds["tiles by the kernel"]["expert_up"] < seconds["16 bits"]["expert_up"]


@pytest.mark.parametrize("experts", [{"backend": "xla"}, {"slices": 4, "own_rows": "first"}])
def test_experts_cost_a_run_what_they_cost_its_planner(experts: dict[str, Any]):
    config, cluster = planned_config(load_config("configs/qwen3_30b_a3b.yaml")), parse_cluster("h100:2x8")
    parallel = replace(config.parallel, experts=replace(config.parallel.experts, **experts))
    space = Space(replace(config, parallel=parallel), cluster)
    planner = Search(space).activations(Group(1, 1, 4, 1, 1, 1, expert=4), Choice(3, "allgather"))
    run = replace(parallel, fsdp=4, expert=4, zero=3, microbatches=config.data.batch_size // 16)
    (own,) = costs_of_kinds(resolve_config(replace(config, parallel=run), 16), cluster).values()
    assert own == planner.costs["all"]
