"""What a step is estimated to take, against what XLA allocates for it on H100s."""

from __future__ import annotations

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, load_config
from jaxpar.config.schema import Pattern
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.training.memory_estimate import estimate_memory, estimated_bytes
from jaxpar.training.step import TrainStep
from tests.compiler.inspected import assert_planned, inspected, wide
from tests.traced import mesh_of

pytestmark = pytest.mark.long

MODEL = {"layers": 8, "embed": 1024, "heads": 8, "kv_heads": 8, "mlp": 3072, "vocab": 16384}
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp": {"parallel": {"fsdp": 8, "microbatches": 2}},
    "pipeline-full-int8": {
        "parallel": {"pipe": 2, "fsdp": 2, "tensor": 2, "zero": 2, "microbatches": 4},
        "memory": {"remat": "full"},
        "precision": {"compute": "bfloat16", "moments": "int8"},
    },
    "two kinds, in other places of each stage": {
        "model": {
            "kinds": {"local": {"window": 256, "mlp": 2048}, "global": {"norm_placement": "sandwich"}},
            "pattern": Pattern(("local", "local", "global"), suffix=("local", "local")),
        },
        "parallel": {"pipe": 2, "fsdp": 4, "zero": 1, "microbatches": 4},
    },
}


def config_of(layout: str) -> Config:
    sections = LAYOUTS[layout] | {"model": MODEL | LAYOUTS[layout].get("model", {})}
    return wide(data={"sequence_length": 2048, "batch_size": 32}, **sections)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_estimate_is_within_a_tenth_of_what_xla_allocates(layout: str):
    analysis, report = inspected(config_of(layout), "h100:1x8")
    plan = analysis.compilation.plan
    step = TrainStep(config_of(layout), plan, mesh_of(**dict(plan.axes)))
    if not layout.startswith("pipeline"):
        assert_planned(config_of(layout), "h100:1x8", analysis, report)
    assert estimated_bytes(step) == pytest.approx(report.allocated_bytes, rel=0.1)
    estimate = estimate_memory(step)
    assert estimate.optimizer == pytest.approx(report.classes["optimizer"], rel=0.01)
    assert estimate.saved_activations == pytest.approx(report.classes["saved_activations"], rel=0.1)


def test_the_estimate_of_gemma_is_within_a_twentieth_of_what_xla_allocates():
    """Of its gradients XLA has the tied embedding's once more, as of the same model with layers that are alike."""
    config, cluster = load_config("configs/gemma3_1b.yaml", ["attention.backend=xla"]), "h100:1x8"
    analysis, report = inspected(config, cluster)
    config, plan = plan_for(config, parse_cluster(cluster))
    estimate = estimate_memory(TrainStep(config, plan, mesh_of(**dict(plan.axes))))
    assert_planned(config, cluster, analysis, report)
    assert estimate.device == pytest.approx(report.allocated_bytes, rel=0.05)
    for name in ("optimizer", "weights", "saved_activations"):
        assert getattr(estimate, name) == pytest.approx(report.classes[name], rel=0.05), name
