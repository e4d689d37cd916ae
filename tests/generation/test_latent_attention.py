"""Generation with multi-head latent attention: latent vectors are cached, and never expanded for a token."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.generation.generator import Generator
from jaxpar.generation.layout import generation_layout, page_tokens
from jaxpar.generation.programs import Programs
from jaxpar.generation.sampling import DTYPES, Draws
from jaxpar.generation.unstacked import unstacked
from tests.generation.test_generator import LAYOUTS, check_greedy, run_of
from tests.pallas_kernels.attention.test_attention import every_equation
from tests.small_run import SmallRun

POOL = 12
WIDTHS = {"kv_rank": 12, "rope_dim": 4, "nope_dim": 6, "value_dim": 5}
MODELS: dict[str, dict[str, Any]] = {
    "queries": {"latent_attention": LatentAttentionConfig(**WIDTHS)},
    "compressed queries": {
        "latent_attention": LatentAttentionConfig(query_rank=10, **WIDTHS),
        "attention_softcap": 3.0,
        "attention_temperature": AttentionTemperature(5, 0.5),
        "kinds": {"window": {"window": 11}, "latent": {}, "plain": {"latent_attention": None}},
        "pattern": Pattern(("window", "latent", "plain")),
    },
}


def model_of(name: str) -> dict[str, Any]:
    return {"layers": 3, "kv_heads": None, "vocab": 61} | MODELS[name]


def run_with_weights(name: str, layout: dict[str, Any]) -> tuple[SmallRun, Any]:
    run = run_of(model_of(name), layout)
    return run, run.step.residency.initial_state().master


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("layout", [layout for layout, keys in LAYOUTS.items() if "expert" not in keys])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_the_likeliest_of_the_training_forward(name: str, layout: str):
    run, weights = run_with_weights(name, LAYOUTS[layout])
    check_greedy(Generator(run.config, run.step.mesh, weights), 61, *run_with_weights(name, {}))


def test_the_cache_has_latent_vectors_and_rotary_keys_and_a_token_expands_none():
    run, weights = run_with_weights("queries", {})
    programs, capacity, rows = Programs(run.config, run.step.mesh, zero=0), 64, 8
    weights = unstacked(weights, generation_layout(run.config, run.step.mesh).order)
    number = jax.ShapeDtypeStruct((rows,), np.int32)
    tokens = jax.ShapeDtypeStruct((rows, capacity), np.int32)
    batch = dict.fromkeys(("tokens", "positions", "indices", "segments"), tokens) | {"examples": number}
    draws = Draws(*(jax.ShapeDtypeStruct((rows,), dtype) for dtype in DTYPES))
    read, _ = jax.eval_shape(programs.prefill(rows, capacity, capacity), weights, batch, number, draws)
    state, page = programs.idle(read, rows, capacity, POOL), page_tokens(capacity, 1)
    active = jax.ShapeDtypeStruct((rows,), bool)
    width = WIDTHS["kv_rank"] + WIDTHS["rope_dim"]
    assert [leaf.shape for leaf in jax.tree.leaves(state.cache)] == [(POOL, 1, page, width)] * 3
    decode = programs.decode(rows, capacity, POOL).__wrapped__
    jaxpr = jax.make_jaxpr(decode)(weights, state, active).jaxpr
    made = [value.aval for equation in every_equation(jaxpr) for value in equation.outvars]
    expanded = rows * page * run.config.model.heads * WIDTHS["value_dim"]
    assert max(value.size for value in made) < expanded
