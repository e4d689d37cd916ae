"""What the compiled program moves and multiplies is what the code asked for, on ten layouts."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.mesh.axes import AXES
from jaxpar.model.flops import flops_per_step
from jaxpar.training.step import TrainStep
from tests.compiler.inspected import CLUSTER, inspected, wide
from tests.traced import SENT, mesh_of, operations

DUALS = {
    "gather_sequence": "scatter_sequence",
    "gather_context": "scatter_context",
    "gather_weight": "scatter_gradient",
}

LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp, ZeRO-3": {"parallel": {"fsdp": 8, "zero": 3}},
    "tensor and context": {"parallel": {"tensor": 4, "context": 2}},
    "fsdp, ZeRO-2": {"parallel": {"fsdp": 8, "zero": 2, "microbatches": 2}},
    "fsdp, ZeRO-1": {"parallel": {"fsdp": 8, "zero": 1, "microbatches": 2}},
    "replicas": {"parallel": {"replica": 8, "zero": 0}},
    "HSDP, microbatches": {"parallel": {"replica": 2, "fsdp": 4, "zero": 3, "microbatches": 2}},
    "fsdp and tensor, full remat": {"parallel": {"fsdp": 4, "tensor": 2, "zero": 3}, "memory": {"remat": "full"}},
    "fsdp and context": {"parallel": {"fsdp": 2, "context": 4, "zero": 3}, "model": {"kv_heads": 2}},
    "expert axis, no remat": {
        "parallel": {"fsdp": 2, "expert": 2, "tensor": 2, "zero": 3},
        "memory": {"remat": "none"},
    },
    "all axes": {"parallel": {"fsdp": 2, "context": 2, "tensor": 2, "zero": 3}},
}
QUICK = ("fsdp, ZeRO-3", "tensor and context")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in LAYOUTS]


INTEGERS = {"s32": "int32", "pred": "bool"}
"""Left out: segment ids and the like, which XLA gathers once where neighbouring layers gather the same."""


def asked(config: Any, plan: Any) -> Counter[tuple[str, str]]:
    """Bytes that one device sends, by verb and axes, from the traced step and the formulas of the verbs."""
    mesh = mesh_of(**dict(plan.axes))
    step = TrainStep(config, plan, mesh)
    sent: Counter[tuple[str, str]] = Counter()
    for equation, times in operations(step.train, step.abstract_state(), step.abstract_batch()):
        kind = equation.primitive.name
        if kind not in SENT:
            continue
        named = equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = [
            axis for axis in AXES if axis in (named if isinstance(named, tuple) else (named,)) and mesh.shape[axis] > 1
        ]
        scopes = str(equation.source_info.name_stack).replace("(", "/").replace(")", "/").split("/")
        verbs = {*DUALS, *DUALS.values(), "reduce_sum", "reduce_max"}
        verb = next(scope for scope in reversed(scopes) if scope in verbs)
        if kind == "reduce_scatter":
            verb = DUALS.get(verb, verb)
        elif kind == "all_gather":
            verb = {dual: name for name, dual in DUALS.items()}.get(verb, verb)
        ranks = prod(mesh.shape[axis] for axis in axes)
        arrays = [v.aval for v in equation.invars if v.aval.dtype.name not in INTEGERS.values()]
        size = sum(array.size * array.dtype.itemsize for array in arrays)
        sent[verb, "+".join(axes)] += times * SENT[kind](size, ranks)
    return +sent


@pytest.mark.parametrize("name", NAMES)
def test_the_program_moves_what_the_verbs_say_and_multiplies_what_the_model_says(name: str):
    config, plan = plan_for(wide(**LAYOUTS[name]), parse_cluster(CLUSTER))
    analysis, report = inspected(wide(**LAYOUTS[name]))

    found: dict[tuple[str, str], float] = {}
    for row in report.collectives:
        if row.dtype not in INTEGERS:
            found[row.verb, row.axis] = found.get((row.verb, row.axis), 0) + row.bytes
    assert found == dict(asked(config, plan))

    model, data = config.model, config.data
    tokens = data.batch_size * data.sequence_length
    whole_blocks = data.batch_size * data.sequence_length**2
    model_flops = flops_per_step(model, tokens, whole_blocks, model.vocab or 0) / plan.axes.devices
    assert report.flops - report.recompute_flops == pytest.approx(model_flops, rel=0.01)

    classes = sum(size for kind, size in report.classes.items() if kind != "host")
    assert classes == pytest.approx(report.peak_bytes, rel=0.02)
    assert analysis.compilation.memory.peak == report.peak_bytes
