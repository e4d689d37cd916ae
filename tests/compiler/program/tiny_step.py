"""A step small enough to check by hand that has all that XLA writes in a way of its own.

Four layers in a scan, rematerialised, with one activation offloaded to the host; weights gathered over `fsdp`, the
sequence gathered and scattered over `tensor`; a permutation over `pipe`; an all-to-all and a reduce-scatter over two
axes. Two hosts of four GPUs. Run as `python -m tests.compiler.program.tiny_step FOLDER`: XLA's texts go there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

LAYERS, BATCH, SEQUENCE, EMBED, HIDDEN = 4, 4, 512, 1024, 4096
MESH = {"pipe": 2, "fsdp": 2, "tensor": 2}
GPUS_PER_HOST = 4


def compile_into(folder: Path) -> None:
    """Compile the step for eight H100s on two hosts."""
    import jax
    import jax.ad_checkpoint
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from tests.gpu_compile import h100s

    def gather(w):
        with jax.named_scope("gather_weight"):
            return lax.all_gather(w, "fsdp", axis=0, tiled=True)

    def layer(x, weights):
        up, down = map(gather, weights)
        with jax.named_scope("gather_sequence"):
            y = lax.all_gather(x, "tensor", axis=1, tiled=True)
        y = jax.ad_checkpoint.checkpoint_name(jnp.einsum("bse,ef->bsf", y, up), "hidden")
        y = jnp.einsum("bsf,fe->bse", jax.nn.gelu(y), down)
        with jax.named_scope("scatter_sequence"):
            y = lax.psum_scatter(y, "tensor", scatter_dimension=1, tiled=True)
        return x + y

    def loss(weights, x):
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["hidden"],
            offload_src="device",
            offload_dst="pinned_host",
        )
        again = jax.checkpoint(layer, policy=policy)
        y, _ = lax.scan(lambda carry, w: (again(carry, w), None), x, weights)
        y = lax.ppermute(y, "pipe", [(0, 1)])
        with jax.named_scope("gather_matrices"):
            y = lax.all_to_all(y, ("fsdp", "tensor"), 2, 1, tiled=True)
        return jnp.sum(jnp.square(y.astype(jnp.float32)))

    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        with jax.named_scope("reduce_sum"):
            value = lax.psum(value, tuple(MESH))
        with jax.named_scope("scatter_gradient"):
            part = lax.psum_scatter(gradients[0], ("fsdp", "tensor"), scatter_dimension=1, tiled=True)
        with jax.named_scope("reduce_sum"):
            return value, gradients, lax.psum(part, "pipe")

    mesh = jax.sharding.Mesh(np.array(h100s("1x2x4")).reshape(tuple(MESH.values())), tuple(MESH),
                             axis_types=(AxisType.Auto,) * len(MESH))  # fmt: skip
    of_weights = (P(None, "fsdp", "tensor"), P(None, ("tensor", "fsdp"), None))
    places = (of_weights, P("fsdp", "tensor")), (P(), of_weights, P(None, ("fsdp", "tensor")))
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=places[0], out_specs=places[1], check_vma=False))

    def shape(dims, spec):
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    weights = shape((LAYERS, EMBED, HIDDEN), of_weights[0]), shape((LAYERS, HIDDEN, EMBED), of_weights[1])
    x = shape((BATCH, SEQUENCE, EMBED), P("fsdp", "tensor"))
    lowered = run.trace(weights, x).lower(lowering_platforms=("cuda",))
    _write(lowered.compile(), folder)
    # Imported here: above, lines would move that recorded programs name.
    from jaxpar.compiler.wheels import cuda_release, options_without_machine_code, toolkit

    options = options_without_machine_code(toolkit(cuda_release()), folder / "toolkit")
    _write(lowered.compile(compiler_options=options), folder / "without_machine_code")


def _write(compiled, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "program.txt").write_text(compiled.as_text())
    memory = compiled.memory_analysis()
    keys = ("peak_memory_in_bytes", "total_allocation_bytes", "host_temp_size_in_bytes")
    (folder / "memory.json").write_text(json.dumps({key: getattr(memory, key) for key in keys}))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
        "LLVM_DISABLE_SYMBOLIZATION": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true --xla_dump_hlo_as_text "
        f"--xla_dump_to={target / 'dump'} " + " ".join(sys.argv[2:]),
    }  # fmt: skip
    compile_into(target)
