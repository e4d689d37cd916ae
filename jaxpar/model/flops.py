"""The floating-point work of a training step, and MFU: the only definition in the project.

Model FLOPs are what the mathematics of the model asks for, whatever the layout runs (PaLM, arXiv:2204.02311,
appendix B; the mask as in Megatron-LM's causal count):

- every token meets every matmul weight once: 2 FLOPs per weight forward and 4 backward, so 6 per weight.
  Matmul weights are the matrices of the layers and the output head. The embedding lookup multiplies nothing; a tied
  table counts once, as the head;
- attention multiplies Q with K and the probabilities with V over the (query, key) pairs that the mask keeps:
  4 * heads * head_dim FLOPs per pair and layer forward, three times that with backward.

What the run adds is overhead and not counted: recomputed activations, padded vocabulary columns, padded tokens, masked
pairs, norms, softmax, the optimizer. So MFU goes up only when a step gets faster.
"""

from __future__ import annotations

from jaxpar.config.counting import gated, head_dim, kv_heads
from jaxpar.config.schema import ModelConfig


def layer_matmul_parameters(model: ModelConfig) -> int:
    """Weights in the matrices of one decoder layer. `model` has its preset filled in."""
    query_and_output = 2 * model.embed * model.heads * head_dim(model)
    key_and_value = 2 * model.embed * kv_heads(model) * head_dim(model)
    projections = 3 if gated(model) else 2
    return query_and_output + key_and_value + projections * model.embed * model.mlp


def matmul_parameters(model: ModelConfig, vocab: int) -> int:
    """Weights that every token is multiplied with: all layers and the head, `vocab` being the true vocabulary."""
    return model.layers * layer_matmul_parameters(model) + model.embed * vocab


def flops_per_step(model: ModelConfig, tokens: int, pairs: int, vocab: int) -> float:
    """Model FLOPs of one optimizer step (forward and backward) over all devices.

    Args:
        model: The decoder, its preset filled in.
        tokens: Tokens of the step's batch that belong to a document.
        pairs: (query, key) pairs that the mask keeps, summed over the rows of the batch, for one head of one layer.
        vocab: True vocabulary size, without padding.
    """
    attention = 12 * model.layers * model.heads * head_dim(model) * pairs
    return float(6 * matmul_parameters(model, vocab) * tokens + attention)


def mfu(flops: float, seconds: float, devices: int, peak: float) -> float:
    """Model FLOPs utilisation as a fraction of 1.

    Args:
        flops: Model FLOPs of a step, from `flops_per_step`.
        seconds: Time of that step.
        devices: GPUs that shared it.
        peak: Dense bfloat16 peak of one of them in FLOP/s (`jaxpar.hardware.catalogue.GPU.training_peak`), also
            where a run multiplies in another type.
    """
    return flops / (seconds * devices * peak)
