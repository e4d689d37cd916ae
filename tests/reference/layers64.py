"""Models whose layers differ, in float64: each layer's blocks by their names, from the other references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.layers.linear_attention.mixers64 import MIXERS
from tests.reference import attention64, decoder64, experts64, norms64, per_layer64, streams64
from tests.reference.options import Options, complete
from tests.reference.tree import Tree

BLOCKS = ("attention", "mixer", "mlp")
"""In the order of a layer, each with a norm before it."""


KEYS = ("experts", "mixer", "linear_attention")
"""Options that the other references do not have."""


def block(
    name: str,
    x: Any,
    *,
    weights: Tree,
    options: Options,
    batch: Mapping[str, Any],
    layer: int,
    made: dict[str, Any],
    stream: Any,
) -> Any:
    """The summand of the residual stream that a block makes."""
    if name == "attention":
        return decoder64.attention(x, weights, options, batch, made)
    if name == "mixer":
        return MIXERS[options["mixer"]](x, weights, options, batch, layer)
    if options["experts"]:
        return experts64.experts(x, weights, options, batch, stream)[0]
    return decoder64.feed_forward(x, weights, options)


def forward(outside: Tree, trees: Sequence[Tree], each: Sequence[Options], inputs: Mapping[str, Any]) -> Any:
    """Logits [row, seq, vocab], from the weights outside layers, and the weights and full options of each layer."""
    x = outside["embedding"]["tokens"][inputs["tokens"]] * decoder64.embedding_scale(each[0])
    further, made = None, dict[str, Any]()
    if each[0]["per_layer_embeddings"]:
        further = per_layer64.inputs(x, inputs["tokens"], outside["embedding"], each[0])
    streams = streams64.first(x, outside["embedding"], each[0])
    for index, (weights, options) in enumerate(zip(trees, each, strict=True)):

        def run(x: Any, index: int = index, weights: Tree = weights, options: Options = options) -> Any:
            entered = x
            for name in (name for name in BLOCKS if name in weights):
                of_block = {"weights": weights[name], "options": options, "batch": inputs, "layer": index, "made": made}
                of_block["stream"] = x
                x = decoder64.added(x, partial(block, name, **of_block), name, weights, options, entered)
                x = decoder64.learned(x, entered, name, weights, options)
            return x

        streams = decoder64.stream_layer(streams, run, weights, options)
        if further is not None:
            streams = per_layer64.mixed(streams, further[:, :, index], weights, options)
        if options["layer_scale"]:  # a constant
            scale = jax.lax.stop_gradient(weights["layer_scale"]["scale"])
            streams = [x * scale for x in streams]
    x = streams64.last(streams, outside.get("final_norm", {}))
    head = outside["embedding"]["tokens"].T if each[0]["tied"] else outside["head"]["weight"]
    scores = norms64.norm(x, outside, "final_norm", each[0]) @ head / each[0]["logit_divisor"]
    return attention64.softcap(scores, each[0]["logit_softcap"])


def logits(outside: Tree, layers: Sequence[tuple[Tree, Options]], batch: Mapping[str, Any]) -> np.ndarray:
    """Logits [row, seq, vocab] of a model.

    Args:
        outside: the weights outside layers.
        layers: the weights and the options of each layer.
        batch: one of `decoder64`.
    """
    trees, each = _split(layers)
    return _compiled(lambda outside, trees, inputs: forward(outside, trees, each, inputs), outside, trees, batch)


def loss_and_gradients(
    outside: Tree, layers: Sequence[tuple[Tree, Options]], batch: Mapping[str, Any]
) -> tuple[float, tuple[Tree, list[Tree]]]:
    """The mean negative log-likelihood of a batch over its unmasked tokens, and its gradients: outside layers, and of
    each layer."""
    trees, each = _split(layers)

    def loss(both: tuple[Tree, Sequence[Tree]], inputs: Mapping[str, Any]) -> Any:
        scores = forward(*both, each, inputs)[..., : each[0]["vocab"]]
        label = jnp.take_along_axis(scores, inputs["labels"][..., None], axis=-1)[..., 0]
        return jnp.sum(inputs["mask"] * (jax.nn.logsumexp(scores, axis=-1) - label)) / jnp.sum(inputs["mask"])

    of_both = lambda outside, trees, inputs: jax.value_and_grad(loss)((outside, trees), inputs)
    value, gradients = _compiled(of_both, outside, trees, batch)
    return float(value), gradients


def _split(layers: Sequence[tuple[Tree, Options]]) -> tuple[list[Tree], Sequence[Options]]:
    """The weights and the full options of each layer."""
    each = [complete(options) | {key: options.get(key) for key in KEYS} for _, options in layers]
    return [tree for tree, _ in layers], each


def _compiled(function: Any, outside: Tree, trees: Sequence[Tree], batch: Mapping[str, Any]) -> Any:
    """`function(outside, trees, batch)` in float64, as NumPy."""
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (outside, list(trees)))
        inputs = {name: jnp.asarray(batch[name]) for name in decoder64.BATCH_KEYS}
        compiled = jax.jit(function, compiler_options=experts64.PLAIN)
        return jax.tree.map(np.asarray, compiled(*doubles, inputs))
