"""Makes the goldens: logits of tiny random models as Hugging Face transformers computes them.

Run from the repository's root where torch and transformers import (CPU builds will do):

    python -m tests.goldens.generate

writes `tests/goldens/<name>.npz` for each case, or for those named behind it: the weights in float32 under
`layers/attention/query` and the like, in the layout of the weight tree, with layers of all kinds in one stack and with
the vocabulary not padded; `tokens` int32 [batch, seq]; `logits` float64 [batch, seq, vocab]; `options`, the model
section of a configuration as JSON; `made_with`, the versions.

The weights are drawn by NumPy, norms and biases included, and loaded into a transformers model through its own state
dict. The model runs in float64; transformers keeps parts of it (norms, rotary angles, softmax) in float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.goldens.loading import nested
from tests.reference.options import complete, kinds_of_layers
from tests.reference.small import random_weights
from tests.reference.tree import Tree, flatten

FOLDER = Path(__file__).parent
ROWS, LENGTH = 2, 40

GEMMA = {
    "embed": 24, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 32, "vocab": 61, "norm": "zero_centered_rmsnorm",
    "norm_placement": "sandwich", "norm_epsilon": 1e-6, "activation": "geglu", "tied": True, "embedding_scale": True,
}  # fmt: skip
"""What is the same in Gemma 2 and 3."""

CASES = {
    "gpt2": {
        "layers": 2, "embed": 32, "heads": 4, "head_dim": 8, "mlp": 128, "vocab": 61, "norm": "layernorm",
        "norm_epsilon": 1e-5, "position": "learned", "max_positions": 64, "activation": "gelu",
        "attention_bias": True, "mlp_bias": True, "tied": True,
    },
    "llama": {
        "layers": 2, "embed": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp": 48, "vocab": 61,
        "norm_epsilon": 1e-5, "rope_base": 10000.0, "rope_scaling": "llama3", "rope_factor": 4.0,
        "rope_original_length": 32, "rope_low_frequency": 1.0, "rope_high_frequency": 4.0,
    },
    "llama_biases": {
        "layers": 2, "embed": 32, "heads": 4, "kv_heads": 1, "head_dim": 8, "mlp": 48, "vocab": 61,
        "norm_epsilon": 1e-6, "rope_base": 500.0, "rope_scaling": "linear", "rope_factor": 2.5,
        "attention_bias": True, "mlp_bias": True,
    },
    "mistral": {
        "layers": 2, "embed": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 48, "vocab": 61,
        "norm_epsilon": 1e-5, "rope_base": 10000.0, "window": 7,
    },
    "qwen3": {
        "layers": 2, "embed": 32, "heads": 4, "kv_heads": 2, "head_dim": 12, "mlp": 48, "vocab": 61,
        "norm_epsilon": 1e-6, "rope_base": 1000.0, "qk_norm": True, "tied": True,
    },
    "qwen2": {
        "layers": 2, "embed": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 48, "vocab": 61,
        "norm_epsilon": 1e-6, "rope_base": 1000.0, "attention_bias": "qkv", "tied": True,
    },
    "olmo2": {
        "layers": 2, "embed": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 48, "vocab": 61,
        "norm_epsilon": 1e-6, "rope_base": 5000.0, "norm_placement": "post", "qk_norm": "projection",
    },
    "gemma2": GEMMA | {
        "layers": 4, "rope_base": 10000.0, "attention_softcap": 2.0, "logit_softcap": 3.0, "attention_scale": 5**-0.5,
        "kinds": {"local": {"window": 7}, "global": {}}, "pattern": {"unit": ["local", "global"]},
    },
    "gemma3": GEMMA | {
        "layers": 6, "rope_base": 10000.0, "qk_norm": True, "attention_scale": 12**-0.5,
        "kinds": {
            "local": {"window": 6, "rope_base": 100.0},
            "global": {"rope_scaling": "linear", "rope_factor": 4.0},
        },
        "pattern": {"unit": ["local", "local", "local", "global"], "suffix": ["local", "local"]},
    },
}  # fmt: skip
"""Model options by the name of the golden; the name's first word is the transformers architecture. The place of a
case is its seed: append others."""


def gpt2_model(options: dict) -> transformers.PreTrainedModel:
    """An uninitialised GPT-2 of these options."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=options["vocab"],
            n_positions=options["max_positions"],
            n_embd=options["embed"],
            n_layer=options["layers"],
            n_head=options["heads"],
            n_inner=options["mlp"],
            layer_norm_epsilon=options["norm_epsilon"],
            activation_function="gelu_new",
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",
        )
    )


