"""Makes the goldens: tiny random models in Hugging Face's format, with the logits that transformers computes of them.

Run from the repository's root where torch and transformers import (CPU builds will do; jaxpar need not be installed):

    python -m tests.goldens.generate

writes for each case of `cases.py`, or for those named behind it, a folder `tests/goldens/<name>/` with what
`save_pretrained` writes (`config.json`, `model.safetensors`, ...) and `logits.npz`: `tokens` int32 [batch, seq];
`logits` float64 [batch, seq, vocab]; `short`, the logits of the first 16 tokens of each row alone, where they are
others; `made_with`, the versions.

The weights are drawn by NumPy, norms and biases included. The model runs in float64; transformers keeps parts of it
(norms, rotary angles, softmax) in float32.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.goldens.cases import CASES
from tests.reference import spikingbrain64

FOLDER = Path(__file__).parent
ROWS, LENGTH = 2, 40

MASKED = ("Bert", "ModernBert")
"""Classes of bidirectional models, whose goldens have a masked loss: `labels`, -100 where there is none, and `loss`."""
OF_TEXT = ("Llama4", "Gemma3", "Gemma3n", "Gemma4", "Qwen3_5", "Qwen3_5Moe")
"""Classes whose configuration is that of the text part."""
BFLOAT16 = ("mistral", "phi3")
"""Goldens whose weights are stored in bfloat16; the others are in float32."""
ZERO_CENTERED = ("Gemma", "Qwen3Next", "Qwen3_5")
"""Beginnings of classes whose norms multiply by 1 plus their weights, but for `PLAIN`."""
PLAIN = ("Gemma3n", "Gemma4")
"""Beginnings of Gemma's classes whose norms multiply by their weights."""
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Ends of names of tensors of MiniMax that are no weights."""
BUFFERS = ("e_score_correction_bias", "expert_bias", "layer_scalar")
"""Ends of names of buffers that are weights: by which experts are chosen, and factors of layers."""
FACTORS = ("layer_scalar", "router.scale", "per_expert_scale")
"""Ends of names of factors in Gemma 4 that are 1 before training."""
LARGER = {"experts.gate_up_proj": 3.0, "sinks": 5.0}
"""Factors of weights of gpt-oss by their name, so that its limits and sinks matter."""
QUANTIZED = FOLDER / "quantized"


def model_of(name: str) -> transformers.PreTrainedModel:
    """A model of a case with random weights, in the dtype in which it is stored."""
    kind, options = CASES[name]
    end = "LMHeadModel" if kind == "GPT2" else "ForMaskedLM" if kind in MASKED else "ForCausalLM"
    config = f"{kind}{'TextConfig' if kind in OF_TEXT else 'Config'}"
    model = getattr(transformers, kind + end)(getattr(transformers, config)(**options, attn_implementation="eager"))
    fill(model, np.random.default_rng(list(name.encode())))
    return model.to(torch.bfloat16 if name in BFLOAT16 else torch.float32).eval()


def fill(model: transformers.PreTrainedModel, generator: np.random.Generator) -> None:
    """Draw the weights of a model."""
    kind = type(model).__name__.removesuffix("ForCausalLM")
    biases = [(path, own) for path, own in model.named_buffers() if path.endswith(BUFFERS)]
    with torch.no_grad():
        for path, weight in sorted([*model.named_parameters(), *biases]):
            scale = "norm" in path.lower() or "ln_" in path
            zero_centered = kind.startswith(ZERO_CENTERED) and not kind.startswith(PLAIN) and "linear_attn" not in path
            factor = path.endswith(FACTORS)
            neutral = float((scale and path.endswith("weight") and not zero_centered) or factor)
            spread = 0.3 * next((LARGER[end] for end in LARGER if kind == "GptOss" and path.endswith(end)), 1.0)
            weight.copy_(torch.from_numpy(neutral + spread * generator.standard_normal(tuple(weight.shape))))


def class_of(folder: Path) -> type[transformers.PreTrainedModel]:
    """The class of the model in a folder; some are not of the automatic classes, as Mistral 4's."""
    return getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])


def loaded(folder: Path, dtype: torch.dtype = torch.float64) -> transformers.PreTrainedModel:
    """The model in a folder."""
    load = class_of(folder).from_pretrained
    # Grouped products of experts are not implemented in float64.
    options = {"experts_implementation": "eager"} if "expert" in (folder / "config.json").read_text() else {}
    model = load(folder, dtype=dtype, attn_implementation="eager", **options).eval()
    model.config.use_cache = False  # a cache refuses models without attention
    return model


