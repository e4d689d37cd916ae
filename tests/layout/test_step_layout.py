"""The layout of a plan's step, which the step obeys."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import jax
import pytest

from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import StepLayout
from jaxpar.training.step.train_step import TrainStep
from tests.small_run import SmallRun, small

STAY = {"embedding.tokens", "layers.mlp.up"}


def on_device(layout: StepLayout, state: TrainState) -> set[str]:
    kinds: list[Any] = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.master)]
    return {name for name, kind in zip(layout.weight_names, kinds, strict=True) if kind == "device"}


def test_the_state_stays_where_the_plan_states_weight_by_weight():
    run = SmallRun(small(memory={"optimizer_offload": "host"}, parallel={"fsdp": 2, "zero": 1}))
    assert on_device(run.step.layout, run.step.residency.initial_state()) == set()
    plan = replace(run.step.layout.plan, resident_weights=tuple(STAY))
    step = TrainStep(StepLayout(run.config, plan), run.step.mesh)
    state = step.residency.initial_state()
    assert on_device(step.layout, state) == STAY
    state, _ = step.residency.advance(step.train, state, run.batch(0))
    assert on_device(step.layout, state) == STAY


def test_a_layout_is_frozen_and_knows_no_devices():
    layout = SmallRun(small(parallel={"fsdp": 2})).step.layout
    with pytest.raises(FrozenInstanceError):
        layout.plan = layout.plan  # pyright: ignore[reportAttributeAccessIssue]
    shardings = [leaf.sharding for leaf in jax.tree.leaves(layout.abstract_state())]
    assert all(isinstance(sharding.mesh, jax.sharding.AbstractMesh) for sharding in shardings)
