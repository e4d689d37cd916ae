"""The mean of a model's last hidden states over a document's tokens: what `prepare --cluster-by MODEL` compares."""

from __future__ import annotations

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpar.data.clusters.kmeans import normalized
from jaxpar.data.clusters.vectors import Documents, Embed
from jaxpar.generation.layout import BY_ROW, generation_layout
from jaxpar.generation.placed_model import open_model, place_model
from jaxpar.generation.prefill import put_rows
from jaxpar.layers.context import sequence_part
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.build import mapped, on_hosts
from jaxpar.mesh.collectives import reduce_max, reduce_sum
from jaxpar.mesh.layer_order import LAYERS, Chunk
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.runtime.batch import FORWARD, BatchLayout, one_document_rows

TOKENS, ROWS = 512, 8
"""First tokens of a document that are read; documents that a data rank reads together."""


def embeddings_of(path: str) -> tuple[Embed, str]:
    """Vectors of documents by a model, and the digest of its weights. Raises `UserError` where there is no model."""
    config, source = open_model(path, ())
    model = place_model(config, source)
    rows = ROWS * prod(model.mesh.shape[axis] for axis in DATA_AXES)
    layout = generation_layout(model.config, model.mesh, rows=rows, tokens=TOKENS)
    batch = BatchLayout(FORWARD, (rows, TOKENS))
    layouts = layout.placements.storage.layout, batch.partitions, BY_ROW
    function = mapped(partial(embeddings, layout), model.mesh, layout.plan.dtypes.compute, layouts, BY_ROW)
    program = jax.jit(function)

    def embed(documents: Documents) -> Float[np.ndarray, "document embed"]:
        vectors = []
        for first in range(0, len(documents), rows):
            tokens, lengths = np.zeros((rows, TOKENS), np.int32), np.ones(rows, np.int32)
            for row, document in enumerate(documents[first : first + rows]):
                lengths[row] = min(len(document), TOKENS)
                tokens[row, : lengths[row]] = document[:TOKENS]
            placed = batch.place(model.mesh, one_document_rows(tokens))
            vectors.append(on_hosts(program(model.weights, placed, put_rows(model.mesh, lengths))))
        return normalized(np.concatenate(vectors)[: len(documents)])

    return embed, source.digest


def embeddings(
    layout: StepLayout, weights: Weights, batch: Batch, lengths: Int[Array, " batch"]
) -> Float[Array, "batch embed"]:
    """The mean over the first `lengths` tokens of the residual stream after the last layer, each of length 1; on one
    device's part."""
    batch = vary(batch)
    stages = stages_of(layout, train=False)
    x = vary(stages.embed(weights, batch))
    x, _ = stages.loop.recorded(Chunk(weights[LAYERS], 0, 0), x, stages.token_context(batch), {})
    x = x.astype(jnp.float32)
    x = x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12)
    valid = sequence_part(batch["indices"]) < vary(lengths)[:, None]
    total = reduce_sum(jnp.where(valid[..., None], x, 0).sum(axis=1), ("context", "tensor"))
    return reduce_max(vary(total / lengths[:, None]), ("pipe", "context", "tensor"))
