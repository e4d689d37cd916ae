"""The mean of a model's last hidden states over a document's tokens: what `prepare --cluster-by MODEL` compares."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpar.config import Config
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.data.clusters.kmeans import normalized
from jaxpar.data.clusters.vectors import Documents, Embed
from jaxpar.data.tokens.token_index import read_index
from jaxpar.data.tokens.tokenizer_file import TOKENIZER, load_tokenizer, vocabulary
from jaxpar.generation.layout import BY_ROW, generation_layout
from jaxpar.generation.placed_model import open_model, place_model
from jaxpar.generation.prefill import put_rows
from jaxpar.interop.sources.open_source import Model, check_one_model
from jaxpar.interop.sources.tokenizer import tokenizer_folders
from jaxpar.layers.context import sequence_part
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.build import mapped, to_numpy
from jaxpar.mesh.collectives import reduce_max, reduce_sum
from jaxpar.mesh.layer_order import LAYERS, Chunk
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.runtime.batch import FORWARD, BatchLayout, single_document_fields

TOKENS, ROWS = 512, 8
"""First tokens of a document that are read; documents that a data rank reads together."""


def embeddings_of(path: str, folder: Path) -> tuple[Embed, str]:
    """Vectors of the documents of a token folder by a model, and the digest of its weights.

    Raises:
        UserError: there is no model, it is a mixture, or it has another vocabulary.
    """
    config, source = open_model(path, ())
    check_one_model(source, "--cluster-by")
    _check_vocabulary(source, folder)
    return vectors_by(config, source), source.digest


def _check_vocabulary(source: Model, folder: Path) -> None:
    """Refuse a model of other tokens: by its tokenizer, or by the size of its vocabulary where none is known."""
    index, size = read_index(folder), source.model.vocab
    assert size is not None, "the vocabulary is known once the model is"
    files = [one / TOKENIZER for one in tokenizer_folders(source, lambda _: None) if (one / TOKENIZER).exists()]
    model, text = f"--cluster-by: {named(source.path)}", f"the tokens of {named(folder)}"
    if size < index.vocab or (size > index.vocab and not files):
        raise UserError(
            f"{model} has a vocabulary of {size}, and {text} have one of {index.vocab}; expected a model of the same "
            "tokenizer"
        )
    if not files:
        return
    first, second = (vocabulary(load_tokenizer(one, named(one))) for one in (files[0], folder / index.tokenizer.name))
    if first != second:
        raise UserError(f"{model} and {text} have different tokenizers; expected a model of the same tokenizer")


def vectors_by(config: Config, source: Model) -> Embed:
    """Vectors of documents by a model of their vocabulary."""
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
            placed = batch.place(model.mesh, single_document_fields(tokens))
            vectors.append(to_numpy(program(model.weights, placed, put_rows(model.mesh, lengths))))
        return normalized(np.concatenate(vectors)[: len(documents)])

    return embed


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
