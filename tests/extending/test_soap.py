"""SOAP of `docs/extending.md`, registered from outside: parity with float64 on split meshes, storage, and restoring."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, load_config
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.config.reading.options import options_of
from jaxpar.config.validate import validate
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.estimate import case_of
from jaxpar.layout.memory.fixed import state_of
from jaxpar.layout.memory.weights import Weights
from jaxpar.layout.state import weight_states
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.rule import RuleRequest
from jaxpar.planner.step_time.update import ADAMW, update_of
from tests.extending import soap
from tests.reference import trainer64
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, layout_of, small, worst_difference
from tests.training.runs import fit, losses, run_config, saved_state

STEPS = 6
SOAP: dict[str, Any] = {"name": "soap", "options": {"every": 2, "gram_decay": 0.9}}
SPLIT = {"fsdp": 2, "tensor": 2}
MATRIX = ParamSpec((2, 8, 4), ("layers", "embed", "mlp"), matrix=True)
ENTRY = OPTIMIZERS.pop("soap")
"""The entry that importing the file registers; other tests see jaxpar's optimizers alone."""


def soap64(gradient: np.ndarray, state: dict[str, Any], inputs: int, options: dict[str, Any]) -> np.ndarray:
    """Algorithm 3 on each matrix of a stack, in float64, in place of the reference's Muon."""
    rows, columns = prod(gradient.shape[1 : 1 + inputs]), prod(gradient.shape[1 + inputs :])
    layers = [state.setdefault(layer, {}) for layer in range(len(gradient))]
    each = [soap_matrix64(g.reshape(rows, columns), own, options) for g, own in zip(gradient, layers, strict=True)]
    return np.stack(each).reshape(gradient.shape)


def soap_matrix64(g: np.ndarray, state: dict[str, Any], options: dict[str, Any]) -> np.ndarray:
    b1, b2, decay = options["beta1"], options["beta2"], options["gram_decay"]
    t = state["t"] = state.get("t", 0) + 1
    left, right = state.get("bases", (np.eye(g.shape[0]), np.eye(g.shape[1])))
    rotate = lambda x: left.T @ x @ right
    state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * rotate(g) ** 2
    direction = rotate(state["m"]) / (1 - b1**t) / (np.sqrt(state["v"] / (1 - b2**t)) + options["epsilon"])
    state["l"] = decay * state.get("l", 0.0) + (1 - decay) * g @ g.T
    state["r"] = decay * state.get("r", 0.0) + (1 - decay) * g.T @ g
    if t % options["every"] == 0:
        state["bases"] = np.linalg.qr(state["l"] @ left)[0], np.linalg.qr(state["r"] @ right)[0]
    return left @ direction @ right.T


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    OPTIMIZERS["soap"] = ENTRY
    yield
    del OPTIMIZERS["soap"]


def of_mesh(parallel: dict[str, Any], **sections: dict[str, Any]) -> Config:
    return small(model={"layers": 2}, optimizer=SOAP, parallel=parallel, **sections)


@pytest.mark.parametrize(
    "parallel",
    [
        pytest.param({}, marks=pytest.mark.long), pytest.param(SPLIT, marks=pytest.mark.long(always=True)),
        pytest.param({"pipe": 2, "fsdp": 2, "zero": 1, "microbatches": 2}, marks=pytest.mark.long),
    ],
    ids=str,
)  # fmt: skip
def test_its_steps_equal_the_float64_trainer(parallel: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer64, "muon_direction", soap64)
    run = SmallRun(of_mesh(parallel))
    batches = [run.rows(step) for step in range(STEPS)]
    state = run.step.residency.initial_state()
    initial, found = run.by_layer(state.master), []
    for rows in batches:
        state, metrics = run.step.train(state, run.place(rows), run.step.arguments)
        found.append(float(metrics.loss))
    options = asdict(run.config.optimizer) | vars(options_of(run.config.optimizer))
    options |= {"name": "muon", "matrix_learning_rate": options["learning_rate"], "decay_steps": run.config.run.steps}
    wanted, wanted_losses, _ = trainer64.train(initial, asdict(run.config.model), options, batches)
    np.testing.assert_allclose(found, wanted_losses, rtol=1e-6)
    worst, leaf = worst_difference(run.by_layer(state.master), wanted)
    assert worst <= 1e-4, f"{leaf} differs by {worst:.1e}"


