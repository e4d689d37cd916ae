"""The Triton attention kernels compiled for GPUs that are not here; child only (see `tests.gpu_compile.in_child`)."""

import re
import subprocess
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpar.attention.sinks import with_sinks
from jaxpar.compiler.targets import target_config
from jaxpar.hardware.catalogue import gpu_named
from pallas_kernels import flash_attention
from pallas_kernels.attention import MaskInputs, Settings
from pallas_kernels.attention.triton import KERNELS
from pallas_kernels.masks import Mask
from tests.gpu_compile import QUICKLY
from tests.pallas_kernels import machine_code

ARCHITECTURES = {"a100-80": "sm_80", "h100": "sm_90a", "b200": "sm_100a"}


def ptxas() -> str:
    """The assembler of the extra `compile`."""
    spec = find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations is not None, "nvidia-cuda-nvcc is not installed"
    return next(str(file) for root in spec.submodule_search_locations for file in Path(root).glob("*/bin/ptxas"))


def kernels(gpu: str, *configurations: tuple[int, int, str, float | None]) -> list[dict[str, dict[str, Any]]]:
    """The report of ptxas on kernels, by widths of queries and keys, and of values, form and soft-cap."""
    return [of_form(gpu, *configuration) for configuration in configurations]


def of_form(
    gpu: str, width: int, value_width: int, form: str, softcap: float | None = None
) -> dict[str, dict[str, Any]]:
    """What ptxas reports of each kernel of a causal attention with gradients, inside a `shard_map` over 8 GPUs.

    `form` is "packed", "packed, sinks", "causal" alone, or "packed, in lists" for tokens of which nothing is known of
    their order.
    """
    devices = get_topology_desc(gpu, "cuda", target_config=target_config(gpu_named(gpu)), topology="1x1x8").devices
    mesh = Mesh(np.array(devices).reshape(4, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
    heads, rows = PartitionSpec("batch", None, "heads"), PartitionSpec("batch")

    def local(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> Any:
        given = None if form == "causal" else segments
        options = {"causal": True, "softcap": softcap, "return_lse": True, "implementation": "triton"}
        attend = partial(flash_attention, segment_ids=given, **options)
        if "lists" in form:
            indices = jnp.broadcast_to(jnp.arange(q.shape[1]), segments.shape)
            tokens = MaskInputs(indices, indices, segments, segments)
            settings = Settings(Mask(segmented=True), width**-0.5, softcap)
            attend = lambda q, k, v: KERNELS.attend(settings, q, k, v, tokens)
        (out, lse), pull = jax.vjp(lambda q, k, v: attend(q, k, v), q, k, v)
        if "sinks" in form:
            sinks = lambda out, lse: with_sinks(out, lse, jnp.ones(lse.shape[-1]))
            out, pull_sinks = jax.vjp(sinks, out, lse)
            return out, lse, *pull(pull_sinks(out))
        return out, lse, *pull((out, lse))

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(heads, heads, heads, rows), out_specs=(heads,) * 5)
    shape = lambda spec, dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    of_heads = lambda number, width: shape(heads, jnp.bfloat16, 4, 2000, number, width)
    arguments = (of_heads(8, width), of_heads(4, width), of_heads(4, value_width), shape(rows, jnp.int32, 4, 2000))
    with TemporaryDirectory() as folder:
        options = QUICKLY | {"xla_dump_to": folder, "xla_dump_emitter_re": ".*"}
        jax.jit(mapped).trace(*arguments).lower(lowering_platforms=("cuda",)).compile(compiler_options=options)
        return dict(described(file, gpu) for file in Path(folder).glob("*.ptx") if "attention_" in file.read_text())


def described(ptx: Path, gpu: str) -> tuple[str, dict[str, Any]]:
    """The name of a kernel, what ptxas reported of it, and its machine code."""
    cubin = ptx.with_suffix(".cubin")
    command = [ptxas(), f"-arch={ARCHITECTURES[gpu]}", "-v", str(ptx), "-o", str(cubin)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    number = lambda pattern, text: int(re.search(pattern, text)[1])  # pyright: ignore[reportOptionalSubscript]
    (name,) = re.findall(r"Compiling entry function '(\w+)'", printed)
    (lowered,) = ptx.parent.glob(f"*.{name}.triton-to-llvm.txt")
    text = ptx.read_text()
    return name, {
        "registers": number(r"Used (\d+) registers", printed),
        "spilled": number(r"(\d+) bytes spill stores", printed),
        "shared": number(r"ttg\.shared = (\d+)", lowered.read_text()),
        "serialized": printed.count("wgmma.mma_async instructions are serialized"),
        "mma": text.count("mma.sync"),
        "wgmma": text.count("wgmma.mma_async"),
        "tcgen05": text.count("tcgen05.mma"),
        "waits": machine_code.waits(text),
    } | machine_code.described(machine_code.disassembled(cubin))
