"""Makes tiny models that take images too, with the logits that transformers computes of text alone.

    python -m tests.goldens.generate_multimodal

writes for each case, or for those named behind it, `tests/goldens/multimodal/<model_type>/` as `tests.goldens.generate`
writes its goldens.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.goldens.generate import fill, logits_of
from tests.goldens.shared_options import GLOBAL, LINEAR, LOCAL, rope

FOLDER = Path(__file__).parent / "multimodal"
TEXT = {
    "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip
IMAGES = {
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
LINEAR_HEADS = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_value_head_dim": 5,
}  # fmt: skip
CASES: dict[str, tuple[str, dict, dict, dict]] = {
    "gemma3": (
        "Gemma3", TEXT | {"model_type": "gemma3_text", "sliding_window": 7},
        IMAGES | {"model_type": "siglip_vision_model"}, {"mm_tokens_per_image": 4},
    ),
    "gemma4": (
        "Gemma4",
        TEXT | {
            "model_type": "gemma4_text", "sliding_window": 7, "global_head_dim": 12, "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 61, "rms_norm_eps": 0.1,
        },
        {
            "model_type": "gemma4_vision", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "patch_size": 4,
            "position_embedding_size": 16,
        },
        {},
    ),
    "mistral3": (
        "Mistral3", TEXT | {"model_type": "mistral", "sliding_window": None},
        IMAGES | {"model_type": "pixtral", "head_dim": 4}, {"tie_word_embeddings": False},
    ),
    "llava": ("Llava", TEXT | {"model_type": "llama"}, IMAGES | {"model_type": "siglip_vision_model"}, {}),
    "llama4": (
        "Llama4",
        TEXT | {
            "model_type": "llama4_text", "intermediate_size_mlp": 20, "num_hidden_layers": 4, "num_local_experts": 4,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 7, "floor_scale": 5, "attn_scale": 0.4,
            "pad_token_id": None, "rope_parameters": rope(1e3),
        },
        IMAGES | {
            "model_type": "llama4_vision_model", "num_hidden_layers": 1, "projector_input_dim": 8,
            "projector_output_dim": 8, "vision_output_dim": 8, "pixel_shuffle_ratio": 0.5, "intermediate_size": 32,
        },
        {"boi_token_index": 58, "eoi_token_index": 59, "image_token_index": 60},
    ),
    "qwen3_5": (
        "Qwen3_5",
        TEXT | LINEAR_HEADS | {
            "model_type": "qwen3_5_text", "layer_types": [LINEAR, GLOBAL],
            "rope_parameters": rope(1e3, partial_rotary_factor=0.25, mrope_section=[1, 0, 0]),
        },
        {
            "hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 2, "out_hidden_size": 16,
            "patch_size": 4, "num_position_embeddings": 4,
        },
        {},
    ),
}  # fmt: skip
"""The class of transformers, and the options of the text, of the images, and of both, by `model_type`."""


def write(name: str) -> Path:
    """Makes one and writes it."""
    kind, text, images, options = CASES[name]
    folder, seed = FOLDER / name, np.random.default_rng(list(name.encode()))
    shutil.rmtree(folder, ignore_errors=True)
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=images, **options)
    made = getattr(transformers, f"{kind}ForConditionalGeneration")
    model = made(config)
    fill(model, seed)
    model.save_pretrained(folder)
    tokens = seed.integers(0, 61, (2, 24)).astype(np.int32)
    with torch.no_grad():
        exact = made.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
        # transformers 5.24 fails to build Llama 4's output of text alone, which its text part computes.
        text_model = exact.language_model if name == "llama4" else exact
        logits = text_model(input_ids=torch.from_numpy(tokens.astype(np.int64))).logits.numpy()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    np.savez(folder / "logits.npz", tokens=tokens, logits=logits, made_with=np.array(versions))
    return folder


def write_gemma3n() -> Path:
    """Gemma 3n, whose images transformers encodes with timm alone: its text part is that of a model of text, and the
    other tensors, which nobody reads, have the names and no more of those that are published."""
    folder, seed = FOLDER / "gemma3n", np.random.default_rng(11)
    shutil.rmtree(folder, ignore_errors=True)
    text = TEXT | {
        "num_hidden_layers": 4, "sliding_window": 7, "layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL],
        "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.8, 0.8, 0.0, 0.0], "laurel_rank": 4,
        "altup_num_inputs": 3, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 53,
    }  # fmt: skip
    config = transformers.Gemma3nTextConfig(**text)
    model = transformers.Gemma3nForCausalLM(config).eval()
    fill(model, seed)
    beginning = "model.language_model."
    named = {beginning + name.removeprefix("model."): leaf for name, leaf in model.state_dict().items()}
    named = {name: leaf.contiguous() for name, leaf in named.items() if "lm_head" not in name}
    others = ("vision_tower.timm_model.conv_stem.conv", "embed_vision.embedding", "audio_tower.conformer.0.norm")
    named |= {f"model.{name}.weight": torch.ones(4) for name in others}
    folder.mkdir()
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    config_json = {
        "architectures": ["Gemma3nForConditionalGeneration"], "dtype": "float32", "model_type": "gemma3n",
        "audio_config": {"model_type": "gemma3n_audio"}, "vision_config": {"model_type": "gemma3n_vision"},
        "text_config": {name: value for name, value in config.to_dict().items() if name != "architectures"}
        | {"dtype": "float32"},
        "tie_word_embeddings": True,
    }  # fmt: skip
    for name, values in (("config", config_json), ("generation_config", {"eos_token_id": 1})):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    tokens = seed.integers(0, 61, (2, 24)).astype(np.int32)
    logits = logits_of(model.to(torch.float64), tokens)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    np.savez(folder / "logits.npz", tokens=tokens, logits=logits, made_with=np.array(versions))
    return folder


if __name__ == "__main__":
    names = sys.argv[1:] or [*CASES, "gemma3n"]
    for case in names:
        written = write_gemma3n() if case == "gemma3n" else write(case)
        print(f"{written} ({sum(file.stat().st_size for file in written.iterdir())} bytes)")
