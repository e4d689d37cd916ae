"""Latent attention: numbers of weights and FLOPs from the paper's formulas."""

import pytest

from jaxpar.config import load_config
from jaxpar.config.counting import attention_scale
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.layers.counting import matmul_parameters, parameter_count
from jaxpar.layout.checks.validate import validate
from jaxpar.model.flops import pair_flops
from tests.small_run import small

GOOD = ["model.kv_heads=null", "model.latent_attention={kv_rank: 16}"]


def test_layers_beside_it_may_have_other_attention():
    kinds = "model.kinds={latent: {}, plain: {latent_attention: null}}"
    more = ["model.head_dim=32", "model.layers=4", kinds, "model.pattern={unit: [latent, plain]}"]
    validate(load_config(None, [*GOOD, *more]))


@pytest.mark.parametrize("query_rank", [None, 24])
def test_weights_and_flops_are_those_of_the_paper(query_rank: int | None):
    """arXiv:2405.04434, section 2.1: W^DKV, W^UK, W^UV, W^KR and W^O, and W^Q or W^DQ, W^UQ and W^QR."""
    latent = LatentAttentionConfig(kv_rank=40, query_rank=query_rank, rope_dim=6, nope_dim=10, value_dim=12)
    model = small(model={"layers": 1, "kv_heads": None, "latent_attention": latent}).model
    embed, heads = model.embed, model.heads
    matrices = embed * 40 + 40 * heads * 10 + 40 * heads * 12 + embed * 6 + heads * 12 * embed
    matrices += embed * heads * 16 if query_rank is None else embed * 24 + 24 * heads * 16
    feed_forward, ends = 3 * embed * model.mlp, 2 * 64 * embed
    norms = 3 * embed + 40 + (query_rank or 0)
    assert parameter_count(model, padded=False) == matrices + feed_forward + ends + norms
    assert matmul_parameters(model, 64) == matrices + feed_forward + 64 * embed
    assert pair_flops(model) == 2 * heads * (16 + 12) and attention_scale(model) == 16**-0.5
