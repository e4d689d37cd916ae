"""Models whose layers differ, in float64: each layer's blocks by their names, from the other references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.layers.linear_attention.mixers64 import MIXERS
from tests.reference import decoder64, experts64
from tests.reference.options import Options, complete
from tests.reference.tree import Tree

BLOCKS = ("attention", "mixer", "mlp")
"""In the order of a layer, each with a norm before it."""


KEYS = ("experts", "mixer", "linear_attention")
"""Options that the other references do not have."""


def block(name: str, x: Any, *, weights: Tree, options: Options, batch: Mapping[str, Any], layer: int) -> Any:
    """The summand of the residual stream that a block makes."""
    if name == "attention":
        return decoder64.attention(x, weights, options, batch)
    if name == "mixer":
        return MIXERS[options["mixer"]](x, weights, options, batch, layer)
    if options["experts"]:
        return experts64.experts(x, weights, options, batch)[0]
    return decoder64.feed_forward(x, weights, options)


def logits(outside: Tree, layers: Sequence[tuple[Tree, Options]], batch: Mapping[str, Any]) -> np.ndarray:
    """Logits [row, seq, vocab] of a model.

    Args:
        outside: the weights outside layers.
        layers: the weights and the options of each layer.
        batch: one of `decoder64`.
    """
    own = [complete(options) | {key: options.get(key) for key in KEYS} for _, options in layers]

    def forward(outside: Tree, trees: Sequence[Tree], inputs: Mapping[str, Any]) -> Any:
        x = outside["embedding"]["tokens"][inputs["tokens"]] * decoder64.embedding_scale(own[0])
        for index, (weights, options) in enumerate(zip(trees, own, strict=True)):
            entered = x
            for name in (name for name in BLOCKS if name in weights):
                made = partial(block, name, weights=weights[name], options=options, batch=inputs, layer=index)
                x = decoder64.added(x, made, name, weights, options, entered)
        head = outside["embedding"]["tokens"].T if own[0]["tied"] else outside["head"]["weight"]
        return decoder64.norm(x, outside, "final_norm", own[0]) @ head / own[0]["logit_divisor"]

    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (outside, [one for one, _ in layers]))
        inputs = {name: jnp.asarray(batch[name]) for name in decoder64.BATCH_KEYS}
        compiled = jax.jit(forward, compiler_options=experts64.PLAIN)
        return np.asarray(compiled(*doubles, inputs))
