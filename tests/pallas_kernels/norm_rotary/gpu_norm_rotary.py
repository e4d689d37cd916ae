"""The kernels of norm and rotary embedding compiled for GPUs that are not here; child only."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpar.compiler.targets import target_config
from jaxpar.hardware.catalogue import gpu_named
from pallas_kernels.norm_rotary import norm_rotary
from tests.gpu_compile import QUICKLY
from tests.pallas_kernels.attention.triton.gpu_attention import described


def kernels(gpu: str, tokens: int, heads: int, width: int, dtype: str) -> list[tuple[str, dict[str, int]]]:
    """Name and resources of both kernels in a checked `shard_map` over eight GPUs: rows over `fsdp`, the sequence over
    `context`, heads over `tensor`. Sizes are those of a GPU."""
    devices = get_topology_desc(gpu, "cuda", target_config=target_config(gpu_named(gpu)), topology="1x1x8").devices
    names = ("fsdp", "context", "tensor")
    mesh = Mesh(np.array(devices).reshape(2, 2, 2), names, axis_types=(AxisType.Auto,) * 3)
    of_x, of_table, alike = PartitionSpec(*names), PartitionSpec(*names[:2]), PartitionSpec()

    def local(x: jax.Array, scale: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, ...]:
        run = lambda x, scale: norm_rotary(x, scale, cos, sin, epsilon=1e-6, implementation="triton")
        out, pull = jax.vjp(run, x, scale)
        return out, *pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(of_x, alike, of_table, of_table), out_specs=(of_x, of_x, alike))
    shape = lambda sizes, dtype, spec: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    table = shape((2, 2 * tokens, width // 2), "float32", of_table)
    arrays = shape((2, 2 * tokens, 2 * heads, width), dtype, of_x), shape((width,), "float32", alike), table, table
    with TemporaryDirectory() as folder:
        options = QUICKLY | {"xla_dump_to": folder, "xla_dump_emitter_re": ".*"}
        jax.jit(mapped).trace(*arrays).lower(lowering_platforms=("cuda",)).compile(compiler_options=options)
        files = sorted(Path(folder).glob("*.ptx"))
        return [described(file, gpu) for file in files if "norm_rotary" in file.read_text()]
