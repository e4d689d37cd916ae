"""What traced steps keep between forward and backward, against the closed forms."""

from pathlib import Path

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.closed_forms import CLOSED_FORMS
from tests.memory.shapes import layer_shape
from tests.traced_bytes import traced_bytes

CONFIGS = Path(__file__).parents[3] / "configs"
LATENT = "model.latent_attention={kv_rank: 48, query_rank: 96, rope_dim: 8, nope_dim: 16, value_dim: 24}"
LAYOUTS = {
    "gated, sequence and heads split": ("quickstart", "h100:1x8", ("parallel.tensor=2", "parallel.context=2")),
    "not gated": ("gpt2_124m", "h100:1x8", ()),
    "wide heads": ("qwen3_0p6b", "h100:1x8", ("parallel.tensor=2",)),
    "norms behind": ("quickstart", "h100:1x8", ("model.norm_placement=post", "model.qk_norm=projection")),
    "norms on both sides": ("quickstart", "h100:1x8", ("model.norm_placement=sandwich", "model.activation=geglu")),
    "latent attention": ("quickstart", "h100:1x8", ("parallel.tensor=2", "model.kv_heads=null", LATENT)),
    "pipeline": ("llama3_8b", "h100:1x8", ("parallel.pipe=4", "parallel.fsdp=2")),
}


@pytest.mark.matrix(quick=10, ci=10)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("preset", CLOSED_FORMS)
def test_a_chunk_keeps_what_the_closed_form_states(preset: str, layout: str):
    file, cluster, overrides = LAYOUTS[layout]
    asked = (*overrides, "attention.backend=xla", "memory.mlp_tiles=1", f"memory.remat={preset}")
    config, plan = plan_for(load_config(CONFIGS / f"{file}.yaml", asked), parse_cluster(cluster))
    form = CLOSED_FORMS[preset](layer_shape(config, plan.axes, plan.microbatch_rows))
    assert traced_bytes(config, plan).stash == max(plan.stage_layers) * form


EXPERTS = {
    "over four ranks": ("parallel.expert=4", "parallel.fsdp=2", "parallel.experts.slices=2"),
    "all tokens to all ranks": ("parallel.expert=4", "parallel.fsdp=2", "parallel.experts.exchange=all_gather"),
    "in two levels, codes on the wire": (
        "parallel.expert=8", "parallel.experts.exchange=hierarchical", "parallel.quantized.tokens=float8_e4m3fn",
    ),
    "tensor ranks": ("parallel.expert=4", "parallel.tensor=2"),
    "all experts on every GPU": ("parallel.fsdp=8",),
}  # fmt: skip


@pytest.mark.matrix(quick=("over four ranks", "all experts on every GPU"), ci=2)
@pytest.mark.parametrize("layout", EXPERTS)
def test_experts_keep_rows_as_they_arrive_and_no_copies_of_them(layout: str):
    """In the order of experts there are `per_token` rows of a token, which the receiving rank makes."""
    cluster = "h100:2x4" if "levels" in layout else "h100:1x8"
    whole = dict.fromkeys(("pipe", "fsdp", "context", "tensor", "expert"), 1)
    axes = [f"parallel.{name}={size}" for name, size in whole.items()]
    asked = [
        *axes, "attention.backend=xla", "memory.remat=gemm_last", "model.experts={count: 16, per_token: 4, width: 64}",
        "parallel.experts.capacity=1.5", "precision.compute=bfloat16", *EXPERTS[layout],
    ]  # fmt: skip
    config, plan = plan_for(load_config(CONFIGS / "quickstart.yaml", asked), parse_cluster(cluster))
    shape = layer_shape(config, plan.axes, plan.microbatch_rows)
    assert traced_bytes(config, plan).stash == max(plan.stage_layers) * CLOSED_FORMS["gemm_last"](shape)
    assert shape.sizes["expert_input"] == 2 * shape.received_rows * shape.embed < shape.sorted_bytes
