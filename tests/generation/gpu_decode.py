"""Decoding a token: its use of layers' weights on a GPU, as XLA compiles it without one; child only."""

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.generation.functions import Rows
from jaxpar.generation.programs import Programs
from jaxpar.generation.sampling import DTYPES, Draws
from jaxpar.layers.attention_cache import KeyValues
from jaxpar.layout.make_plan import resolve_config
from jaxpar.layout.step_layout import shardings
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.parameters import map_specs
from tests.gpu_compile import compile_for_gpu, h100s
from tests.small_run import small

EMBED, MLP, ROWS, LENGTH = 512, 1536, 8, 64
WRITES = re.compile(r"= (?:bf16|f32)\[([\d,]+)\]\S* (?:fusion|copy|dynamic-slice|concatenate|transpose)\(")


def largest_written() -> int:
    """The elements of the largest array that the program writes other than by a matmul."""
    model = {"layers": 3, "embed": EMBED, "heads": 8, "kv_heads": 4, "mlp": MLP, "vocab": 256, "tied": True}
    config = resolve_config(small(model=model, precision={"compute": "bfloat16"}), 1)
    mesh = build_mesh(AxisSizes(**axis_sizes(config.parallel)), h100s("1x1x1"))
    programs = Programs(config, mesh, zero=0)
    functions, weights, state, _ = programs.parts(ROWS, 0, LENGTH)
    specs: Any = functions.layout.specs
    layers = [map_specs(lambda spec: spec.shape[1:], specs["layers"]["all"])] * 3
    shapes = {**map_specs(lambda spec: spec.shape, specs), "layers": {"all": layers}}
    pool = ROWS * LENGTH // functions.page
    places: Any = (pool, 4, functions.page, EMBED // 8)
    cached = KeyValues(places, places)
    by_row = lambda dtype, *width: jax.ShapeDtypeStruct((ROWS, *width), dtype)
    number, draws, seen = by_row(jnp.int32), Draws(*[by_row(dtype) for dtype in DTYPES]), by_row(bool, 256)
    rows = Rows(
        {"all": [{"attention": cached, "mlp": ()}] * 3},
        number,
        number,
        draws,
        seen,
        by_row(jnp.int32, LENGTH // functions.page),
    )

    def abstract(shapes: Any, layouts: Any) -> Any:
        array = lambda shape, where: jax.ShapeDtypeStruct(
            getattr(shape, "shape", shape), getattr(shape, "dtype", jnp.bfloat16), sharding=where
        )
        leaf = lambda x: isinstance(x, tuple) and x != () and all(isinstance(size, int) for size in x)
        return jax.tree.map(array, shapes, shardings(mesh, layouts), is_leaf=leaf)

    active = abstract(by_row(bool), state.lengths)
    inputs = abstract(shapes, weights), abstract(rows, state), active
    text = compile_for_gpu(programs.decode(ROWS, LENGTH, pool), *inputs).as_text()
    return max(prod(map(int, found.split(","))) for found in WRITES.findall(text))