def logits_of(model: transformers.PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """Logits [batch, seq, vocab]."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()


def masked_loss(model: transformers.PreTrainedModel, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The masked loss, and its labels, which are -100 where a token has none."""
    labels = np.where(np.random.default_rng(5).random(tokens.shape) < 0.3, tokens[::-1], -100).astype(np.int64)
    with torch.no_grad():
        loss = model(torch.from_numpy(tokens.astype(np.int64)), labels=torch.from_numpy(labels)).loss
    return {"loss": loss.numpy(), "labels": labels}


def write(name: str) -> Path:
    """Makes one golden and writes it."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model_of(name).save_pretrained(folder)
    as_published(folder)
    tokens = np.random.default_rng(list(name.encode())).integers(0, 61, (ROWS, LENGTH)).astype(np.int32)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    model = loaded(folder)
    logits = {"logits": logits_of(model, tokens)}
    if name == "phi3_longrope":  # their frequencies are those of the original length
        logits["short"] = logits_of(model, tokens[:, :16])
    if CASES[name][0] in MASKED:
        logits |= masked_loss(model, tokens)
    np.savez(folder / "logits.npz", tokens=tokens, **logits, made_with=np.array(versions))
    if name == "kimi_k2":  # published with DeepSeek-V3's class, under a type of its own
        file = folder / "config.json"
        config = json.loads(file.read_text()) | {"model_type": name}
        file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return folder


def as_published(folder: Path) -> None:
    """Store the tensors of a folder as the publisher of its family does, where transformers writes others."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    if kind == "minimax":  # transformers writes decays that it computes, and computes them where they are absent
        file = folder / "model.safetensors"
        trained = {path: leaf for path, leaf in load_file(file).items() if not path.endswith(COMPUTED)}
        save_file(trained, file, metadata={"format": "pt"})
    if kind == "kimi_linear":  # transformers writes dense layers under another name than the publisher
        file, dense = folder / "model.safetensors", re.compile(r"block_sparse_moe\.(gate|up|down)_proj")
        named = {dense.sub(r"mlp.\1_proj", path): leaf for path, leaf in load_file(file).items()}
        save_file(named, file, metadata={"format": "pt"})


def write_mxfp4() -> Path:
    """`quantized/gpt_oss`, a model of one layer whose experts are in MXFP4 with every code and many scales, and
    `quantized/gpt_oss_bfloat16`, what transformers makes and saves of it."""
    folder, plain = QUANTIZED / "gpt_oss", QUANTIZED / "gpt_oss_bfloat16"
    for one in (folder, plain):
        shutil.rmtree(one, ignore_errors=True)
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_local_experts": 4}
    CASES["quantized"] = "GptOss", CASES["gpt_oss"][1] | sizes
    model_of("quantized").to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = np.random.default_rng(4)
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, inputs, outputs = tensors.pop(name).shape
        codes = generator.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
        scales = generator.integers(110, 126, (experts, outputs, inputs // 32), np.uint8)
        tensors |= {f"{name}_blocks": torch.from_numpy(codes), f"{name}_scales": torch.from_numpy(scales)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"modules_to_not_convert": left, "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    load = transformers.AutoModelForCausalLM.from_pretrained
    read = load(folder, dtype=torch.bfloat16, quantization_config=transformers.Mxfp4Config(dequantize=True))
    read.save_pretrained(plain)
    # transformers leaves them under the names of the codes.
    saved = {name.removesuffix("_blocks"): leaf for name, leaf in load_file(plain / "model.safetensors").items()}
    save_file(saved, plain / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_spikingbrain() -> Path:
    """`gla_swa`, a model that transformers does not have: its logits are those of `tests.reference.spikingbrain64`."""
    folder, rng = FOLDER / "gla_swa", np.random.default_rng(7)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = {
        "architectures": ["GLAswaForCausalLM"], "attn_layers": [1], "bos_token_id": 0, "dtype": "float32",
        "elementwise_affine": True, "eos_token_id": 0, "gate_logit_normalizer": 16, "gate_low_rank_dim": 16,
        "hidden_act": "swish", "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 128,
        "model_type": "gla_swa", "norm_eps": 1e-2, "num_attention_heads": 4, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "rope_theta": 1000.0, "sliding_window": 7, "tie_word_embeddings": False,
        "use_short_conv": False, "vocab_size": 61,
    }  # fmt: skip
    shapes = {"model.embeddings.weight": (61, 32), "model.norm.weight": (32,), "lm_head.weight": (61, 32)}
    inner = {
        "attn_norm.weight": (32,), "mlp_norm.weight": (32,), "attn.q_proj.weight": (32, 32), "attn.q_proj.bias": (32,),
        "attn.k_proj.weight": (16, 32), "attn.k_proj.bias": (16,), "attn.v_proj.weight": (16, 32),
        "attn.v_proj.bias": (16,), "attn.o_proj.weight": (32, 32), "mlp.gate_proj.weight": (40, 32),
        "mlp.up_proj.weight": (40, 32), "mlp.down_proj.weight": (32, 40),
    }  # fmt: skip
    gates = {
        "attn.gk_proj.0.weight": (16, 32), "attn.gk_proj.1.weight": (16, 16), "attn.gk_proj.1.bias": (16,),
        "attn.g_norm.weight": (8,),
    }  # fmt: skip
    for layer in range(3):
        named = inner if layer in config["attn_layers"] else inner | gates
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in named.items()}
    drawn = {name: ("norm" in name) + 0.3 * rng.normal(size=shape) for name, shape in sorted(shapes.items())}
    arrays = {name: leaf.astype(np.float32) for name, leaf in drawn.items()}
    tensors = {name: torch.from_numpy(leaf) for name, leaf in arrays.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    generation = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 0}
    for name, values in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    tokens = rng.integers(0, 61, (ROWS, LENGTH)).astype(np.int32)
    logits = spikingbrain64.logits(arrays, config, tokens)
    np.savez(folder / "logits.npz", tokens=tokens, logits=logits, made_with=np.array("tests.reference.spikingbrain64"))
    return folder


OTHERS = {"mxfp4": write_mxfp4, "gla_swa": write_spikingbrain}
"""Goldens that are not of `CASES`."""

if __name__ == "__main__":
    names = sys.argv[1:] or [*CASES, *OTHERS]
    for case in names:
        written = OTHERS[case]() if case in OTHERS else write(case)
        print(f"{written} ({sum(file.stat().st_size for file in written.iterdir())} bytes)")
