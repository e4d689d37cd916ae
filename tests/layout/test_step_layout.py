"""The layout of a plan's step, which the step obeys."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import jax
import pytest

from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.training.step.train_step import TrainStep
from tests.small_run import SmallRun, small


def test_a_layout_is_frozen_and_knows_no_devices():
    layout = SmallRun(small(parallel={"fsdp": 2})).step.layout
    with pytest.raises(FrozenInstanceError):
        layout.plan = layout.plan  # pyright: ignore[reportAttributeAccessIssue]
    shardings = [leaf.sharding for leaf in jax.tree.leaves(layout.abstract_state())]
    assert all(isinstance(sharding.mesh, jax.sharding.AbstractMesh) for sharding in shardings)


def test_muon_multiplies_in_the_dtype_of_the_platform():
    config = resolve_config(small(optimizer={"name": "muon"}), 1)
    cluster = parse_cluster("h100:1x1")
    assert make_plan(config, DescribedGPU.of(cluster.gpu), 1, cluster, 2**30).dtypes.matrix == "bfloat16"
    plan = make_plan(config, jax.devices()[0], 1)
    assert plan.dtypes.matrix == "float32"
    for dtype in ("float32", "bfloat16"):
        planned = replace(plan, dtypes=replace(plan.dtypes, matrix=dtype))
        step = TrainStep(StepLayout(with_vocab(config, 64), planned), build_mesh(plan.axes, jax.devices()[:1]))
        inputs = step.residency.abstract_input(), step.layout.abstract_batch(step.mesh)
        lowered = step.train.lower(*inputs, step.layout.abstract_arguments(step.mesh))
        assert ("bf16" in lowered.as_text()) == (dtype == "bfloat16")
