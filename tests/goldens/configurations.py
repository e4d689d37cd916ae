"""Draws configurations of a family: the golden's, with other sizes, groups, biases, tying, scalings and windows."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

type Keys = dict[str, Any]
"""Keys of a `config.json` with their values."""
type Change = Callable[[Keys, np.random.Generator], Keys]
"""The keys of a configuration -> those that have another value; none if it has no such key."""

LENGTH = 200
"""The longest row that is compared."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
LEFT = ("partial_rotary_factor", "mrope_section", "llama_4_scaling_beta")
"""Keys of a golden's rotary embeddings that each scaling leaves as they are."""
BY_LAYER = (
    "layer_types", "layers_block_type", "no_rope_layers", "mlp_layer_types", "activation_sparsity_pattern",
    "intermediate_size",
)  # fmt: skip
"""Keys whose list has a value for each layer."""
SCALINGS = ({"rope_type": "default"}, {"rope_type": "linear", "factor": 2.5}, LLAMA3, YARN)


def one_of(values: Iterable[Any]) -> Callable[[np.random.Generator], Any]:
    """A draw of one of some values."""
    choices = list(values)
    return lambda random: choices[int(random.integers(len(choices)))]


VALUES: dict[str, Callable[[np.random.Generator], Any]] = {
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "n_inner"), one_of((12, 20, 32))),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "norm_eps", "layer_norm_eps"), one_of((1e-6, 1e-5, 1e-2))),
    **dict.fromkeys(
        ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "norm_topk_prob", "use_qk_norm", "qkv_bias"),
        one_of((False, True)),
    ),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), one_of((None, 2.0, 30.0))),
    **dict.fromkeys(
        ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"),
        one_of((0.25, 0.7, 1.5, 3.0)),
    ),
    "vocab_size": one_of((37, 61, 64)),
    "hidden_size": one_of((16, 24, 32)),
    "n_embd": one_of((16, 32)),
    "head_dim": one_of((6, 8, 12, 16)),
    "sliding_window": one_of((1, 3, 20, 150)),
    "query_pre_attn_scalar": one_of((4, 8, 20)),
    "routed_scaling_factor": one_of((0.5, 1.0, 2.5)),
    "kv_lora_rank": one_of((6, 12, 20)),
    "q_lora_rank": one_of((None, 10)),
    "v_head_dim": one_of((4, 10)),
    "n_shared_experts": one_of((1, 2, 3)),
    "ssm_state_size": one_of((4, 6)),
    "state_size": one_of((4, 6)),
    "mamba_d_state": one_of((4, 6)),
    "linear_key_head_dim": one_of((4, 6)),
    "linear_value_head_dim": one_of((4, 6)),
    "laurel_rank": one_of((2, 6)),
    "altup_num_inputs": one_of((2, 4)),
    "altup_active_idx": one_of((0, 1)),
    "hidden_size_per_layer_input": one_of((2, 6)),
    "vocab_size_per_layer_input": one_of((30, 64)),
    "num_kv_shared_layers": one_of((0, 1)),
}
"""Draws of the value of a key by itself."""


def heads(keys: Keys, random: np.random.Generator) -> Keys:
    """Query and key heads; a group has several or all of the query heads."""
    query = int(random.choice([2, 4, 6]))
    groups = int(random.choice([one for one in (1, 2, 3, 6) if query % one == 0]))
    named = [one for one in ("num_attention_heads", "n_head") if one in keys]
    changed: Keys = dict.fromkeys(named, query)
    if keys.get("num_key_value_heads") is not None:
        changed["num_key_value_heads"] = query if "kv_lora_rank" in keys else query // groups
    return changed if named else {}


def latent(keys: Keys, random: np.random.Generator) -> Keys:
    """Widths of heads of latent attention, from which others follow."""
    if "qk_rope_head_dim" not in keys:
        return {}
    rotary, others = int(random.choice([4, 8])), int(random.choice([4, 6]))
    follow = {"head_dim": rotary, "qk_head_dim": rotary + others}
    return {"qk_rope_head_dim": rotary, "qk_nope_head_dim": others} | {
        key: value for key, value in follow.items() if key in keys
    }


def experts(keys: Keys, random: np.random.Generator) -> Keys:
    """Numbers of experts, of all and of a token, and their groups."""
    named = [one for one in ("num_local_experts", "num_experts", "n_routed_experts") if keys.get(one)]
    if not named:
        return {}
    count = int(random.choice([4, 6, 8]))
    of_token = [one for one in ("num_experts_per_tok", "num_experts_per_token") if one in keys]
    changed = dict.fromkeys(named, count) | dict.fromkeys(of_token, int(random.integers(1, 4)))
    if "n_group" in keys:
        changed |= {"n_group": 2, "topk_group": int(random.integers(1, 3))}
    return changed


def layers(keys: Keys, random: np.random.Generator) -> Keys:
    """Another number of layers, of the types that there are; those of a type keep its `per_layer_config`."""
    number = int(random.integers(1, 5))
    named = [one for one in ("num_hidden_layers", "n_layer") if one in keys]
    changed: Keys = dict.fromkeys(named, number)
    for key, value in keys.items():
        if isinstance(value, list) and key in BY_LAYER:
            changed[key] = [value[int(random.integers(len(value)))] for _ in range(number)]
    if "per_layer_config" in keys:
        stated = {keys["layer_types"][int(layer)]: value for layer, value in keys["per_layer_config"].items()}
        changed["per_layer_config"] = {
            str(layer): stated[one] for layer, one in enumerate(changed["layer_types"]) if one in stated
        }
    if keys.get("num_kv_shared_layers"):
        changed["num_kv_shared_layers"] = 0  # a draw by itself may share some again
    if "mlp_only_layers" in keys:
        changed["mlp_only_layers"] = [one for one in range(number - 1) if random.random() < 0.3]
    if "first_k_dense_replace" in keys:
        changed["first_k_dense_replace"] = int(random.integers(0, number))
    return changed


def positions(keys: Keys, random: np.random.Generator) -> Keys:
    """The base and the scaling of rotary embeddings."""
    rope = keys.get("rope_parameters")
    if not isinstance(rope, dict):
        return {}
    if any(isinstance(value, dict) for value in rope.values()):
        return {"rope_parameters": {name: _scaled(value, random) for name, value in rope.items()}}
    return {"rope_parameters": _scaled(rope, random)}


def _scaled(rope: Keys, random: np.random.Generator) -> Keys:
    left = {key: value for key, value in rope.items() if key in LEFT}
    return left | one_of(SCALINGS)(random) | {"rope_theta": float(random.choice([100.0, 1e4, 1e6]))}


TOGETHER: tuple[Change, ...] = (layers, heads, latent, experts, positions)
"""Draws of keys that depend on one another."""


def drawn(keys: Keys, random: np.random.Generator, accepted: Callable[[Keys], bool]) -> Keys:
    """A configuration: changes in a random order, as many of them as `accepted` lets pass."""
    alone = [lambda keys, random, key=key: {key: VALUES[key](random)} if key in keys else {} for key in sorted(VALUES)]
    changes: list[Change] = [*TOGETHER, *alone]
    for number in random.permutation(len(changes)):
        changed = keys | changes[number](keys, random)
        if changed != keys and random.random() < 0.8 and accepted(changed):
            keys = changed
    return keys
