"""The planner's closed forms of memory, against the estimate that traces, and against XLA."""

from __future__ import annotations

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.schema import Pattern
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.mesh.build import abstract_mesh
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.program import make_program
from jaxpar.pipeline.schedules import SCHEDULES, make_schedule
from jaxpar.planner.memory import MemoryModel
from jaxpar.planner.memory_slots import pipeline_slots
from jaxpar.training.memory_estimate import estimate_memory
from jaxpar.training.step import TrainStep
from tests.compiler.inspected import assert_planned, inspected, wide
from tests.planner.spaces import model_of

KINDS = {
    "kinds": {"local": {"window": 256, "mlp": 2048}, "global": {"norm_placement": "sandwich"}},
    "pattern": Pattern(("local", "local", "global"), suffix=("local", "local")),
}
"""Of 8 layers; two halves have 3 local ones and a global one, in places that differ, and so 5 slots."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "ZeRO-3, two microbatches": {"parallel": {"fsdp": 8, "zero": 3, "microbatches": 2}},
    "one microbatch, fewer key heads": {"parallel": {"fsdp": 4, "tensor": 2}, "model": {"kv_heads": 1}},
    "HSDP with a gate, Lion in 8 bits": {
        "parallel": {"replica": 2, "fsdp": 4, "zero": 2},
        "model": {"activation": "swiglu", "tied": True},
        "optimizer": {"name": "lion"},
        "precision": {"compute": "bfloat16", "moments": "int8"},
    },
    "pipeline with chunks held whole": {
        "parallel": {"pipe": 2, "fsdp": 4, "zero": 3, "schedule": "breadth-first", "virtual_stages": 2,
                     "microbatches": 4},
    },
    "context and tensor, all made again": {
        "parallel": {"context": 2, "tensor": 2, "fsdp": 2},
        "memory": {"remat": "full"},
        "optimizer": {"name": "muon", "ema": 0.99},
    },
    "state on the host": {"parallel": {"fsdp": 8, "zero": 1}, "memory": {"optimizer_offload": "host"}},
    "state in files": {"parallel": {"fsdp": 8, "zero": 2, "microbatches": 2}, "memory": {"optimizer_offload": "file"}},
    "state in files, one microbatch": {"parallel": {"fsdp": 8, "zero": 1}, "memory": {"optimizer_offload": "file"}},
    "activations on the host, a split backward": {
        "parallel": {"pipe": 4, "fsdp": 2, "zero": 1, "microbatches": 8, "schedule": "zb-v", "virtual_stages": 2},
        "memory": {"remat": {"preset": "full", "layer_input": "offload"}},
    },
    "whole weights from the host": {
        "parallel": {"fsdp": 8, "zero": 1},
        "memory": {"optimizer_offload": "host"},
        "optimizer": {"name": "adafactor", "weight_decay": 0.0},
        "model": {"layers": 64, "mlp": 16384, "embed": 4096},
    },
    "two kinds of layers": {"model": KINDS, "parallel": {"fsdp": 8, "zero": 3, "microbatches": 2}},
    "two kinds in a pipeline, in other places of each stage": {
        "model": KINDS, "parallel": {"pipe": 2, "fsdp": 4, "zero": 1, "microbatches": 4},
    },
    "two kinds in chunks held whole": {
        "model": KINDS,
        "parallel": {"pipe": 2, "fsdp": 4, "zero": 3, "schedule": "breadth-first", "virtual_stages": 2,
                     "microbatches": 4},
    },
    "two kinds, on the host and a split backward": {
        "model": KINDS,
        "parallel": {"pipe": 2, "fsdp": 4, "zero": 1, "microbatches": 4, "schedule": "zb-uniform"},
        "memory": {"remat": {"preset": "full", "layer_input": "offload"}},
    },
    "two kinds, state in files": {
        "model": KINDS, "parallel": {"fsdp": 8, "zero": 1}, "memory": {"optimizer_offload": "file"},
    },
    "two kinds, whole weights from the host": {
        "model": KINDS | {"mlp": 16384, "embed": 4096},
        "parallel": {"fsdp": 8, "zero": 1},
        "memory": {"optimizer_offload": "host"},
        "optimizer": {"name": "adafactor", "weight_decay": 0.0},
    },
}  # fmt: skip


def both(config: Config) -> tuple[Any, Any]:
    config, plan = plan_for(config, parse_cluster("h100:1x8"))
    traced = plan.with_attention("xla")
    return MemoryModel(config).of_plan(config, plan), estimate_memory(
        TrainStep(config, traced, abstract_mesh(plan.axes))
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_closed_forms_are_what_tracing_finds(name: str):
    found, traced = both(model_of(**LAYOUTS[name]))
    in_files = LAYOUTS[name].get("memory", {}).get("optimizer_offload") == "file"
    for kind, size in traced._asdict().items():
        if kind == "host" and in_files:
            assert found.host <= PIECES * PIECE_BYTES, "of the host only the buffers of pieces on their way"
            size = found.host
        assert getattr(found, kind) == pytest.approx(size, rel=2e-3, abs=4096), kind


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "one-stage"])
def test_slots_by_formula_are_those_of_the_program(name: str):
    for ranks, microbatches, virtual in ((2, 2, 1), (2, 6, 2), (4, 4, 2), (4, 8, 1), (4, 12, 3), (4, 16, 2)):
        try:
            table = make_schedule(name, ranks=ranks, microbatches=microbatches, virtual_stages=virtual)
        except ScheduleError:
            continue
        for hold in (False, True) if name == "breadth-first" and virtual > 1 else (False,):
            program = make_program(table, hold=hold)
            found = pipeline_slots(name, ranks, microbatches, virtual, hold)._asdict()
            assert {buffer: found[buffer] for buffer in program.slots} == program.slots
            assert found["heads"] == sum(run.head for run in program.runs)


# Six more are compared where they are compiled anyway: tests/compiler/test_{memory_estimate,offload,remat}.py.
COMPILED: dict[str, dict[str, Any]] = {
    "tensor and fsdp": {"parallel": {"fsdp": 4, "tensor": 2, "zero": 1, "microbatches": 2}},
    "pipeline": {"parallel": {"pipe": 4, "fsdp": 2, "zero": 1, "microbatches": 8}},
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMPILED)
def test_memory_is_within_a_twentieth_of_what_xla_allocates(name: str):
    model = {"layers": 8, "embed": 1024, "heads": 8, "kv_heads": 8, "mlp": 3072, "vocab": 16384}
    config = wide(model=model, data={"sequence_length": 2048, "batch_size": 32}, **COMPILED[name])
    assert_planned(config, "h100:1x8", *inspected(config, "h100:1x8"))
