"""The training step of a deep decoder compiled for eight H100s: its memory, and what its loops over layers wait for."""

import re
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
from jax import lax

from jaxpar.config.kinds import ALL
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.materialize import gather, to_accumulators
from jaxpar.mesh.placements import bytes_per_device
from jaxpar.pipeline.execution.inputs import Seeds
from jaxpar.runtime.passes import Side
from jaxpar.training.step import forward_backward
from jaxpar.training.step.train_step import TrainStep
from tests.gpu_compile import compile_for_gpu, h100s
from tests.small_run import small

LAYERS, DEVICES = 24, 8


def measure(*cases: str) -> dict[str, Any]:
    """Facts of the step compiled under each remat preset, or with `plain_scan`: see `facts_of`."""
    facts = {case: facts_of(case) for case in cases if case != "plain_scan"}
    if "plain_scan" in cases:
        with mock.patch.object(forward_backward, "execute", execute_plainly):
            facts["plain_scan"] = facts_of("none")
    return facts


def facts_of(remat: str) -> dict[str, Any]:
    """Compile a step under ZeRO-3: wide layers, one short row a device, so that weights are what memory holds.

    Returns bytes per device: `temporaries` of the program, a `gathered` layer, the `shards` of all layers' weights and
    gradients; and `loops`, per loop over layers, from `loop_facts`.
    """
    devices = h100s("1x1x8")
    config = small(
        model={"layers": LAYERS, "embed": 2048, "heads": 16, "kv_heads": 16, "mlp": 8192},
        parallel={
            "fsdp": DEVICES,
            "zero": 3,
            "overlap": {"layer_unroll": 1},
        },  # of two, the second waits in its own turn
        precision={"compute": "bfloat16"},
        memory={"remat": remat},
        attention={"backend": "xla"},
    )
    config = resolve_config(config, DEVICES)
    plan = make_plan(config, devices[0])
    step = TrainStep(StepLayout(config, plan), build_mesh(plan.axes, devices))
    layout, mesh = step.layout, step.mesh
    inputs = layout.abstract_state(mesh), layout.abstract_batch(mesh), layout.abstract_arguments(mesh)
    compiled = compile_for_gpu(step.train, *inputs)
    layers, roles = step.layout.specs["layers"], step.layout.placements
    held = lambda role: bytes_per_device(layers, type(role)(role.layout["layers"], role.dtype), plan.axes)
    return {
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "gathered": held(roles.compute) // LAYERS,
        "shards": held(roles.storage) + held(roles.gradient),
        "loops": loop_facts(compiled.as_text()),
    }


def execute_plainly(
    program: Any, stages: Any, weights: Any, accumulators: Any, microbatches: Any, seeds: Seeds, shared: Any
) -> tuple[Any, Any, Side]:
    """What one would write first, with the numbers of `execute`: one microbatch, its layers left to autodiff."""
    data = jax.tree.map(lambda a: a[0], microbatches) | shared

    def objective(accumulators: Any, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        x = scan_layers(stages, weights["layers"][ALL], accumulators["layers"][ALL], x, stages.token_context(data))
        return stages.loss(weights, accumulators, x, data)

    value, pullback, reported = jax.vjp(objective, accumulators, stages.embed(weights, data), has_aux=True)
    gradients, dx = pullback(vary(seeds.objective.astype(value.dtype), varying_axes(value)))
    return stages.embed_gradients(weights, data, dx, gradients), reported, Side({}, None, None)


def scan_layers(stages: Any, weights: Any, accumulators: Any, x: jax.Array, tokens: Any) -> jax.Array:
    """A scan that gathers."""

    @jax.custom_vjp
    def load(w: Any, accumulator: Any) -> Any:
        return gather(w, stages.placements, part=("layers", ALL), unstacked=True)

    load.defvjp(
        lambda w, accumulator: (load(w, accumulator), None),
        lambda _, dw: (None, to_accumulators(dw, stages.placements, part=("layers", ALL), unstacked=True)),
    )

    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        index, w, accumulator = layer
        return stages.loop.stacks[ALL].program.run(load(w, accumulator), x, index, tokens[ALL])[0], None

    return lax.scan(body, vary(x), (vary(jax.numpy.arange(LAYERS)), weights, accumulators))[0]


@dataclass(frozen=True)
class Instruction:
    """A line of a scheduled program."""

    name: str
    opcode: str
    operands: frozenset[str]
    text: str


def computations(program: str) -> dict[str, list[Instruction]]:
    """The computations of an HLO text, each with its instructions in the order in which they are issued."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in program.splitlines():
        head = re.match(r"(?:ENTRY )?%([\w.-]+) \(.*\{$", line)
        if head:
            current = found.setdefault(head[1], [])
        body = re.match(r"  (?:ROOT )?%([\w.-]+) = .*? ([\w-]+)\((.*)$", line)
        if body:
            operands = re.findall(r"%([\w.-]+)", body[3].split("), ")[0])
            current.append(Instruction(body[1], body[2], frozenset(operands), line))
    return found


def loop_facts(program: str) -> list[dict[str, int]]:
    """For each loop that gathers weights in its body: `matmuls`, how many of them are `waiting` for a gather of the
    same body, `gathers`, and how many of those are `hidden`: a matmul is issued between their start and their end."""
    parts = computations(program)
    bodies = set(re.findall(r"body=%([\w.-]+)", program))

    def multiplies(instruction: Instruction) -> bool:
        called = re.findall(r"calls=%([\w.-]+)", instruction.text)
        return (
            instruction.opcode == "dot"
            or "__cublas" in instruction.text
            or any(multiplies(inner) for name in called for inner in parts[name])
        )

    facts = []
    for instructions in (parts[name] for name in sorted(bodies)):
        starts = [i for i, each in enumerate(instructions) if each.opcode == "all-gather-start"]
        if not starts:
            continue
        matmuls = [i for i, each in enumerate(instructions) if multiplies(each)]
        after: set[str] = set()
        for each in instructions:
            if each.opcode == "all-gather-start" or each.operands & after:
                after.add(each.name)
        ends = {next(iter(e.operands)): i for i, e in enumerate(instructions) if e.opcode == "all-gather-done"}
        hidden = [s for s in starts if any(s < matmul < ends[instructions[s].name] for matmul in matmuls)]
        waiting = [i for i in matmuls if instructions[i].name in after]
        facts.append({"matmuls": len(matmuls), "waiting": len(waiting), "gathers": len(starts), "hidden": len(hidden)})
    return facts
