"""The estimate of memory, against what tracing and the state's shapes say, and against XLA."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, load_config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.plan import Choice, Plan
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.pipeline import schedule_of
from jaxpar.layout.memory.estimate import MemoryEstimate, case_of, chunk_bytes, estimate_memory, offloaded_bytes
from jaxpar.layout.memory.fixed import parts_of, state_of
from jaxpar.layout.memory.slots import pipeline_slots
from jaxpar.layout.memory.state_bytes import frozen_bytes, host_gradient_bytes, offloaded_state_bytes, state_bytes
from jaxpar.layout.memory.weights import Weights
from jaxpar.layout.state import weight_states
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.layer_shape import ITEM_BYTES
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.mesh.parameters import subtree_like
from jaxpar.mesh.placements import bytes_per_device
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.execution.make_program import make_program
from jaxpar.pipeline.schedules import SCHEDULES, make_schedule
from jaxpar.pipeline.tables import format_schedule
from tests.compiler.inspected import assert_planned, inspected, wide
from tests.planner.spaces import model_of
from tests.sentences import named
from tests.traced_bytes import traced_bytes

KINDS = (
    "model.kinds={local: {window: 256, mlp: 2048}, global: {norm_placement: sandwich}}",
    "model.pattern={unit: [local, local, global], suffix: [local, local]}",
)
"""Of 8 layers; two halves have 3 local ones and a global one, in places that differ, and so 5 slots."""

LAYOUTS = named("""
    ZeRO-3, two microbatches: parallel.fsdp=8 | parallel.zero=3 | parallel.microbatches=2
    one microbatch, fewer key heads: parallel.fsdp=4 | parallel.tensor=2 | model.kv_heads=1
    HSDP with a gate, Lion in 8 bits: parallel.replica=2 | parallel.fsdp=4 | parallel.zero=2 |
        model.activation=swiglu | model.tied=true | optimizer.name=lion | precision.compute=bfloat16 |
        precision.moments=int8
    pipeline with chunks held whole: parallel.pipe=2 | parallel.fsdp=4 | parallel.zero=3 |
        parallel.schedule=breadth-first | parallel.virtual_stages=2 | parallel.microbatches=4
    context and tensor, all recomputed: parallel.context=2 | parallel.tensor=2 | parallel.fsdp=2 | memory.remat=full |
        optimizer.name=muon | optimizer.ema=0.99
    state on the host: parallel.fsdp=8 | parallel.zero=1 | memory.optimizer_offload=host
    state in files: parallel.fsdp=8 | parallel.zero=2 | parallel.microbatches=2 | memory.optimizer_offload=file
    state in files, one microbatch: parallel.fsdp=8 | parallel.zero=1 | memory.optimizer_offload=file
    activations on the host, a split backward: parallel.pipe=4 | parallel.fsdp=2 | parallel.zero=1 |
        parallel.microbatches=8 | parallel.schedule=zb-v | parallel.virtual_stages=2 |
        memory.remat={preset: full, layer_input: offload}
    whole weights from the host: parallel.fsdp=8 | parallel.zero=1 | memory.optimizer_offload=host |
        optimizer.name=adafactor | optimizer.weight_decay=0.0 | model.layers=64 | model.mlp=16384 | model.embed=4096
    layers on the host: parallel.fsdp=8 | parallel.zero=3 | parallel.microbatches=2 | memory.optimizer_offload=host |
        memory.weights_offload=host
    state over replicas, Muon: parallel.replica=4 | parallel.fsdp=2 | parallel.zero=3 |
        parallel.overlap.shard_state_over_replicas=true | optimizer.name=muon | optimizer.ema=0.99
    state over replicas in files, dims that do not divide: parallel.replica=4 | parallel.fsdp=2 | parallel.zero=1 |
        parallel.overlap.shard_state_over_replicas=true | model.embed=1020 | model.heads=6 | model.kv_heads=2 |
        model.head_dim=128 | memory.optimizer_offload=file
    state over replicas alone, on the host: parallel.replica=8 | parallel.zero=1 |
        parallel.overlap.shard_state_over_replicas=true | memory.optimizer_offload=host
    products of two, Muon: model.low_rank={query: 256, key: 128, output: 300, gate: 200, up: 384, down: 384} |
        parallel.fsdp=2 | parallel.tensor=4 | parallel.zero=3 | parallel.microbatches=2 | optimizer.name=muon
    two kinds of layers: KINDS | parallel.fsdp=8 | parallel.zero=3 | parallel.microbatches=2
    two kinds in a pipeline, in other places of each stage: KINDS | parallel.pipe=2 | parallel.fsdp=4 |
        parallel.zero=1 | parallel.microbatches=4
    two kinds in chunks held whole: KINDS | parallel.pipe=2 | parallel.fsdp=4 | parallel.zero=3 |
        parallel.schedule=breadth-first | parallel.virtual_stages=2 | parallel.microbatches=4
    two kinds, on the host and a split backward: KINDS | parallel.pipe=2 | parallel.fsdp=4 | parallel.zero=1 |
        parallel.microbatches=4 | parallel.schedule=zb-uniform | memory.remat={preset: full, layer_input: offload}
    two kinds, state in files: KINDS | parallel.fsdp=8 | parallel.zero=1 | memory.optimizer_offload=file
    two kinds, whole weights from the host: KINDS | model.mlp=16384 | model.embed=4096 | parallel.fsdp=8 |
        parallel.zero=1 | memory.optimizer_offload=host | optimizer.name=adafactor | optimizer.weight_decay=0.0
