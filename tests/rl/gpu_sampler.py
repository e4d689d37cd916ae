"""Time and memory of drawing answers on H100s, as XLA compiles it without one; child only."""

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from jaxpar.config import load_config
from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.generation.functions import Rows
from jaxpar.generation.layout import bucket, generation_layout
from jaxpar.generation.programs import Programs
from jaxpar.generation.sampling import DTYPES, Draws
from jaxpar.layers.attention_cache import KeyValues
from jaxpar.layout.make_plan import resolve_config
from jaxpar.layout.step_layout import shardings
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.parameters import map_specs
from jaxpar.rl.memory import generation_of
from tests.gpu_compile import compile_for_gpu, h100s

GATHERED = re.compile(r"= \(?(?:[^=]*, )?bf16\[([\d,]+)\]\S*\)? all-gather(?:-done)?\(")
PROMPT, GROUP, PROMPTS, ANSWER = 512, 16, 64, 512


def bytes_of_sampler() -> dict[str, int]:
    """Qwen3-8B on h100:4x8 in turns with a step under ZeRO-3: by XLA and by prediction, bytes on a device."""
    sections = {
        "model.preset": "qwen3-8b", "model.vocab": 151936, "parallel.fsdp": 8, "parallel.tensor": 4,
        "parallel.zero": 3, "loss.name": "grpo", "data.source": "prompts", "data.path": "digits",
        "data.batch_size": 256, "data.sequence_length": PROMPT + ANSWER, "rl.prompts": PROMPTS, "rl.group": GROUP,
        "rl.answer_tokens": ANSWER,
    }  # fmt: skip
    config = load_config(None, [f"{key}={value}" for key, value in sections.items()])
    config = resolve_config(config, 32)
    mesh = build_mesh(AxisSizes(**axis_sizes(config.parallel)), h100s("1x4x8"))
    layout = generation_layout(config, mesh)
    predicted = generation_of(config, layout, PROMPT)
    rows, capacity = PROMPTS * GROUP, bucket(PROMPT + ANSWER, 4)
    programs = Programs(config, mesh, zero=0)
    functions, weights, state, _ = programs.parts(rows, 0, capacity)
    specs: Any = functions.layout.specs
    model = config.model
    layers = [map_specs(lambda spec: spec.shape[1:], specs["layers"]["all"])] * model.layers
    shapes = {**map_specs(lambda spec: spec.shape, specs), "layers": {"all": layers}}
    # A prompt of 511 tokens fills one page of 256, and each of 16 rows has 3 more: 392 for the 8 prompts of a rank.
    pool = 8 * 512
    places: Any = (pool, model.kv_heads, 256, model.head_dim)
    by_row = lambda dtype, *width: jax.ShapeDtypeStruct((rows, *width), dtype)
    number, draws, seen = by_row(jnp.int32), Draws(*map(by_row, DTYPES)), by_row(bool, 151936)
    cached = [{"attention": KeyValues(places, places), "mlp": ()}] * model.layers
    abstract_rows = Rows({"all": cached}, number, number, draws, seen, by_row(jnp.int32, 4))

    def abstract(shapes: Any, layouts: Any, dtype: Any = jnp.bfloat16) -> Any:
        array = lambda shape, where: jax.ShapeDtypeStruct(
            getattr(shape, "shape", shape), getattr(shape, "dtype", dtype), sharding=where
        )
        leaf = lambda x: isinstance(x, tuple) and x != () and all(isinstance(size, int) for size in x)
        return jax.tree.map(array, shapes, shardings(mesh, layouts), is_leaf=leaf)

    inputs = abstract(shapes, weights), abstract(abstract_rows, state), abstract(by_row(bool), state.lengths)
    decode = compile_for_gpu(programs.decode(rows, capacity, pool), *inputs).memory_analysis()
    stacked = map_specs(lambda spec: spec.shape, specs)
    trained = generation_layout(config, mesh, zero=3).placements.storage.layout
    placed = shardings(mesh, layout.placements.storage.layout)
    cast = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree), out_shardings=placed)
    update = compile_for_gpu(cast, abstract(stacked, trained, jnp.float32))
    gathered = sum(2 * prod(map(int, sizes.split(","))) for sizes in GATHERED.findall(update.as_text()))
    sizes = decode.argument_size_in_bytes
    return {
        "arguments": sizes, "weights": predicted.weights, "cache": predicted.cache,
        "made": update.memory_analysis().output_size_in_bytes, "gathered": gathered,
    }  # fmt: skip


if __name__ == "__main__":
    print(bytes_of_sampler())
