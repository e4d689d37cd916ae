"""The layout of a plan's step, which the step obeys."""

from dataclasses import FrozenInstanceError, replace

import jax
import pytest

from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.training.step.train_step import TrainStep
from tests.sentences import refused
from tests.small_run import SmallRun, small


def test_a_layout_is_frozen_and_knows_no_devices():
    layout = SmallRun(small(parallel={"fsdp": 2})).step.layout
    with pytest.raises(FrozenInstanceError):
        layout.plan = layout.plan  # pyright: ignore[reportAttributeAccessIssue]
    shardings = [leaf.sharding for leaf in jax.tree.leaves(layout.abstract_state())]
    assert all(isinstance(sharding.mesh, jax.sharding.AbstractMesh) for sharding in shardings)


@pytest.mark.parametrize(
    ("asked", "here", "on_gpus"),
    [("auto", "float32", "bfloat16"), ("float32", "float32", "float32"), ("bfloat16", "bfloat16", "bfloat16")],
)
def test_muon_multiplies_in_the_dtype_that_is_asked_for_or_in_that_of_the_platform(asked: str, here: str, on_gpus: str):
    config = resolve_config(small(optimizer={"name": "muon", "options": {"matrix_dtype": asked}}), 1)
    cluster = parse_cluster("h100:1x1")
    assert make_plan(config, DescribedGPU.from_gpu(cluster.gpu), 1, cluster, 2**30).dtypes.matrix == on_gpus
    plan = make_plan(config, jax.devices()[0], 1)
    assert plan.dtypes.matrix == here
    step = TrainStep(StepLayout(with_vocab(config, 64), plan), build_mesh(plan.axes, jax.devices()[:1]))
    inputs = step.residency.abstract_input(), step.layout.abstract_batch(step.mesh)
    lowered = step.train.lower(*inputs, step.layout.abstract_arguments(step.mesh))
    assert ("bf16" in lowered.as_text()) == (here == "bfloat16")


def test_a_plan_with_another_dtype_of_muon_than_is_asked_for_is_refused():
    asking = lambda dtype: resolve_config(small(optimizer={"name": "muon", "options": {"matrix_dtype": dtype}}), 1)
    config, device = asking("bfloat16"), jax.devices()[0]
    plan = make_plan(config, device, 1)
    other = replace(plan, dtypes=replace(plan.dtypes, matrix="float32"))
    check_plan(plan, config, device, 1)
    check_plan(other, asking("auto"), device, 1)
    with refused("plan.dtypes.matrix", "float32", "optimizer.options.matrix_dtype is 'bfloat16'"):
        check_plan(other, config, device, 1)
