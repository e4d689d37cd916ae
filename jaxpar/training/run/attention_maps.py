"""Attention maps: the weights with which each token of a text attends to earlier ones, in a trained model.

The fast backends never form these weights, so they are computed here: on one device, with the decoder's own modules
around a plain attention that keeps what it multiplies the values by.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from jaxpar.config import ModelConfig, ParallelConfig, UserError
from jaxpar.config.counting import attention_scale
from jaxpar.config.kinds import kind_model
from jaxpar.layers.block import Context
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.layout.make_plan import make_plan
from jaxpar.layout.stages import mask_of, stages_of
from jaxpar.layout.state import all_weights
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.memory.disk_array import load_disk_arrays
from jaxpar.mesh.axes import varying_axes
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import to_storage
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch, layer_of_kind
from jaxpar.runtime.batch import single_document_fields
from jaxpar.training.residency.saved_state import SavedState
from jaxpar.training.run.run import Run
from jaxpar.training.step.train_step import TrainStep
from pallas_kernels.masks import Mask, allowed


def attention_weights(trainer: Run, tokens: np.ndarray, layer: int) -> Float[np.ndarray, "heads query key"]:
    """The attention weights of each head of `layer` (from 0) for a text, with the trainer's current weights.

    Row q of a head sums to 1 over the tokens that q may see; all others are 0. The whole model must fit on one device,
    and the run must be in one process.

    Args:
        trainer: holds the weights, on whatever mesh.
        tokens: one document, at most `data.sequence_length` tokens.
        layer: number of the layer, from 0.

    Raises:
        UserError: there is no such layer, the text is empty or longer than a row, or the run has several processes, or
            the model's input reads more than tokens.
    """
    config, length = trainer.config, len(tokens)
    refuse_without_batches(config.model, "a text")
    if not 0 <= layer < config.model.layers:
        raise UserError(f"layer: expected 0 to {config.model.layers - 1}, got {layer}")
    if not 1 <= length <= config.data.sequence_length:
        raise UserError(f"tokens: expected 1 to data.sequence_length ({config.data.sequence_length}), got {length}")
    if jax.process_count() > 1:
        raise UserError("attention weights are computed in one process: restore the checkpoint in a run of its own")
    step = _on_one_device(trainer)
    ordered = SavedState(trainer.layout.abstract_state(trainer.mesh), trainer.layout.order)
    whole = jax.device_get(all_weights(ordered.outgoing(load_disk_arrays(trainer.state))))
    weights = jax.device_put(whole, shardings(step.mesh, step.layout.weights))
    return np.asarray(_weights_function(step, layer)(weights, single_document_fields(np.asarray(tokens)[None])))


def _on_one_device(trainer: Run) -> TrainStep:
    """The trainer's model on the first device of its mesh."""
    config = replace(trainer.config, parallel=ParallelConfig())
    device = trainer.mesh.devices.flat[0]
    plan = make_plan(config, device)
    return TrainStep(StepLayout(config, plan), build_mesh(plan.axes, [device]))


def _weights_function(step: TrainStep, layer: int):
    """Compiled (all weights of a state, row) -> weights [heads, query, key]."""

    layout = step.layout

    def function(weights: Weights, row: Batch) -> jax.Array:
        stages = stages_of(layout, train=False)
        weights = to_storage(weights, layout.placements)
        x, tokens = stages.embed(weights, row), stages.token_context(row)
        head_weights = None
        for index, (kind, slot_row) in enumerate(layout.order.slots[: layer + 1]):
            model = kind_model(layout.config.model, kind)
            attention = _KeepingAttention(mask_of(layout.config, model), model)
            w = stages.loop.stacks[kind].store.fetch(weights[LAYERS][kind], slot_row, slot_row)
            prototype = layer_of_kind(layout.config, kind, layout.plan.layer_of(kind))
            context = Context(jnp.int32(index), tokens[kind], attention, train=False)
            x, _ = with_weights(prototype, w)(x, context)
            head_weights = attention.head_weights
        assert head_weights is not None
        # One device holds everything, but the types do not show that yet.
        of_row = head_weights[0]
        return jax.lax.psum(of_row, tuple(varying_axes(of_row)))

    return step.compiled(function, (layout.weights, PartitionSpec()), PartitionSpec())


class _KeepingAttention:
    """Softmax attention as in the paper (arXiv:1706.03762, section 3.2.1) that keeps its weights."""

    def __init__(self, mask: Mask, model: ModelConfig) -> None:
        self._mask, self._softcap, self._scale = mask, model.attention_softcap, attention_scale(model)
        self.head_weights: Float[Array, "batch heads query key"] | None = None
        """The weights of the last call."""

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, *sinks: jax.Array) -> jax.Array:
        """(query [batch, seq, heads, width], key and value [batch, seq, kv_heads, width], tokens, sinks [heads] if any)
        -> output like q."""
        group = q.shape[2] // k.shape[2]
        k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * self._scale
        if self._softcap is not None:
            scores = self._softcap * jnp.tanh(scores / self._softcap)
        mask = allowed(self._mask, tokens.indices, tokens.indices, tokens.segments, tokens.segments)[:, None]
        scores = jnp.where(mask, scores, -jnp.inf)
        for logits in sinks:
            last = jnp.broadcast_to(logits.astype(jnp.float32)[:, None, None], (*scores.shape[:3], 1))
            scores = jnp.concatenate([scores, last], axis=-1)
        self.head_weights = jax.nn.softmax(scores, axis=-1)[..., : k.shape[1]]
        return jnp.einsum("bhqk,bkhd->bqhd", self.head_weights.astype(v.dtype), v)
