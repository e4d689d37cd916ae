"""Keys of a family as its publisher writes them, which state layers, rotary embeddings, widths and biases."""

import pytest

from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.interop.config_json import config_of, differences, model_of
from jaxpar.interop.mapping.family import tensors_of
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.layer_packing import layer_models
from jaxpar.layers.counting import parameter_count
from tests.interop.folders import golden
from tests.sentences import refused


@pytest.mark.parametrize(("stated", "grows"), [(4, True), (True, True), (0, False), (False, False)])
def test_the_temperature_of_llama_4_may_be_a_number_as_published(stated: object, grows: bool):
    _, model = model_of(golden("llama4", attn_temperature_tuning=stated))
    assert any(layer.attention_temperature is not None for layer in layer_models(model)) == grows


LONGROPE = {"type": "su", "short_factor": [1.25, 1.5, 2.0], "long_factor": [1, 3, 5]}
KIMI = {"full_attn_layers": [2], "kda_layers": [1], "num_heads": 4, "head_dim": 6, "short_conv_kernel_size": 4}
"""Layers numbered from 1, in a mapping that wins over the keys beside it."""


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("nemotron_h", {"layers_block_type": ..., "hybrid_override_pattern": "ME*-"}),
        ("nemotron_h", {"layers_block_type": ["mamba", "moe", "attention", "mlp"]}),
        ("minimax_m2", {"rope_parameters": ..., "rope_theta": 1e3, "rotary_dim": 6}),
        ("lfm2", {"layer_types": ..., "full_attn_idxs": [1]}),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention"], "mamba_d_head": "auto"}),
        ("kimi_linear", {"linear_attn_config": KIMI, "linear_num_heads": 7, "head_dim": 72, "linear_head_dim": ...}
         | {"layer_types": ..., "mlp_layer_types": ..., "first_k_dense_replace": 1}),
        ("gpt_neox", {"rope_parameters": ..., "rotary_emb_base": 100, "rotary_pct": 0.5}),
        ("phi3_longrope", {"rope_parameters": ..., "rope_scaling": LONGROPE, "rope_theta": 100.0}
         | {"partial_rotary_factor": 0.75}),
    ],
)  # fmt: skip
def test_layers_and_rotary_embeddings_may_be_stated_as_published(name: str, published: dict):
    assert differences(model_of(golden(name, **published))[1], model_of(golden(name))[1]) == []


def test_a_window_that_is_off_may_be_0():
    off = {"use_sliding_window": False, "sliding_window": 0, "layer_types": ...}
    _, model = model_of(golden("qwen2_moe", **off))
    assert (model.window, model.kinds) == (None, {})