""")


def planned(name: str) -> tuple[Config, Plan]:
    asked = [one for key in LAYOUTS[name] for one in (KINDS if key == "KINDS" else (key,))]
    return plan_for(with_overrides(model_of(), asked), parse_cluster("h100:1x8"))


@pytest.mark.matrix(quick=11, ci=11)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layers_keep_and_send_what_tracing_finds(name: str):
    config, plan = planned(name)
    traced = traced_bytes(config, plan)
    assert chunk_bytes(config, plan) == (traced.stash, traced.kept, traced.sent)
    assert offloaded_bytes(config, plan) == StepLayout(config, plan).program.slots["stash"] * traced.offloaded


@pytest.mark.parametrize("remat", ["full", "selective"])
def test_scales_of_rows_of_experts_are_kept_and_counted(remat: str):
    """`fp8_current` has two for each row that a layer has room for; scales of tensors are a few numbers, and not
    counted."""

    def found(matmul: str | None) -> tuple[int, int]:
        config, plan = plan_for(
            model_of(
                model={"layers": 4, "experts": ExpertsConfig(count=8, per_token=2, width=512)},
                parallel={"expert": 4, "fsdp": 2, "experts": {"exchange": "all_to_all", "capacity": 1.5}},
                memory={"remat": remat},
                precision={"matmul": matmul, "matmul_options": MatmulOptions(("head",), 0, 0)} if matmul else {},
            ),
            parse_cluster("h100:1x8"),
        )
        return chunk_bytes(config, plan)[0], traced_bytes(config, plan).stash

    # Beside rows themselves, of which each slice has room for a few more than is counted.
    counted, traced = (scaled - plain for plain, scaled in zip(found(None), found("fp8_current"), strict=True))
    assert counted > 4 * 8 * 4096 and counted <= traced <= counted + 4096


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_weight_and_its_state_count_once(name: str):
    config, plan = planned(name)
    layout, case, found = StepLayout(config, plan), case_of(config, plan), estimate_memory(config, plan)
    parts, rows = parts_of(Weights(config), case), case.local_rows
    updated = layout.placements.optimizer
    apart = StepLayout(config, replace(plan, shard_state_over_replicas=Choice(False)))
    roles = {"compute": layout.placements.compute, "sharded": apart.placements.optimizer, "updated": updated}
    for form, role in roles.items():
        embed_and_head = sum(getattr(part, form) for part in parts.embed_and_head.values())
        elements = embed_and_head + sum(getattr(part, form) * rows[kind] for kind, part in parts.layers.items())
        assert elements * ITEM_BYTES[role.dtype] == bytes_per_device(layout.specs, role, plan.axes)
    match plan.optimizer_offload:
        case "none":
            assert found.optimizer == pytest.approx(state_bytes(layout), rel=2e-3, abs=4096)
        case "host":
            away = offloaded_state_bytes(layout) + host_gradient_bytes(layout) + offloaded_bytes(config, plan)
            assert found.host == pytest.approx(away, rel=2e-3, abs=4096)
        case "file":
            assert found.host <= PIECES * PIECE_BYTES, "of the host only the buffers of pieces on their way"
            arguments = replace(layout.placements.optimizer, dtype=plan.dtypes.storage)
            assert plan.zero < 3, "the weights that come, sharded, are not those that are stored"
            assert found.optimizer == bytes_per_device(layout.specs, arguments, plan.axes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_state_of_each_weight_is_what_its_shapes_take(name: str):
    config, plan = planned(name)
    layout = StepLayout(config, plan)
    state = layout.abstract_state()
    each = [
        sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(weight))
        for weight in weight_states(state.master, state.optimizer)
    ]
    own = state_of(config, Weights(config), case_of(config, plan))
    assert own.bytes_by_weight() == dict(zip(layout.weight_names, each, strict=True))


@pytest.mark.parametrize(
    "parallel", [{"fsdp": 8, "zero": 1}, {"pipe": 2, "fsdp": 2, "tensor": 2, "zero": 3, "microbatches": 4}], ids=str
)
def test_frozen_weights_have_no_moments_master_copies_or_gradients(parallel: dict[str, int]):
    """Of 12 bytes a weight (master weight, two moments) and 4 of its gradient, only those of the factors are left."""
    sections = {"parallel": parallel, "lora": {"rank": 4}, "run": {"init_from": "not opened"}}
    config, plan = plan_for(model_of(**sections), parse_cluster("h100:1x8"))
    layout, found = StepLayout(config, plan), estimate_memory(config, plan)
    role = layout.placements.optimizer
    trained = bytes_per_device(layout.trained, replace(role, layout=layout.master), plan.axes) // 4
    assert found.optimizer == 12 * trained
    assert trained < 0.05 * bytes_per_device(layout.specs, role, plan.axes) / 4
    own = state_of(config, Weights(config), case_of(config, plan))
    assert (
        tuple(own.bytes_by_weight()) == layout.weight_names and sum(own.bytes_by_weight().values()) == found.optimizer
    )
    stored = replace(layout.placements.storage, layout=layout.state.frozen)
    assert frozen_bytes(layout) == bytes_per_device(layout.frozen, stored, plan.axes) <= found.weights
    compute = replace(role, layout=subtree_like(layout.placements.compute.layout, layout.trained))
    whole = bytes_per_device(layout.trained, compute, plan.axes)
    assert found.gradients <= 2 * whole, "those that accumulate, and those of a layer"


def test_a_schedule_from_a_table_takes_as_much_as_the_published_one(tmp_path: Path):
    config, plan = planned("activations on the host, a split backward")
    table = tmp_path / "own.csv"
    table.write_text(format_schedule(schedule_of(plan)))
    assert estimate_memory(config, replace(plan, schedule=str(table))) == estimate_memory(config, plan)


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


def test_codes_with_scales_of_squares_are_counted_with_these():
    """As stored codes with one scale, and a float32 for each 128 x 128 of the matrices of all rows."""
    excepted = MatmulOptions(("head",), 0, 0)

    def found(matmul: str) -> MemoryEstimate:
        config = load_config("configs/llama3_8b.yaml", ("model.layers=4", f"precision.matmul={matmul}"))
        config = replace(config, precision=replace(config.precision, matmul_options=excepted))
        return estimate_memory(*plan_for(config, parse_cluster("h100:1x8")))

    squares, delayed = found("fp8_block"), found("fp8_delayed")
    assert squares.weights == delayed.weights
    weights = 4 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    assert squares.temporaries - delayed.temporaries == 4 * weights // 128**2
