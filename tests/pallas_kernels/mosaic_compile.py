"""Programs that Mosaic GPU kernels become for GPUs that are not here; child only (see `tests.gpu_compile.in_child`)."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from tests.gpu_compile import QUICKLY
from tests.pallas_kernels.machine_code import described, disassembler, waits

DEVICE = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
B200 = AbstractDevice(device_kind="NVIDIA B200", num_cores=148, platform="gpu")


def compiled_kernels(function: Any, *arguments: Any, device: AbstractDevice = DEVICE) -> dict[str, Any]:
    """Compile a function of arrays with these shapes; the shared memory and the programs of its kernels."""
    os.environ |= {f"MOSAIC_GPU_DUMP_{what}": "1" for what in ("PTX", "PTXAS", "RESOURCES", "SASS")}
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)), _disassembler(), _printed() as printed:
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
        compiled = lowered.compile(compiler_options=QUICKLY)
        sys.stdout.flush()  # What Python prints waits in a buffer, where nobody is at a terminal.
        text = printed.read_text()
    return {
        "shared": [int(size) for size in re.findall(r"smem_scratch_bytes=(\d+)", text)],
        "kernels": [_described(part) for part in text.split(".visible .entry ")[1:]],
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
    }


@contextmanager
def _disassembler() -> Iterator[None]:
    """Mosaic finds it beside the ptxas that JAX uses, of whose wheel it is no part."""
    root = os.environ["MOSAIC_GPU_CUDA_ROOT"]
    with TemporaryDirectory() as folder:
        tools = Path(folder) / "bin"
        tools.mkdir()
        for tool in (Path(root) / "bin" / "ptxas", disassembler()):
            (tools / tool.name).symlink_to(tool)
        os.environ["MOSAIC_GPU_CUDA_ROOT"] = folder
        try:
            yield
        finally:
            os.environ["MOSAIC_GPU_CUDA_ROOT"] = root


@contextmanager
def _printed() -> Iterator[Path]:
    """Where all that this process prints goes meanwhile: the compiler prints by itself."""
    with TemporaryDirectory() as folder:
        file, screen = Path(folder) / "printed", os.dup(1)
        with file.open("wb") as target:
            os.dup2(target.fileno(), 1)
        try:
            yield file
        finally:
            os.dup2(screen, 1)
            os.close(screen)


def _described(text: str) -> dict[str, Any]:
    """A kernel's program, and what ptxas reported of it."""
    number = lambda pattern: int(re.search(pattern, text)[1])  # pyright: ignore[reportOptionalSubscript]
    return {
        "name": text.split("_mosaic_gpu_kernel", 1)[0],
        "registers": number(r"Used (\d+) registers"),
        "spilled": number(r"(\d+) bytes spill stores"),
        "wgmma": text.count("wgmma.mma_async"),
        "tcgen05": text.count("tcgen05.mma"),
        "operands": sorted({*re.findall(r"wgmma\.mma_async[.\w]*\.f32\.(\w+\.\w+)", text)}),
        "tanh": text.count("tanh.approx"),
        "tma": text.count("cp.async.bulk.tensor"),
        "reduce": text.count("cp.reduce.async.bulk.tensor"),
        "serialized": text.count("wgmma.mma_async instructions are serialized"),
        "waits": waits(text),
        "setmaxnreg": sorted(map(int, set(re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", text)))),
    } | described(text)
