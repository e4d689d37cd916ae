"""Several residual streams (`model.altup`): a layer computes with one of them, and predicts and corrects all.

The streams of a token are side by side in the last dim, [stream, embed], so that whatever passes a residual stream on
passes on all of them. Tensor ranks have full weights, for their parts of the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.counting import streams_of
from jaxpar.config.mappings.residual import AltUpConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Weights, vector
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.mesh.parameters import ParamSpec

LEAST_SQUARE = 1e-5
"""The least mean square by which a projected stream is divided."""
TINY = 1e-30
"""The least mean square whose root is taken."""

type Stream = Float[Array, "batch part embed"]
type Streams = Float[Array, "batch part streams embed"]
type Norm = Callable[[jax.Array], jax.Array]


def apart(x: Float[Array, "batch part wide"], streams: int) -> Streams:
    """The streams of `x`, each in a separate row."""
    return x.reshape(*x.shape[:-1], streams, -1)


def side_by_side(streams: Streams) -> Float[Array, "batch part wide"]:
    """The streams in one row."""
    return streams.reshape(*streams.shape[:-2], -1)


class AltUp(nnx.Module):
    """The prediction before a layer's blocks, and the correction behind them."""

    def __init__(self, model: ModelConfig):
        assert model.altup is not None, "a model of several streams"
        self.config: AltUpConfig = model.altup
        declare_weights(self, self.declare(model))
        self.router: nnx.Param
        self.prediction: nnx.Param
        self.correction: nnx.Param
        self.output_scale: nnx.Param

    @staticmethod
    def declare(model: ModelConfig) -> Weights:
        """The router; the coefficients by which each stream adds to each prediction, [mode, to, from]; those by which
        the active stream's change adds to each stream, [mode, to]; and, where layers have per-layer inputs, the
        scale of the active stream before these are mixed with it."""
        streams = streams_of(model)

        def small(first: str, *shape: int) -> ParamSpec:
            return ParamSpec(shape, (first, *("norm",) * len(shape[1:])), scale=model.init_scale, decay=True)

        scale = {} if model.per_layer_embeddings is None else {"output_scale": vector((model.embed,), ("norm",))}
        return Weights(
            scale,
            router=small("embed", model.embed, streams),
            prediction=small("norm", streams, streams, streams),
            correction=small("norm", streams, streams),
        )

    def predict(self, x: Float[Array, "batch part wide"], norm: Norm, train: bool) -> Streams:
        """The prediction of each stream: itself, and a sum of all streams."""
        streams = apart(x, self.config.streams)
        modes = self._modes(self.active(streams), norm)
        coefficients = jnp.einsum("bsm,mtf->bstf", modes, self._limited("prediction", train))
        added = (coefficients[..., None] * streams[:, :, None].astype(jnp.float32)).sum(axis=3)
        return streams + added.astype(x.dtype)

    def active(self, streams: Streams) -> Stream:
        """The stream that layers compute with."""
        return streams[:, :, self.config.active]

    def correct(self, predicted: Streams, y: Stream, norm: Norm, train: bool) -> Streams:
        """The streams behind the layer, whose blocks made `y` of the active one's prediction."""
        change = (y - self.active(predicted)).astype(jnp.float32)
        coefficients = 1 + jnp.einsum("bsm,mt->bst", self._modes(y, norm), self._limited("correction", train))
        return predicted + (coefficients[..., None] * change[:, :, None]).astype(y.dtype)

    def scaled(self, streams: Streams) -> Stream:
        """The active stream as inputs of the layer are mixed with it."""
        return self.active(streams) * self.output_scale[...]

    def _modes(self, x: Stream, norm: Norm) -> Float[Array, "batch part streams"]:
        """The numbers that coefficients are linear in, in float32."""
        routed = jnp.einsum("bse,em->bsm", norm(x) / x.shape[-1], self.router[...])
        return jnp.tanh(routed.astype(jnp.float32))

    def _limited(self, name: str, train: bool) -> jax.Array:
        weight, limit = getattr(self, name)[...].astype(jnp.float32), self.config.clip
        return weight if limit is None or not train else jnp.clip(weight, -limit, limit)


def stream_matrices(model: ModelConfig) -> dict[str, ParamSpec]:
    """Matrices by name, one for each stream but the first: into it at the input, or out of it before the final norm."""
    spec = ParamSpec((model.embed, model.embed), ("input", "embed"), scale=model.init_scale, decay=True)
    return {f"stream_{index}": spec for index in range(1, streams_of(model))}


def spread(x: Stream, matrices: Sequence[jax.Array]) -> Float[Array, "batch part wide"]:
    """The streams before the first layer: `x`, and its products with the matrices, each as large as `x`."""
    return side_by_side(jnp.stack([x, *(_match_magnitude(x @ matrix, x) for matrix in matrices)], axis=-2))


def merged(x: Float[Array, "batch part wide"], matrices: Sequence[jax.Array]) -> Stream:
    """The mean of the first stream, and of the others' products with their matrices, each as large as the first."""
    first, *others = jnp.unstack(apart(x, 1 + len(matrices)), axis=-2)
    others = [_match_magnitude(stream @ matrix, first) for stream, matrix in zip(others, matrices, strict=True)]
    return jnp.stack([first, *others]).astype(jnp.float32).mean(axis=0).astype(x.dtype)


def _match_magnitude(y: Stream, x: Stream) -> Stream:
    """`y` with the root mean square of `x`, by token."""
    square = lambda one: jnp.mean(jnp.square(one.astype(jnp.float32)), axis=-1, keepdims=True)
    wanted = jnp.sqrt(jnp.maximum(square(x), TINY))  # the root has no derivative at 0
    return (y.astype(jnp.float32) * wanted * lax.rsqrt(jnp.maximum(square(y), LEAST_SQUARE))).astype(y.dtype)