def llama_like_model(family: str, options: dict) -> transformers.PreTrainedModel:
    """An uninitialised Llama, Qwen, OLMo 2, Mistral or Gemma of these options."""
    full = {**options, **complete(options)}
    scaling = None
    if full["rope_scaling"] != "none":
        scaling = {"rope_type": full["rope_scaling"], "factor": full["rope_factor"]}
    if full["rope_scaling"] == "llama3":
        scaling |= {
            "original_max_position_embeddings": full["rope_original_length"],
            "low_freq_factor": full["rope_low_frequency"],
            "high_freq_factor": full["rope_high_frequency"],
        }
    shape = {
        "vocab_size": full["vocab"],
        "hidden_size": full["embed"],
        "intermediate_size": full["mlp"],
        "num_hidden_layers": full["layers"],
        "num_attention_heads": full["heads"],
        "num_key_value_heads": full["kv_heads"],
        "head_dim": full["head_dim"],
        "rms_norm_eps": full["norm_epsilon"],
        "rope_theta": full["rope_base"],
        "rope_scaling": scaling,
        "max_position_embeddings": 128,
        "tie_word_embeddings": full["tied"],
        "attn_implementation": "eager",
    }
    if family == "llama":
        biases = {"attention_bias": full["attention_bias"], "mlp_bias": full["mlp_bias"]}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **biases))
    if family == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape))
    if family == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape))
    if family == "olmo2":
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**shape))
    if family in ("gemma2", "gemma3"):
        return gemma_model(family, full, shape)
    return transformers.MistralForCausalLM(transformers.MistralConfig(**shape, sliding_window=full["window"]))


def gemma_model(family: str, full: dict, shape: dict) -> transformers.PreTrainedModel:
    """An uninitialised Gemma; its configuration names two kinds of layers and, for Gemma 3, their rotary embeddings."""
    names = {"local": "sliding_attention", "global": "full_attention"}
    kinds = {kind: full | own for kind, own in full["kinds"].items()}
    rotary = {}
    for kind, own in kinds.items():
        rotary[names[kind]] = {"rope_type": "default", "rope_theta": own["rope_base"]}
        if own["rope_scaling"] == "linear":
            rotary[names[kind]] |= {"rope_type": "linear", "factor": own["rope_factor"]}
    shape = {key: value for key, value in shape.items() if not key.startswith("rope_")}
    shape |= {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(full["attention_scale"] ** -2),
        "sliding_window": kinds["local"]["window"],
        "layer_types": [names[kind] for kind in kinds_of_layers(full)],
        "attn_logit_softcapping": full["attention_softcap"],
        "final_logit_softcapping": full["logit_softcap"],
    }
    if family == "gemma2":
        shape["rope_parameters"] = rotary["full_attention"]
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**shape))
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**shape, rope_parameters=rotary))


def norm_names(full: dict) -> dict[str, str]:
    """What transformers calls a layer's norms, by our names."""
    return {
        "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
        "post": {
            "post_attention_norm": "post_attention_layernorm",
            "post_mlp_norm": "post_feedforward_layernorm",
        },
        "sandwich": {
            "attention_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "post_mlp_norm": "post_feedforward_layernorm",
        },
    }[full["norm_placement"]]


