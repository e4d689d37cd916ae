"""The floating-point work of a training step, and MFU: the only definition in the project.

Model FLOPs are what the mathematics of the model asks for, whatever the layout runs (PaLM, arXiv:2204.02311,
appendix B; the mask as in Megatron-LM's causal count):

- every token meets every matmul weight once: 2 FLOPs per weight forward and 4 backward, so 6 per weight.
  Matmul weights are the matrices of the layers that a token uses, and the output head. The embedding
  lookup multiplies nothing; a tied table counts once, as the head. Another input takes the FLOPs that it declares for a
  token (`Input.flops`), three times that with backward;
- a recurrence (`Recurrence`) takes the FLOPs that its mixer declares for a token, three times that with backward;
- attention multiplies Q with K and the probabilities with V over the (query, key) pairs that the mask keeps:
  2 * heads * (width of a query + width of a value) FLOPs per pair and layer forward, three times that with backward.

With adapters the other weights are frozen, and their own gradients are not asked for: 2 FLOPs per
weight forward and 2 backward, and 6 per weight of the factors.

What the run adds is overhead and not counted: recomputed activations, padded vocabulary columns, padded tokens, masked
pairs, norms, softmax, the optimizer. So MFU goes up only when a step gets faster.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxpar.config.counting import Chunk, Reach, head_dim, reach, value_dim
from jaxpar.config.kinds import kind_counts, kind_model
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import chunk_segments
from jaxpar.layers.counting import factor_parameters, matmul_parameters
from jaxpar.layers.declaration.adaptation import ALL_TRAINED, Adaptation
from jaxpar.layers.declaration.part import Core, Recurrence
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.inputs.input import input_class
from jaxpar.memory.layer_shape import mean_keys
from pallas_kernels.masks import Mask, visible_pairs

type Pairs = Mapping[Reach, int]
"""(query, key) pairs that the mask keeps, for one head of one layer, by the layer's `reach`."""


def reaches(model: ModelConfig) -> tuple[Reach, ...]:
    """The windows and chunks of a model's layers, each once."""
    return tuple(dict.fromkeys(reach(kind_model(model, kind)) for kind in kind_counts(model)))


def causal_pairs(model: ModelConfig, tokens: int, sequence: int) -> Pairs:
    """The pairs of `tokens` tokens in rows without documents, under the model's mask and each limit."""
    return {limit: round(tokens * mean_keys(sequence, limit, model.causal)) for limit in reaches(model)}


def seen_pairs(model: ModelConfig, rows: Mapping[str, np.ndarray], *, packed: bool) -> dict[Reach, int]:
    """The pairs of rows of documents, which see each other unless they are `packed`."""
    segments, positions = rows["segments"], rows["positions"]

    def visible(limit: Reach) -> int:
        if isinstance(limit, Chunk):
            return visible_pairs(
                Mask(segmented=True), chunk_segments(segments, positions, limit.size, segments.shape[1])
            )
        return visible_pairs(Mask(model.causal, limit, segmented=packed), segments)

    return {limit: visible(limit) for limit in reaches(model)}


def flops_per_step(
    model: ModelConfig, tokens: int, pairs: Pairs, vocab: int, adaptation: Adaptation = ALL_TRAINED
) -> float:
    """Model FLOPs of one optimizer step (forward and backward) over all devices.

    Args:
        model: The decoder, its preset filled in.
        tokens: Tokens of the step's batch that belong to a document.
        pairs: For each of `reaches`, the pairs that the mask keeps, summed over the rows of the batch.
        vocab: True vocabulary size, without padding.
        adaptation: What is trained beside frozen weights, if anything.
    """
    mixers = 0
    for kind, count in kind_counts(model).items():
        layer = kind_model(model, kind)
        mixers += 3 * count * (pair_flops(layer) * pairs.get(reach(layer), 0) + recurrence_flops(layer) * tokens)
    each = 4 if adaptation.frozen_by else 6
    matmuls = each * matmul_parameters(model, vocab) + 6 * factor_parameters(model, adaptation)
    matmuls += each // 2 * input_class(model).flops(model)
    return float(matmuls * tokens + mixers)


def pair_flops(model: ModelConfig) -> int:
    """FLOPs of a (query, key) pair in one layer forward, over all heads; of a model whose layers are all alike."""
    cores = sum(isinstance(one, Core) for _, one in declare_layer(model).operations)
    return cores * 2 * model.heads * (head_dim(model) + value_dim(model))


def recurrence_flops(model: ModelConfig) -> int:
    """FLOPs of a token in the recurrences of one layer forward, over all heads."""
    return sum(one.flops for _, one in declare_layer(model).operations if isinstance(one, Recurrence))


def mfu(flops: float, seconds: float, devices: int, peak: float) -> float:
    """Model FLOPs utilisation as a fraction of 1.

    Args:
        flops: Model FLOPs of a step, from `flops_per_step`.
        seconds: Time of that step.
        devices: GPUs that shared it.
        peak: Dense peak of one of them in FLOP/s: that of bfloat16 (`jaxpar.hardware.catalogue.GPU.training_peak`)
            where nothing else is named, also for a run with quantized matmuls.
    """
    return flops / (seconds * devices * peak)
