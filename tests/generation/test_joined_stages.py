"""The weights of a pipeline become those of generation without a whole copy on any device."""

import re
from math import prod

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema.model import Pattern
from jaxpar.generation.joined_stages import joined_mesh, row_program
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.training.run.continuing import generator_of
from jaxpar.training.run.run import Run
from tests.small_run import layout_of, small


def test_a_layer_is_never_gathered_over_devices() -> None:
    """The program that moves it has no array larger than a stage's own part of the stack."""
    mesh = build_mesh(AxisSizes(pipe=2, replica=1, fsdp=2, expert=1, context=1, tensor=2))
    stored, spec = PartitionSpec("pipe", "fsdp", "tensor"), PartitionSpec("fsdp", "tensor")
    stack = jax.ShapeDtypeStruct((8, 32, 16), np.float32, sharding=NamedSharding(mesh, stored))
    program = row_program(mesh, stored, spec, "float32").lower(stack, np.int32(0)).compile()
    shapes = [prod(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", program.as_text())]
    assert max(shapes) == 4 * 16 * 8, "4 layers of the stage, and an eighth of them on each device"
    memory = program.memory_analysis()
    assert memory.output_size_in_bytes == 4 * 32 * 16 // 8
    assert memory.temp_size_in_bytes <= 4 * 3 * 16 * 8, "a few parts of one layer"


def test_layers_of_uneven_stages_and_kinds_are_where_generation_reads_them() -> None:
    model = {
        "layers": 3, "kinds": {"local": {"window": 5}, "wide": {"mlp": 64}},
        "pattern": Pattern(unit=("local", "local", "wide")),
    }  # fmt: skip
    parallel = {"pipe": 2, "fsdp": 2, "tensor": 2, "stage_layers": (2, 1), "pipe_ends": "shared", "zero": 2}
    config = small(model=model, parallel=parallel)
    run = Run(config, devices=jax.devices()[: layout_of(config.parallel)])
    generator = generator_of(run, 0)
    assert dict(generator.mesh.shape) == dict(joined_mesh(run.mesh).shape) | {"pipe": 1, "fsdp": 4}
    weights, wanted = generator._weights, run.evaluated_weights()
    for kind, stack in run.layout.order.stacks.items():
        for place, row in enumerate(stack.row_of_layer):
            ours = weights[LAYERS][kind][place]
            theirs = jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[row], wanted[LAYERS][kind])
            jax.tree.map(lambda one, other: np.testing.assert_array_equal(np.asarray(one), other), ours, theirs)
            up = ours["mlp"]["up"]
            assert up.addressable_shards[0].data.size * 8 == up.size, "on each of the devices an eighth"
    for name in wanted.keys() - {LAYERS}:
        ends = jax.tree.map(np.asarray, (weights[name], wanted[name]))
        jax.tree.map(np.testing.assert_array_equal, *ends)
