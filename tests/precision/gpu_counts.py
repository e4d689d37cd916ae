"""Counts of what FP8 codes do not hold, compiled for an H100: run by `tests.gpu_compile.in_child`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.precision.recipe import E4M3
from jaxpar.precision.scale import largest_of, quantise, scale_of
from jaxpar.precision.seen import counts_of
from jaxpar.precision.tiles import counts_in_tiles, in_tiles
from tests.gpu_compile import compile_for_gpu, h100s

SHAPE, TILE = (8192, 4096), (1, 128)


def readers(recipe: str, counts: bool) -> int:
    """Kernels that read the tensor which becomes codes by `recipe`."""

    def function(x: jax.Array, scale: jax.Array) -> object:
        if recipe == "fp8_block":
            return in_tiles(x, TILE, E4M3), counts_in_tiles(x, TILE, E4M3, 0) if counts else ()
        own = scale if recipe == "fp8_delayed" else scale_of(largest_of(x), E4M3)
        return quantise(x, own, E4M3), largest_of(x), counts_of(x, own, E4M3) if counts else ()

    place = NamedSharding(Mesh(np.array(h100s("1x1x1")[:1]), ("one",)), PartitionSpec())
    shapes = (SHAPE, jnp.bfloat16), ((), jnp.float32)
    arguments = (jax.ShapeDtypeStruct(*shape, sharding=place) for shape in shapes)
    text = compile_for_gpu(jax.jit(function), *arguments).as_text()
    entry = text[text.index("ENTRY") :]
    [name] = re.findall(r"%(\S+) = bf16\[8192,4096\]\S* parameter", entry)
    return len(re.findall(rf"= .*\(.*%{re.escape(name)}[,)]", entry))


def measure(*recipes: str) -> dict[str, list[int]]:
    """By recipe, those without counts and with."""
    return {recipe: [readers(recipe, counts) for counts in (False, True)] for recipe in recipes}
