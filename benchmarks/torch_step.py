"""Times one training step of a Llama-shaped decoder in PyTorch, the other side of the step benchmark.

The model is transformers' `LlamaForCausalLM` with random weights: SDPA attention, `torch.compile`, fused AdamW on CUDA,
the gradient clipped by its global norm; with `--float8` torchao multiplies the layers' matrices in FP8. A step runs its
microbatches forward and backward, clips and updates; the clock stops after the device has finished. Imports nothing
from jaxpar, so it runs in any environment with torch and transformers, and prints one JSON object:

    python benchmarks/torch_step.py --model '{"layers": 16, "embed": 2048, ...}' --sequence 4096 --batch 8 --compile
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import transformers

REQUIRED = ("layers", "embed", "heads", "mlp", "vocab")
ONLY = {
    "norm": "rmsnorm",
    "position": "rope",
    "activation": "swiglu",
    "qk_norm": False,
    "window": None,
    "logit_softcap": None,
    "attention_softcap": None,
    "dropout": 0.0,
    "kinds": {},
    "pattern": None,
    "norm_placement": "pre",
    "attention_scale": None,
    "embedding_scale": False,
}
"""What the model section must say, if it says anything, for Llama to be the same model."""


@dataclass(frozen=True)
class TorchStep:
    """What is timed."""

    model: Mapping[str, Any]
    """The `model` section of a configuration as a dict (layers, embed, heads, kv_heads, head_dim, mlp, vocab, ...)."""
    sequence: int = 1024
    """Tokens per row."""
    batch: int = 8
    """Rows per step, over all microbatches."""
    microbatches: int = 1
    """Parts of the batch; gradients accumulate over them."""
    precision: str = "auto"
    """`bfloat16`: weights and moments too; `mixed`: float32 weights under autocast to bfloat16; `float32`; `auto` is
    bfloat16 on CUDA and float32 on a CPU."""
    float8: str | None = None
    """torchao's recipe for the matmuls of the layers (`tensorwise`: a scale per tensor, from the tensor; `rowwise`: one
    for each row); the head stays as it is. None leaves torchao out."""
    compile: bool = False
    """Run the model through `torch.compile`."""
    checkpointing: bool = False
    """Recompute each layer in the backward pass."""
    sdpa: str = "auto"
    """Kernel of scaled dot-product attention: `auto` (PyTorch's choice), `flash` or `cudnn`."""
    clip_norm: float = 1.0
    """Largest global norm of the gradient."""
    warmup: int = 5
    """Steps before the clock starts; the first one compiles."""
    steps: int = 20
    """Steps that are timed."""


def llama_config(model: Mapping[str, Any], sequence: int) -> transformers.LlamaConfig:
    """Llama's configuration for a model section. Raises ValueError where Llama is another model.

    Stretched rotary frequencies are left out: they are constants, and cost what plain ones cost.
    """
    import transformers

    missing = [key for key in REQUIRED if model.get(key) is None]
    if missing:
        raise ValueError(f"model.{missing[0]}: missing; the PyTorch side of the benchmark needs {', '.join(REQUIRED)}")
    for key, only in ONLY.items():
        if model.get(key, only) != only:
            raise ValueError(
                f"model.{key}: {model[key]!r} is not Llama's; the PyTorch side of the benchmark has {only!r}"
            )
    heads = model["heads"]
    return transformers.LlamaConfig(
        vocab_size=model["vocab"],
        hidden_size=model["embed"],
        intermediate_size=model["mlp"],
        num_hidden_layers=model["layers"],
        num_attention_heads=heads,
        num_key_value_heads=model.get("kv_heads") or heads,
        head_dim=model.get("head_dim") or model["embed"] // heads,
        rms_norm_eps=model.get("norm_epsilon", 1e-5),
        rope_theta=model.get("rope", {}).get("base", 10000.0),
        attention_bias=model.get("attention_bias", False),
        mlp_bias=model.get("mlp_bias", False),
        tie_word_embeddings=model.get("tied", False),
        max_position_embeddings=sequence,
        attn_implementation="sdpa",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def choose_attention(sdpa: str) -> None:
    """Enables only one kernel of scaled dot-product attention, so that no other replaces it silently."""
    import torch

    if sdpa == "auto":
        return
    torch.backends.cuda.enable_flash_sdp(sdpa == "flash")
    torch.backends.cuda.enable_cudnn_sdp(sdpa == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def to_float8(model: torch.nn.Module, recipe: str) -> int:
    """Swaps the matrices of the layers for torchao's, by its `convert_to_float8_training`; how many these were."""
    import torch
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    layers = lambda module, name: isinstance(module, torch.nn.Linear) and ".layers." in f".{name}"
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe), module_filter_fn=layers)
    return sum(type(module).__name__ == "Float8Linear" for module in model.modules())


def build(settings: TorchStep, device: str, precision: str) -> tuple[Any, torch.optim.Optimizer]:
    """The model, ready to be called, and its optimizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model = transformers.LlamaForCausalLM(llama_config(settings.model, settings.sequence))
    model = model.to(torch.bfloat16 if precision == "bfloat16" else torch.float32).train()
    if settings.float8 is not None and not to_float8(model, settings.float8):
        raise ValueError(f"float8: torchao's recipe {settings.float8} took none of the model's matrices")
    if settings.checkpointing:
        # The name that transformers 4 and 5 both know.
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda"
    )
    return (torch.compile(model) if settings.compile else model), optimizer


def measure(settings: TorchStep) -> dict[str, Any]:
    """Times the step on CUDA where it is present, on the CPU otherwise.

    Returns:
        `step_time_s` (median), `tokens_per_second`, `first_step_s` (compilation included), `peak_bytes` (allocated by
        PyTorch over the whole run; null on a CPU), `loss` of the last step, the device, versions and settings.
    """
    import torch
    import transformers

    if settings.batch % settings.microbatches:
        raise ValueError(f"batch: {settings.batch} rows do not divide into {settings.microbatches} microbatches")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = settings.precision
    if precision == "auto":
        precision = "bfloat16" if device == "cuda" else "float32"
    choose_attention(settings.sdpa)
    model, optimizer = build(settings, device, precision)
    shape = (settings.microbatches, settings.batch // settings.microbatches, settings.sequence)
    tokens = torch.randint(settings.model["vocab"], shape, device=device)

    def step() -> torch.Tensor:
        total = torch.zeros((), device=device)
        for rows in tokens:
            with torch.autocast(device, torch.bfloat16, enabled=precision == "mixed"):
                loss = model(input_ids=rows, labels=rows).loss / settings.microbatches
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    times, loss = [], torch.zeros(())
    for _ in range(settings.warmup + settings.steps):
        start = time.perf_counter()
        loss = step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    median = statistics.median(times[settings.warmup :])
    return {
        "tokens_per_second": settings.batch * settings.sequence / median,
        "step_time_s": median,
        "first_step_s": times[0],
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "loss": float(loss),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
        "settings": dataclasses.asdict(settings) | {"precision": precision},
    }


def parse(arguments: list[str] | None = None) -> TorchStep:
    """Settings from the command line."""
    parser = argparse.ArgumentParser(description="Time a training step of a Llama-shaped decoder in PyTorch.")
    default = TorchStep(model={})
    parser.add_argument("--model", type=json.loads, required=True, help="model section as a JSON object")
    for name in ("sequence", "batch", "microbatches", "warmup", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--precision", choices=("auto", "bfloat16", "mixed", "float32"), default=default.precision)
    parser.add_argument("--float8", choices=("tensorwise", "rowwise"), help="torchao's recipe for the layers' matmuls")
    parser.add_argument("--sdpa", choices=("auto", "flash", "cudnn"), default=default.sdpa)
    parser.add_argument("--clip-norm", type=float, default=default.clip_norm)
    parser.add_argument("--compile", action="store_true", help="run the model through torch.compile")
    parser.add_argument("--checkpointing", action="store_true", help="recompute each layer in the backward pass")
    return TorchStep(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    try:
        print(json.dumps(measure(parse())))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
