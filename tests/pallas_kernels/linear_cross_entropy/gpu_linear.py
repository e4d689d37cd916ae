"""The kernels of the head's loss compiled for GPUs that are not here, and what the assembler reports of them."""

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
    use_abstract_mesh,
)

from jaxpar.compiler.program.costs.ops import costs
from jaxpar.compiler.program.loops import executions
from pallas_kernels import fused_linear_cross_entropy
from pallas_kernels.linear_cross_entropy import Head, triton
from pallas_kernels.linear_cross_entropy.saved_logits import Token
from tests.compiler.program.programs import strictly
from tests.gpu_compile import H100, QUICKLY, compile_for_gpu, h100s
from tests.pallas_kernels import machine_code

A100 = (
    H100.replace("major: 9 feature_extension: ACCELERATED_FEATURES", "major: 8")
    .replace("core_count: 132", "core_count: 108")
    .replace("shared_memory_per_block_optin: 232448", "shared_memory_per_block_optin: 166912")
    .replace("shared_memory_per_core: 233472", "shared_memory_per_core: 167936")
    .replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
)
TARGETS = {"sm_90a": (H100, "NVIDIA H100 80GB HBM3", 132), "sm_80": (A100, "NVIDIA A100-SXM4-80GB", 108)}
TOKENS, EMBED, COLUMNS, CHUNK = 16384, 4096, 152064, 8192
KERNELS = ("linear_cross_entropy_statistics", "linear_cross_entropy_gradients")
KEEPING = ("linear_cross_entropy_statistics", "linear_cross_entropy_saved_gradients")
"""Of logits that are kept."""


def measure(*cases: list[Any]) -> list[dict[str, dict[str, Any]]]:
    """For each [architecture, soft-cap, vocab first, whether logits are kept]: by kernel, what `_reports` reads."""
    return [_measure(*case) for case in cases]


def _measure(architecture: str, softcap: float | None, vocab_first: bool, keep: bool) -> dict[str, dict[str, Any]]:
    description, kind, cores = TARGETS[architecture]
    device = get_topology_desc("one", "cuda", target_config=description, topology="1x1x1").devices[0]
    shape = lambda *dims, dtype: jax.ShapeDtypeStruct(dims, dtype, sharding=SingleDeviceSharding(device))
    head = Head(COLUMNS - 100, softcap=softcap, vocab_first=vocab_first, keep=keep)
    table = (COLUMNS, EMBED) if vocab_first else (EMBED, COLUMNS)
    arrays = (
        shape(TOKENS, EMBED, dtype=jnp.bfloat16), shape(*table, dtype=jnp.bfloat16), shape(TOKENS, dtype=jnp.int32),
        shape(1, dtype=jnp.int32),
    )  # fmt: skip
    token, chunk = (shape(TOKENS, dtype=jnp.float32),) * 4, shape(dtype=jnp.int32)

    def both(x: Any, table: Any, labels: Any, columns: Any, token: Any, chunk: Any) -> Any:
        statistics, kept = triton.statistics(head, x, table, labels, columns)
        if kept is not None:
            return statistics, triton.gradients_from_saved(head, kept, labels, Token(*token))
        return statistics, triton.logit_gradients(head, x, table, labels, columns, Token(*token), chunk, CHUNK, CHUNK)

    abstract = AbstractDevice(device_kind=kind, num_cores=cores, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)), _assembler() as (folder, options):
        lowered = jax.jit(both).trace(*arrays, token, chunk).lower(lowering_platforms=("cuda",))
        lowered.compile(compiler_options=QUICKLY | options)
        return _reports(folder)


