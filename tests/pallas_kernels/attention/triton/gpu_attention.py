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

from jaxpar.attention.sinks import with_sinks
from pallas_kernels import flash_attention
from pallas_kernels.attention import MaskInputs, Settings
from pallas_kernels.attention.triton import KERNELS
from pallas_kernels.masks import Mask
from tests.gpu_compile import QUICKLY
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.over_eight import HEADS, ROWS, over_eight

ARCHITECTURES = {"a100-80": "sm_80", "h100": "sm_90a", "b200": "sm_100a"}


def ptxas() -> str:
    """The assembler of the extra `compile`."""
    spec = find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations is not None, "nvidia-cuda-nvcc is not installed"
    return next(str(file) for root in spec.submodule_search_locations for file in Path(root).glob("*/bin/ptxas"))


def of_form(
    gpu: str, width: int, value_width: int, form: str, softcap: float | None = None
) -> dict[str, dict[str, Any]]:
    """What ptxas reports of each kernel of a causal attention with gradients, inside a `shard_map` over 8 GPUs.

    `form` is "packed", "packed, sinks", "causal" alone, or "packed, in lists" for tokens of which nothing is known of
    their order.
    """

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

    of_heads = (HEADS, jnp.bfloat16, 1, 2000)
    operands = (*of_heads, 4, width), (*of_heads, 2, width), (*of_heads, 2, value_width)
    mapped, arguments = over_eight(local, *operands, (ROWS, jnp.int32, 1, 2000), gpu=gpu, heads=2, out=HEADS)
    return dict(compiled(mapped, arguments, gpu, "attention_"))


def compiled(function: Any, arguments: Any, gpu: str, part: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and resources of the kernels with a `part` in their names."""
    with TemporaryDirectory() as folder:
        options = QUICKLY | {"xla_dump_to": folder, "xla_dump_emitter_re": ".*"}
        jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).compile(compiler_options=options)
        return [_described(file, gpu) for file in sorted(Path(folder).glob("*.ptx")) if part in file.read_text()]


def _described(ptx: Path, gpu: str) -> tuple[str, dict[str, Any]]:
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
