"""Generation with experts: no token is dropped, merged with others, or routed by a random number."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.generation.generator import Generator
from jaxpar.generation.layout import generation_layout
from tests.generation.test_generator import check_greedy, run_of
from tests.small_run import SmallRun, small, with_experts

LAYOUTS: dict[str, dict[str, Any]] = {
    "all_to_all": {"expert": 4, "tensor": 2, "experts": {"exchange": "all_to_all", "capacity": 1.0}},
    "all_gather": {"expert": 2, "fsdp": 2, "context": 2, "experts": {"exchange": "all_gather"}},
    "slices": {"expert": 2, "context": 2, "experts": {"exchange": "all_to_all", "slices": 2}},
}
ROUTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "drops": ("all_to_all", {"capacity_factor": 0.25}),
    "clusters": ("slices", {"clusters": {"share": 0.25}}),
    "hash": ("all_gather", {"router": "hash"}),
    "sigmoid": ("all_to_all", {"router": "sigmoid", "router_options": {"groups": 4, "groups_per_token": 2}}),
    "noisy_top_k": ("slices", {"router": "noisy_top_k"}),
    "dense_to_sparse": ("all_to_all", {"router": "dense_to_sparse", "router_options": {"threshold": 0.05}}),
    "base": ("all_gather", {"router": "base", "per_token": 1}),
}
"""A layout, and `model.experts`."""


TRAINED: dict[str, dict[str, Any]] = {
    "three slices, which do not divide a rank's tokens of a prompt": {"expert": 2, "fsdp": 2, "experts": {"slices": 3}},
    "own rows first, of tokens in slices": {"expert": 2, "fsdp": 2, "experts": {"slices": 2, "own_rows": "first"}},
    "own rows first, of tokens in three slices": {"expert": 2, "experts": {"slices": 3, "own_rows": "first"}},
}
"""How `parallel` sends tokens to experts in training; on CPUs generation sends them in one piece."""


def run_with_weights(experts: ExpertsConfig, layout: dict[str, Any]) -> tuple[SmallRun, Any]:
    run = run_of({"layers": 2, "vocab": 61, "experts": experts}, layout)
    return run, run.step.residency.initial_state().master


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("router", ROUTERS)
def test_greedy_tokens_are_the_likeliest_of_the_training_forward(router: str):
    """On one device, of a model whose training drops and merges nothing."""
    layout, keys = ROUTERS[router]
    own = ExpertsConfig(**({"count": 8, "per_token": 2, "shared": 1, "width": 16} | keys))
    run, weights = run_with_weights(own, LAYOUTS[layout])
    exact = replace(own, capacity_factor=None, clusters={})
    check_greedy(Generator(run.config, run.step.mesh, weights), 61, *run_with_weights(exact, {}))


@pytest.mark.parametrize("name", TRAINED)
def test_slices_and_own_rows_of_training_are_not_those_of_generation(name: str):
    """A sample of a run follows no slices: its tokens are fewer."""
    own = ExpertsConfig(count=4, per_token=2, width=16)
    model, parallel = {"layers": 1, "experts": own}, with_experts(TRAINED[name], exchange="all_to_all")
    config = small(model=model, parallel=parallel, data={"sequence_length": 48, "batch_size": 8})
    run = SmallRun(config)
    training = next(iter(run.step.layout.plan.experts.values()))
    assert training.slices.name == parallel["experts"]["slices"]
    layout = generation_layout(config, run.step.mesh)
    exchange = next(iter(layout.plan.experts.values()))
    assert (exchange.exchange.name, exchange.slices.name, exchange.own_first.name) == ("all_to_all", 1, False)
