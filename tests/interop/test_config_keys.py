"""Every key that transformers writes for a family is read, without effect for a reason, or refused."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.config_json import UNUSED, differences, known_keys, model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.family import Family
from tests.goldens.loading import FOLDER, NAMES
from tests.interop.folders import golden
from tests.sentences import refused

KEYS: Mapping[str, Mapping[str, Any] | None] = json.loads((FOLDER / "config_keys.json").read_text())
"""Keys of each class and their defaults, by `model_type`; see `tests/goldens/generate_keys.py`."""
GOLDEN_OF = {golden(name).values["model_type"]: name for name in reversed(NAMES)}
REASONS = {
    "tokens, files and releases": r"(bos|eos|pad|cls|sep|eod)_token_id|(im|text)_(start|end|newline)_id|pad_id|"
    r"mask_init_id|org_vocab_size|model_type|architectures|transformers_version|auto_map|_?name_or_path|"
    r"tokenizer_class|task_specific_params|custom_pipelines|transformers\.js_config|unsloth_.*|is_llama_config",
    "dtypes of weights and of parts of the computation": r"(torch_)?dtype|mamba_ssm_(cache_)?dtype|"
    r"residual_in_fp32|(scale_)?attention_softmax_in_fp32|reorder_and_upcast_attn",
    "caches and generation": r"use_cache|cache_implementation|num_logits_to_keep|do_sample|temperature|top_[kp]|"
    r"max_length|repetition_penalty|output_past",
    "outputs beside the logits": r"output_(attentions|hidden_states|router_logits)|return_dict|torchscript",
    "classifiers and other heads": r"id2label|label2id|_?num_labels|problem_type|summary_.*|"
    r"classifier_pooling|add_classification_head|class_num|pool_type|dense_list",
    "kernels and the order of a computation": r"_?attn_implementation(_autoset)?|attn_mode|chunk_size.*|"
    r"mamba_chunk_size|block_size|use_mamba_kernels|fuse_.*|pretraining_tp|ep_size|moe_shared_expert_overlap|"
    r"gradient_checkpointing|deterministic_flash_attn|reference_compile|repad_logits_with_grad",
    "random initial weights": r"initializer_range|init_method|rescale_prenorm_residual|time_step_(rank|max|floor|min)|"
    r"time_step_(init_scheme|scale)|initializer_cutoff_factor|block_(mlp|out)_init_scale|(block|conv)_use_xavier_init",
    "dropout and noise in training": r".*(dropout(_prob)?|pdrop)|router_jitter_noise|moe_capacity|moe_drop_tokens|"
    r"moe_random_routing_dropped_token",
    "losses beside that of tokens": r"(router_)?aux_loss_(coef|alpha)|seq_aux|sparse_pred(iction|_ignore_index)",
    "lengths for which positions were trained": r"(original_)?max_position_embeddings|n_ctx|model_max_length|"
    r"max_sequence_length|initial_context_length",
    "encoders": r"is_(encoder_)?decoder",
    "predictions of further tokens, which are left out": r"num_nextn_predict_layers|(num_|use_)?mtp(_.*)?",
}
"""Expressions for keys that do not change the logits, in any family that lists them as unused."""
REASONS_BY_FAMILY = """
    gemma: hidden_activation (hidden_act is read in its place)
    gemma2 gemma3_text: hidden_act (hidden_activation is read in its place)
    gemma3n_text: query_pre_attn_scalar (scores have no factor)
    gemma3n_text: altup_lr_multiplier (of the publisher's training)
    smollm3: sliding_window max_window_layers (for use_sliding_window, which is refused)
    phi3: full_attn_mod interpolate_factor (of the publisher's code for other models)
    mamba2: norm_before_gate rms_norm (of the publisher's code for other models)
    mamba2: intermediate_size (written by older releases, by expand)
    nemotron_h: expand (the width is that of the heads)
    nemotron_h: n_shared_experts (a shared expert has a width of its own)
    nemotron_h: norm_eps (layer_norm_epsilon is read in its place)
    qwen3_5_text qwen3_5_moe_text: attn_output_gate (always there)
    qwen3_5_moe_text solar_open: intermediate_size (no layer is dense)
    phimoe: input_jitter_noise (noise in training)
    kimi_linear: rope_theta rope_scaling (no layer has positions)
    kimi_linear: use_grouped_topk (the number of groups is read)
    granitemoehybrid: normalization_function (of the publisher's code for other models)
    cohere cohere2: layer_switch order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing
        use_gated_activation use_parallel_block use_parallel_embedding (of the publisher's code)
    starcoder2: layer_norm_epsilon (norm_epsilon is read in its place)
    starcoder2: norm_type mlp_type scale_attn_weights (of the publisher's code)
    stablelm: norm_eps (layer_norm_eps is read in its place)
    stablelm: rotary_scaling_factor (of the publisher's code)
    apertus: qk_norm (always there)
    apertus: post_norm (of the publisher's code)
    apertus: mlp_bias (never there)
    bert: directionality (of the publisher's code)
    bert: pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type (of a head for
        pairs of sentences)
    minimax_m2: shared_moe_mode mlp_intermediate_size (for shared_intermediate_size, which is 0)
    dots1: use_sliding_window (there is a window from max_window_layers on)
    ernie4_5_moe: moe_gate moe_use_aux_free (of the publisher's code for other models)
    hunyuan_v1_dense hunyuan_v1_moe: attention_head_dim (head_dim is read in its place)
    hunyuan_v1_dense hunyuan_v1_moe: cla_share_factor (for use_cla, which is refused)
    hunyuan_v1_moe: moe_layer_num_skipped (layers without experts lack their tensors)
    hunyuan_v1_moe: n_group topk_group routed_scaling_factor (for group_limited_greedy, which is refused)
    hunyuan_v1_moe: kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim (for use_mla, which is
        refused)
    lfm2 lfm2_moe: block_dim conv_dim conv_dim_out (hidden_size is read in its place)
    lfm2 lfm2_moe: block_norm_eps (norm_eps is read in its place)
    lfm2 lfm2_moe: num_heads (num_attention_heads is read in its place)
    lfm2 lfm2_moe: theta (rope_theta is read in its place)
    lfm2 lfm2_moe: block_use_swiglu use_pos_enc (always so)
    llama4_text: for_llm_compressor (of a tool that quantizes weights)
    modernbert: layer_norm_eps (norm_eps is read in its place)
    modernbert: position_embedding_type (all are rotary)
    gla_swa: conv_size (read where use_short_conv, which is refused)
"""
"""Keys that one family does not read, though they would mean something in another, and why."""
DERIVED: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], object]] = {
    ("cohere2", "head_dim"): lambda keys: keys["hidden_size"] // keys["num_attention_heads"]
}
"""Defaults that transformers makes of other keys, by `model_type` and key."""


def test_every_family_is_in_the_table_of_keys():
    """`python -m tests.goldens.generate_keys` makes it."""
    assert {family.model_type for family in FAMILIES.values()} <= KEYS.keys()
    assert [one for one, keys in KEYS.items() if keys is None] == ["gla_swa", "kimi_k2"], (
        "their code is beside the weights"
    )


def keys_of(family: Family) -> dict[str, Any]:
    return {**(KEYS["every"] or {}), **(KEYS[family.model_type] or {})}


@pytest.mark.parametrize("name", FAMILIES)
def test_each_key_is_read_or_without_effect_or_refused(name: str):
    family = FAMILIES[name]
    for key, default in keys_of(family).items():
        if key not in known_keys(family):
            assert default is None, f"transformers writes {key}, and every folder of its would be refused"
            with refused("config.json", key, family.model_type):
                model_of(golden(GOLDEN_OF[family.model_type], **{key: 1}))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_key_without_effect_has_a_reason(name: str):
    family = FAMILIES[name]
    common = re.compile("|".join(REASONS.values()))
    rows = re.findall(r"^ {4}(\w.*?): ([^(]+) \(", REASONS_BY_FAMILY, re.MULTILINE)
    named = {key for families, keys in rows if family.model_type in families.split() for key in keys.split()}
    assert [key for key in (*UNUSED, *family.unused) if key not in named and not common.fullmatch(key)] == []
    assert named <= {*family.unused}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_absent_key_has_the_default_of_transformers(name: str):
    """Where both have one: older files lack keys, and some families require those whose defaults have changed."""
    family = FAMILIES[name]
    read = {key for entry in (*family.entries, *family.layer_entries) for key in entry.keys}
    for key, default in keys_of(family).items():
        if key not in read or isinstance(default, dict | list):
            continue
        if derived := DERIVED.get((family.model_type, key)):
            default = derived(golden(GOLDEN_OF[family.model_type]).values)
        absent, stated = (model_or_none(family, key, value) for value in (..., default))
        if absent is not None and stated is not None:
            assert differences(absent, stated) == [], key


def model_or_none(family: Family, key: str, value: object) -> ModelConfig | None:
    """The model of the golden with a key changed; None if it is refused."""
    try:
        return model_of(golden(GOLDEN_OF[family.model_type], **{key: value}))[1]
    except UserError:
        return None