def test_qwen_with_windows_in_its_last_layers():
    """By `max_window_layers`, as before transformers had `layer_types`."""
    keys = {"layer_types": None, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    _, model = model_of(golden("qwen2", **keys))
    assert model.kinds == {"global": {}, "local": {"window": 8}} and layer_kinds(model) == ("global", "local")


def test_the_stretched_base_of_hunyuan_is_read_as_one_base():
    """As published; keys beside `alpha` have no effect."""
    scaling = {
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "type": "dynamic",
    }  # fmt: skip
    published = {
        "rope_parameters": ..., "rope_scaling": scaling, "rope_theta": 10000.0, "head_dim": 128,
        "use_rotary_pos_emb": True,
    }  # fmt: skip
    family, model = model_of(golden("hunyuan_v1_dense", **published))
    assert (model.rope.scaling, model.rope.base) == ("none", pytest.approx(1e4 * 1000 ** (128 / 126)))
    written = config_of(family, model, {}, length=128)
    assert (written["rope_scaling"], written["rope_theta"]) == (None, model.rope.base)


def test_local_layers_of_modernbert_may_have_a_scaling():
    scalings = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_type": "linear", "factor": 2.5}}
    family, model = model_of(golden("modernbert", rope_parameters=scalings))
    assert {(one.rope.scaling, one.rope.factor) for one in layer_models(model) if one.window} == {("linear", 2.5)}
    assert config_of(family, model, {}, length=128)["rope_parameters"]["sliding_attention"]["factor"] == 2.5


@pytest.mark.parametrize(
    ("name", "keys", "experts", "written"),
    [
        ("ernie4_5_moe", {"num_hidden_layers": 6, "moe_layer_end_index": -1, "moe_layer_interval": 2},
         [None, 2] * 3, {"moe_layer_start_index": 1, "moe_layer_end_index": 5, "moe_layer_interval": 2}),
        ("hunyuan_v1_moe", {"moe_topk": [2, 3], "num_shared_expert": [1, 1]}, [2, 3], {"moe_topk": [2, 3]}),
        ("minimax_m2", {"rope_parameters": ..., "rope_theta": 1e3, "rotary_dim": 6}, [2, 2],
         {"rotary_dim": 6, "partial_rotary_factor": 0.5}),
    ],
)  # fmt: skip
def test_experts_of_layers_and_widths_are_written_as_published(name: str, keys: dict, experts: list, written: dict):
    family, model = model_of(golden(name, **keys))
    assert [one.experts and one.experts.per_token for one in layer_models(model)] == experts
    assert written.items() <= config_of(family, model, {}, length=128).items()


def test_the_feed_forward_of_lfm2_is_as_wide_as_published():
    """LFM2-1.2B states 12288, two thirds of it are 8192; LFM2-350M states 6656, which gives 4608, a multiple of 256."""
    for stated, width, changed in (
        (12288, 8192, {}),
        (6656, 4608, {}),
        (6656, 6656, {"block_auto_adjust_ff_dim": False}),
    ):
        keys = {"intermediate_size": ..., "block_ff_dim": stated, "block_ffn_dim_multiplier": 1.0} | changed
        assert model_of(golden("lfm2", **{"block_multiple_of": 256} | keys))[1].mlp == width


def test_layers_of_llama_4_are_those_of_its_defaults():
    """As published, of Maverick: every other layer has experts, every fourth no positions, all others chunks."""
    absent = dict.fromkeys(("no_rope_layers", "layer_types", "moe_layers", "attention_chunk_size", "floor_scale"), ...)
    assert model_of(golden("llama4", **absent)) == model_of(golden("llama4", **absent | {"no_rope_layers": []}))
    _, model = model_of(golden("llama4", num_hidden_layers=8, **absent))
    layers = [kind_models(model)[kind] for kind in layer_kinds(model)]
    assert [one.experts is not None for one in layers] == [False, True] * 4
    assert [(one.chunk, one.position) for one in layers] == [*[(8192, "rope")] * 3, (None, "none")] * 2
    assert [getattr(one.attention_temperature, "floor", None) for one in layers] == [None, None, None, 8192] * 2
    assert [one.qk_norm for one in layers] == [*["unweighted"] * 3, False] * 2


def test_granite_hybrids_may_lack_experts():
    family, dense = model_of(golden("granitemoehybrid", num_local_experts=0, position_embedding_type="nope"))
    assert (dense.experts, dense.mlp, dense.position) == (None, 24, "none")
    made = config_of(family, dense, {}, length=128)
    assert (made["num_local_experts"], made["shared_intermediate_size"]) == (0, 24)
    names = [tensor.name for tensor in tensors_of(family, dense)]
    assert "model.layers.0.shared_mlp.input_linear.weight" in names and not any("sparse" in name for name in names)


def test_a_base_of_olmo_3_outside_its_mappings_is_that_of_global_layers_as_in_transformers():
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    _, model = model_of(golden("olmo3", rope_parameters=None, rope_theta=1e4, rope_scaling=scaling))
    ropes = {one.window: (one.rope.base, one.rope.scaling) for one in kind_models(model).values()}
    assert ropes == {None: (1e4, "yarn"), 7: (5e5, "none")}


def test_layers_of_exaone_rotate_if_they_have_a_window_or_none_has():
    """As published: the 32B with a pattern of letters beside the types, the 1.2B without windows."""
    _, model = model_of(golden("exaone4", sliding_window_pattern="LLLG"))
    assert [(one.window, one.position) for one in kind_models(model).values()] == [(7, "rope"), (None, "none")]
    pattern = {"layer_types": None, "sliding_window_pattern": 2}
    assert layer_kinds(model_of(golden("exaone4", **pattern))[1]) == ("local", "global") * 2
    small = {"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 4}
    assert (model_of(golden("exaone4", **small))[1].kinds, model.position) == ({}, "none")


def test_biases_of_seed_oss_have_two_keys():
    found = [
        model_of(golden("seed_oss", attention_bias=inward, attention_out_bias=outward))[1].attention_bias
        for inward, outward in ((False, False), (True, False), (True, True))
    ]
    assert found == [False, "qkv", True]


def test_longrope_of_phi_3_is_read_as_published_and_goes_both_ways():
    """The factor is the ratio of two lengths outside the mapping, and the type has three names."""
    family, model = model_of(golden("phi3_longrope"))
    assert (model.rope.factor, model.rope.original_length, model.rope.long_factors) == (8.0, 16, (1.0, 3.0, 5.0))
    written = config_of(family, model, {}, length=128)
    assert written["original_max_position_embeddings"] == 16
    assert written["rope_scaling"] == {
        "rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 16,
        "short_factor": [1.25, 1.5, 2.0], "long_factor": [1.0, 3.0, 5.0],
    }  # fmt: skip
    with refused("original_max_position_embeddings", "16", "32"):
        model_of(golden("phi3_longrope", rope_scaling=LONGROPE | {"original_max_position_embeddings": 32}))


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("cohere2", 4096), ("gemma2", 4096), ("gemma3", 4096), ("gemma3n", 512), ("gemma4_dense", 512),
        ("gpt_oss", 128), ("ministral", 4096), ("olmo3", 4096),
    ],
)  # fmt: skip
def test_a_family_whose_class_always_makes_the_mask_of_windows_states_one(name: str, window: int):
    """In transformers it has no null for it."""
    types = ["full_attention"] * model_of(golden(name))[1].layers
    heads = {"per_layer_config": {}} if name == "gemma4_dense" else {}
    family, model = model_of(golden(name, layer_types=types, **heads))
    written = config_of(family, model, {}, length=128)
    assert (written["sliding_window"], written["layer_types"]) == (window, types)
    with refused("sliding_window", "None"):
        model_of(golden(name, layer_types=types, sliding_window=None))


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({"num_hidden_layers": 35}, 6_835_235_568),
        ({"num_hidden_layers": 30, "num_kv_shared_layers": 10, "intermediate_size": 8192}, 4_435_182_688),
    ],
    ids=["E4B", "E2B"],
)
def test_keys_of_gemma_3n_have_the_defaults_of_transformers(keys: dict[str, object], parameters: int):
    stated = {
        "model_type": "gemma3n_text", "architectures": ["Gemma3nForCausalLM"], "vocab_size": 262400,
        "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2,
    }  # fmt: skip
    _, model = model_of(HFConfig("config.json", stated | keys))
    assert parameter_count(model, False) == parameters
    layers = layer_models(model)
    assert [one.window for one in layers] == [512, 512, 512, 512, None] * (model.layers // 5)
    assert [one.activation_sparsity for one in layers] == [0.95] * 10 + [0.0] * (model.layers - 10)
