"""The output head: its matrix, the norm before it, and logits, their vocabulary split over the tensor axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.counting import streams_of
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.weights import declare_weights, with_weights
from jaxpar.layers.inputs.input import TIED
from jaxpar.layers.inputs.token_embedding import vocabulary_matrix
from jaxpar.layers.norm import HEAD_BIAS, TRANSFORM, final_norm, with_bias_column
from jaxpar.layers.residual.altup import merged, stream_matrices
from jaxpar.mesh.materialize import gather, materialize
from jaxpar.mesh.parameters import Weights
from jaxpar.mesh.placements import Placements
from jaxpar.mesh.rules import axes_of_dim


class Head(nnx.Module):
    """The matmul onto the vocabulary; a tied model has none and uses its embedding table."""

    def __init__(self, model: ModelConfig):
        declare_weights(self, {"weight": vocabulary_matrix(model, "embed", "vocab")})


def head_part(model: ModelConfig) -> str:
    """The part of the model with the weight of the head."""
    return "embedding" if model.tied else "head"


def vocab_axes(placements: Placements) -> tuple[str, ...]:
    """Mesh axes that split the vocabulary: tensor, and also pipe with `pipe_ends: shared`."""
    layout = placements.compute.layout
    return axes_of_dim(layout["head"]["weight"], 1) if "head" in layout else axes_of_dim(layout["embedding"][TIED], 0)


def head_operands(
    weights: Weights, accumulators: Weights, x: jax.Array, model: ModelConfig, placements: Placements
) -> tuple[jax.Array, jax.Array]:
    """The operands of the head: the normed residual stream, which carries the divisor of the logits, and this rank's
    part of the vocabulary."""

    def full(part: str) -> Any:
        if part not in accumulators:  # it is frozen
            return gather(weights[part], placements, part=part)
        return materialize(weights[part], accumulators[part], placements, part=part)

    x = x[..., : streams_of(model) * model.embed]
    norm: Any = final_norm(model)
    norm = with_weights(norm, full("final_norm")) if "final_norm" in weights else norm
    if matrices := [getattr(norm, name)[...] for name in stream_matrices(model)]:
        x = merged(x, matrices)
    x = norm(x)
    if model.head_transform:
        x = getattr(norm, TRANSFORM)(x)
    if model.logit_divisor != 1:  # of the operand that is smaller than the logits
        x = (x.astype(jnp.float32) / model.logit_divisor).astype(x.dtype)
    table = full(head_part(model))[TIED if model.tied else "weight"]
    return with_bias_column(x, table, getattr(norm, HEAD_BIAS)[...], model.tied) if model.head_bias else (x, table)


def project(
    x: Float[Array, "batch seq embed"], table: Float[Array, "..."], model: ModelConfig
) -> Float[Array, "batch seq local_vocab"]:
    """The matmul onto the vocabulary, with a float32 result. `table` is the head's weight [embed, local_vocab], or of a
    tied model the embedding's [local_vocab, embed]."""
    return jnp.einsum(f"bse,{_dims(model)}->bsv", x, table, preferred_element_type=jnp.float32)


def project_gradients(
    x: Float[Array, "batch seq embed"],
    table: Float[Array, "..."],
    cotangent: Float[Array, "batch seq local_vocab"],
    model: ModelConfig,
) -> tuple[Float[Array, "batch seq embed"], Float[Array, "..."]]:
    """Gradients of `project`: of `x` in its dtype, partial sums over the vocabulary; and of `table` in float32.

    Both matmuls take the cotangent in compute dtype. Autodiff would run them on float32 operands, a third of the
    head's work at full speed and two thirds at a fraction.
    """
    cotangent, dims = cotangent.astype(x.dtype), _dims(model)
    dx = jnp.einsum(f"bsv,{dims}->bse", cotangent, table)
    with jax.named_scope("gradients"):
        return dx, jnp.einsum(f"bse,bsv->{dims}", x, cotangent, preferred_element_type=jnp.float32)


def _dims(model: ModelConfig) -> str:
    return "ve" if model.tied else "ev"


def bound_logits(
    logits: Float[Array, "batch seq local_vocab"], model: ModelConfig, axes: Sequence[str]
) -> Float[Array, "batch seq local_vocab"]:
    """Logits with the model's cap; minus infinity in padding columns of the vocabulary, which `axes` split."""
    assert model.vocab is not None, "the vocabulary is known once the data is open"
    if model.logit_softcap is not None:
        logits = model.logit_softcap * jnp.tanh(logits / model.logit_softcap)
    columns = lax.axis_index(tuple(axes)) * logits.shape[-1] + jnp.arange(logits.shape[-1])
    return jnp.where(columns < model.vocab, logits, -jnp.inf)