def gpt2_state(weights: Tree, options: dict) -> dict[str, np.ndarray]:
    """GPT-2's state dict: its `Conv1D` weights are [in, out], and query, key and value stand side by side."""
    embed = options["embed"]
    state = {
        "transformer.wte.weight": weights["embedding"]["tokens"],
        "transformer.wpe.weight": weights["embedding"]["positions"],
        "transformer.ln_f.weight": weights["final_norm"]["scale"],
        "transformer.ln_f.bias": weights["final_norm"]["bias"],
        "lm_head.weight": weights["embedding"]["tokens"],
    }
    layers = weights["layers"]
    attention, mlp = layers["attention"], layers["mlp"]
    for index in range(options["layers"]):
        parts = [attention[name][index] for name in ("query", "key", "value")]
        biases = [attention[name + "_bias"][index] for name in ("query", "key", "value")]
        block = {
            "ln_1.weight": layers["attention_norm"]["scale"][index],
            "ln_1.bias": layers["attention_norm"]["bias"][index],
            "attn.c_attn.weight": np.concatenate([part.reshape(embed, -1) for part in parts], axis=1),
            "attn.c_attn.bias": np.concatenate([bias.reshape(-1) for bias in biases]),
            "attn.c_proj.weight": attention["output"][index].reshape(-1, embed),
            "attn.c_proj.bias": attention["output_bias"][index],
            "ln_2.weight": layers["mlp_norm"]["scale"][index],
            "ln_2.bias": layers["mlp_norm"]["bias"][index],
            "mlp.c_fc.weight": mlp["up"][index],
            "mlp.c_fc.bias": mlp["up_bias"][index],
            "mlp.c_proj.weight": mlp["down"][index],
            "mlp.c_proj.bias": mlp["down_bias"][index],
        }
        state |= {f"transformer.h.{index}.{name}": leaf for name, leaf in block.items()}
    return state


def llama_like_state(weights: Tree, options: dict) -> dict[str, np.ndarray]:
    """State dict of Llama and those like it: `Linear` weights are [out, in]."""
    full = complete(options)
    embed = full["embed"]
    head = weights["embedding"]["tokens"] if full["tied"] else weights["head"]["weight"].T
    state = {
        "model.embed_tokens.weight": weights["embedding"]["tokens"],
        "model.norm.weight": weights["final_norm"]["scale"],
        "lm_head.weight": head,
    }
    layers = weights["layers"]
    attention, mlp = layers["attention"], layers["mlp"]
    for index in range(full["layers"]):
        block = {f"{theirs}.weight": layers[ours]["scale"][index] for ours, theirs in norm_names(full).items()}
        block["self_attn.o_proj.weight"] = attention["output"][index].reshape(-1, embed).T
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value")):
            block[f"self_attn.{theirs}_proj.weight"] = attention[ours][index].reshape(embed, -1).T
        if full["qk_norm"]:
            block["self_attn.q_norm.weight"] = attention["query_norm"][index].reshape(-1)
            block["self_attn.k_norm.weight"] = attention["key_norm"][index].reshape(-1)
        if full["attention_bias"]:
            biased = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
            for theirs, ours in biased[: 4 if full["attention_bias"] is True else 3]:
                block[f"self_attn.{theirs}_proj.bias"] = attention[ours + "_bias"][index].reshape(-1)
        for name in ("gate", "up", "down"):
            block[f"mlp.{name}_proj.weight"] = mlp[name][index].T
            if full["mlp_bias"]:
                block[f"mlp.{name}_proj.bias"] = mlp[name + "_bias"][index]
        state |= {f"model.layers.{index}.{name}": leaf for name, leaf in block.items()}
    return state


def transformers_logits(name: str, options: dict, weights: Tree, tokens: np.ndarray) -> np.ndarray:
    """Logits of the transformers model, float64 [batch, seq, vocab]. Raises if a weight is missing or left over."""
    family = name.split("_")[0]
    model = gpt2_model(options) if family == "gpt2" else llama_like_model(family, options)
    state = gpt2_state(weights, options) if family == "gpt2" else llama_like_state(weights, options)
    model = model.double().eval()
    model.load_state_dict({key: torch.from_numpy(np.array(leaf, np.float64)) for key, leaf in state.items()})
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()


def draw(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random weights of a case, flat and float32, and its tokens."""
    options, seed = CASES[name], list(CASES).index(name)
    tree = random_weights(options, padded_vocab=options["vocab"], positions=options.get("max_positions", 0), seed=seed)
    tokens = np.random.default_rng(100 + seed).integers(0, options["vocab"], (ROWS, LENGTH)).astype(np.int32)
    return {"/".join(path): leaf for path, leaf in flatten(tree, dtype=np.float32).items()}, tokens


def write(name: str) -> Path:
    """Makes one golden and writes it."""
    leaves, tokens = draw(name)
    logits = transformers_logits(name, CASES[name], nested(leaves), tokens)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    options = np.array(json.dumps(CASES[name]))
    path = FOLDER / f"{name}.npz"
    np.savez(path, tokens=tokens, logits=logits, options=options, made_with=np.array(versions), **leaves)
    return path


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        written = write(case)
        print(f"{written} ({written.stat().st_size} bytes)")
