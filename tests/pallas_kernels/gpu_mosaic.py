"""The Hopper attention kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from pallas_kernels.attention import Settings, Tokens
from pallas_kernels.attention.mosaic import DETERMINISTIC_KERNELS, KERNELS
from pallas_kernels.masks import Mask
from tests.gpu_compile import QUICKLY, h100s

DEVICE = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
MASKS = {"causal": Mask(), "packed-window": Mask(window=1024, segmented=True)}


def kernels(
    width: int, value_width: int, mask: str, softcap: float | None, deterministic: bool, heads: int = 8
) -> list[dict[str, Any]]:
    """What ptxas says of each kernel of attention with gradients, also of its log-sum-exp, in a `shard_map` over 8."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(4, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
    by_heads, rows = PartitionSpec("batch", None, "heads"), PartitionSpec("batch")
    settings = Settings(MASKS[mask], width**-0.5, softcap)
    chosen = DETERMINISTIC_KERNELS if deterministic else KERNELS

    def local(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> Any:
        slots = jnp.broadcast_to(jnp.arange(q.shape[1]), segments.shape)
        tokens = Tokens(slots, slots, segments, segments)
        (out, lse), pull = jax.vjp(lambda q, k, v: chosen.attend(settings, q, k, v, tokens), q, k, v)
        return out, lse, *pull((out, lse))

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(by_heads,) * 3 + (rows,), out_specs=(by_heads,) * 5)
    shape = lambda spec, dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    of_heads = partial(shape, by_heads, jnp.bfloat16, 4, 2000)
    arguments = (of_heads(heads, width), of_heads(4, width), of_heads(4, value_width), shape(rows, jnp.int32, 4, 2000))
    with TemporaryDirectory() as folder, use_abstract_mesh(AbstractMesh((), (), abstract_device=DEVICE)):
        os.environ["MOSAIC_GPU_DUMP_TO"] = folder
        jax.jit(mapped).trace(*arguments).lower(lowering_platforms=("cuda",)).compile(compiler_options=QUICKLY)
        return [_described(file) for file in sorted(Path(folder).glob("*.ptxas"))]


def _described(said: Path) -> dict[str, Any]:
    number = lambda pattern, text: int(re.search(pattern, text)[1])  # pyright: ignore[reportOptionalSubscript]
    text, program = said.read_text(), said.with_suffix(".ptx").read_text()
    resources = said.with_name(f"{said.stem}.resources.txt").read_text()
    return {
        "name": said.stem.rsplit("_", 1)[0],
        "registers": number(r"Used (\d+) registers", text),
        "spilled": number(r"(\d+) bytes spill stores", text),
        "shared": number(r"smem_scratch_bytes=(\d+)", resources),
        "wgmma": program.count("wgmma.mma_async"),
        "tma": program.count("cp.async.bulk.tensor"),
        "reduce": program.count("cp.reduce.async.bulk.tensor"),
        "setmaxnreg": sorted(map(int, set(re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", program)))),
    }


def everything() -> dict[str, list[dict[str, Any]]]:
    """All entries of the table, for a page of documentation."""
    from pallas_kernels.attention.mosaic.tiles import TABLE

    found = {}
    for widths, tiles in TABLE.items():
        for mask in MASKS:
            for deterministic in (False, True)[: 2 if tiles.fused else 1]:
                found[f"{widths} {mask} {deterministic}"] = kernels(*widths, mask, None, deterministic)
    return found