@contextmanager
def _assembler() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder, and compiler options under which XLA's assembler leaves there what it read and said."""
    spec = find_spec("nvidia.cuda_nvcc")
    assert spec is not None and spec.submodule_search_locations, "compiling for GPUs needs the wheel of nvcc"
    toolkit = Path(next(iter(spec.submodule_search_locations)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "toolkit" / "bin").mkdir(parents=True)
        (folder / "toolkit" / "nvvm").symlink_to(toolkit / "nvvm")
        script, here = folder / "toolkit" / "bin" / "ptxas", shlex.quote(name)
        script.write_text(
            "#!/bin/sh\n"
            f'for word in "$@"; do grep -qs "^.target sm_" "$word" && cp "$word" {here}/$$.ptx; done\n'
            f'{shlex.quote(str(toolkit / "bin" / "ptxas"))} -v "$@" 2> {here}/$$.log\n'
            f"code=$?; cat {here}/$$.log >&2\n"
            f'last=; for word in "$@"; do [ "$last" = -o ] && cp "$word" {here}/$$.cubin; last=$word; done\n'
            f"exit $code\n"
        )
        script.chmod(0o755)
        yield folder, {"xla_gpu_cuda_data_dir": str(folder / "toolkit"), "xla_dump_to": str(folder / "dump")}


def _reports(folder: Path) -> dict[str, dict[str, Any]]:
    """By kernel: registers, bytes spilled, tensor-core instructions, bytes of shared memory, and its machine code."""
    found = {}
    (thunks,) = (folder / "dump").glob("*thunk_sequence.txt")
    for file in folder.glob("*.ptx"):
        text, printed = file.read_text(), file.with_suffix(".log").read_text()
        for kernel in {*KERNELS, *KEEPING}:
            if f".entry {kernel}" not in text:
                continue
            number = lambda pattern, text=printed: sum(map(int, re.findall(pattern, text)))
            found[kernel] = {
                "registers": number(r"Used (\d+) registers"),
                "spilled": number(r"(\d+) bytes spill"),
                "serialized": printed.count("wgmma.mma_async instructions are serialized"),
                "wgmma": text.count("wgmma.mma_async"),
                "mma": text.count("mma.sync"),
                "waits": machine_code.waits(text),
                "shared": number(rf"{kernel} .*shared_memory: (\d+) bytes", thunks.read_text()),
            } | machine_code.described(machine_code.disassembled(file.with_suffix(".cubin")))
    return found


def allocated(keep: bool, shape: tuple[int, int, int], options: dict[str, Any]) -> dict[str, int]:
    """Of loss and gradients of (tokens, embed, columns) on one H100: bytes of temporaries, and FLOPs of all matmuls and
    of those that are recomputed."""
    tokens, embed, columns = shape
    (device,) = h100s("1x1x1")
    array = lambda *dims, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(dims, dtype, sharding=SingleDeviceSharding(device))

    def program(x: jax.Array, table: jax.Array, labels: jax.Array) -> Any:
        loss = partial(fused_linear_cross_entropy, keep=keep, implementation="triton", **options)
        return jax.value_and_grad(lambda x, table: loss(x, table, labels).loss.sum(), (0, 1))(x, table)

    _, kind, cores = TARGETS["sm_90a"]
    abstract = AbstractDevice(device_kind=kind, num_cores=cores, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)):
        arrays = array(tokens, embed), array(embed, columns), array(tokens, dtype=jnp.int32)
        compiled = compile_for_gpu(jax.jit(program), *arrays)
    module = strictly(compiled.as_text() or "")
    found = [one for one in costs(module, executions(module)) if one.arithmetic]
    return {
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "flops": int(sum(one.executions * one.flops for one in found)),
        "recomputed": int(sum(one.executions * one.recomputed_flops for one in found)),
    }


def over_eight(keep: bool) -> list[str]:
    """Kernels in the program of loss and gradients over eight GPUs, tokens and vocabulary split, types checked."""
    description, kind, cores = TARGETS["sm_90a"]
    devices = get_topology_desc("eight", "cuda", target_config=description, topology="1x1x8").devices
    mesh = Mesh(np.array(devices).reshape(2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    tokens, part = PartitionSpec("fsdp"), PartitionSpec(None, "tensor")

    def program(x: jax.Array, table: jax.Array, labels: jax.Array) -> Any:
        loss = partial(
            fused_linear_cross_entropy, axes=("tensor",), vocab=15000, z_loss=1e-4, keep=keep, implementation="triton"
        )
        total = lambda x, table: jax.lax.psum(loss(x, table, labels).loss.sum(), "fsdp")
        return jax.value_and_grad(total, (0, 1))(x, table)

    shape = lambda dims, dtype, spec: jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, spec))
    arrays = (
        shape((2048, 512), jnp.bfloat16, tokens), shape((512, 16384), jnp.bfloat16, part),
        shape((2048,), jnp.int32, tokens),
    )  # fmt: skip
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=(tokens, part, tokens), out_specs=(PartitionSpec(), (tokens, part))
    )
    abstract = AbstractDevice(device_kind=kind, num_cores=cores, platform="gpu")
    with use_abstract_mesh(AbstractMesh((2, 4), ("fsdp", "tensor"), (AxisType.Auto,) * 2, abstract_device=abstract)):
        lowered = jax.jit(mapped).trace(*arrays).lower(lowering_platforms=("cuda",))
    text = lowered.compile(compiler_options=QUICKLY).as_text() or ""
    return [kernel for kernel in (KEEPING if keep else KERNELS) if kernel in text]