def trained(folder: Path, name: str, steps: int, parallel: dict[str, Any], **sections: Any) -> Config:
    """The configuration of a run in `folder`, which is continued until it has done `steps`."""
    sections |= {"run": {"name": name}, "model": {"layers": 2}, "optimizer": SOAP, "parallel": parallel}
    config = run_config(folder, steps, **sections)
    fit(config)
    return config


@pytest.mark.long
def test_a_run_goes_on_on_another_mesh(tmp_path: Path):
    whole = trained(tmp_path, "whole", STEPS, SPLIT)
    trained(tmp_path, "moved", 3, SPLIT)
    moved = trained(tmp_path, "moved", STEPS, {"fsdp": 2})
    assert list(losses(moved).values()) == pytest.approx(list(losses(whole).values()), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("offload", ["host", "file"])
def test_its_state_is_the_same_bits_in_host_memory_and_on_disk(tmp_path: Path, offload: str):
    parallel = SPLIT | {"zero": 1}
    whole = trained(tmp_path, "whole", STEPS, parallel)
    trained(tmp_path, "parts", 3, parallel)
    parts = trained(tmp_path, "parts", STEPS, parallel, memory={"optimizer_offload": offload})
    assert losses(parts) == losses(whole)
    assert_same_bits(saved_state(replace(parts, memory=whole.memory), STEPS), saved_state(whole, STEPS))


def test_gram_matrices_are_split_over_all_ranks_and_counted_by_planner_and_estimate():
    config = resolve_config(of_mesh({**SPLIT, "zero": 1}), 4)
    plan = make_plan(config, jax.devices()[0])
    layout = StepLayout(config, plan)
    state = layout.abstract_state()
    gram = state.optimizer["left_gram"]["layers"]["all"]["mlp"]["up"]
    assert gram.shape == (2, 32, 32) and gram.sharding.shard_shape(gram.shape) == (2, 8, 32)
    each = [
        sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(weight))
        for weight in weight_states(state.master, state.optimizer)
    ]
    own = state_of(config, Weights(config), case_of(config, plan))
    assert own.bytes_by_weight() == dict(zip(layout.weight_names, each, strict=True))
    update = update_of(config)
    assert update.state > 2 * ADAMW.state and update.embed_and_head_state == ADAMW.state and update.matrices is not None


def test_its_settings_are_checked():
    config = load_config(None, ["optimizer.name=soap", "optimizer.options={every: 3}"])
    validate(config)
    assert RuleRequest(config.optimizer, MATRIX).options(soap.Options) == soap.Options(every=3)
    with refused("optimizer.options", "evry", "every?"):
        SmallRun(small(optimizer={"name": "soap", "options": {"evry": 3}}))
    with refused("optimizer.options.every", "optimizer.name is adamw", "soap"):
        validate(load_config(None, ["optimizer.options.every=3"]))
    with refused("optimizer.options.momentum", "optimizer.name is soap", "muon"):
        validate(load_config(None, ["optimizer.name=soap", "optimizer.options.momentum=0.5"]))


def test_a_mesh_that_does_not_divide_its_matrices_is_one_sentence():
    config = small(model={"layers": 2, "mlp": 36}, optimizer=SOAP, parallel={"fsdp": 4, "tensor": 2})
    with refused("optimizer.name: soap", "left_gram of layers.all.mlp.down", "36", "tensor 2 x fsdp 4"):
        StepLayout(config, make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0]))
