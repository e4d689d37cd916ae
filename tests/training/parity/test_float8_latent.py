"""Latent attention with FP8 matmuls, beside layers of plain attention: the numbers of one device on every layout."""

from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.schema.model import Pattern
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.layout.choices.matmul import exempt
from tests.sentences import named
from tests.small_run import small
from tests.training.parity.one_device import assert_near_one_device, changed_by_quantizing

LATENT = LatentAttentionConfig(kv_rank=16, query_rank=32, rope_dim=16, nope_dim=8, value_dim=8)
MODEL: dict[str, Any] = {
    "layers": 4, "embed": 64, "mlp": 128, "kv_heads": None, "head_dim": 16, "latent_attention": LATENT,
    "kinds": {"latent": {}, "plain": {"latent_attention": None}}, "pattern": Pattern(unit=("latent", "plain")),
}  # fmt: skip
LAYOUTS = named("""
    tensor, context and shards, recomputed: parallel.fsdp=2 | parallel.tensor=2 | parallel.context=2 |
        parallel.microbatches=2 | memory.remat=full
    split backward: parallel.pipe=2 | parallel.tensor=2 | parallel.microbatches=2 | parallel.schedule=zb-h1
    """)  # fmt: skip


def config_of(overrides: list[str], matmul: str) -> Config:
    excepted = MatmulOptions(exclude=("head", "router"), first_layers=1, last_layers=0)
    return with_overrides(small(model=MODEL, precision={"matmul": matmul, "matmul_options": excepted}), overrides)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_give_the_numbers_of_one_device(name: str):
    """Within the limit of `tests/precision/test_matmul.py`: a third of what quantizing itself changes."""
    alone = config_of(["parallel.microbatches=2"], "fp8_current")
    assert 0.03 < changed_by_quantizing(alone) < 0.15
    assert_near_one_device(config_of(LAYOUTS[name], "fp8_current"), alone, changed_by_quantizing(alone) / 3)


def test_all_matmuls_of_latent_attention_have_scales():
    """Kinds with other matrices in a group have columns of their own; nothing of latent attention is an exception."""
    config = config_of([], "fp8_delayed")
    names = tensor_names(config)
    assert {"query_down", "kv_down", "query_up", "key_up", "value_up", "output", "key", "value"} <= set(names)
    assert names.count("attention_in.input") == 2 and names.count("mlp_in.input") == 1
    assert {own.what for own in exempt(config)} == {"head", "layers 0 to 0"}
