"""The gated short convolution of LFM2 (arXiv:2511.23404), a mixer that sees some tokens back and no further."""

from __future__ import annotations

from typing import ClassVar

import jax
from jaxtyping import Array, Float, PyTree

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Block, Context
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.low_rank import factored
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Part, Traffic, matrix, vector
from jaxpar.layers.linear_attention.convolution import convolve, convolve_next, last_values
from jaxpar.layers.linear_attention.mixer import CACHED, IN, OUT, VALUE, sizes_of, uniform_taps
from jaxpar.layers.ops.plain import Ops
from jaxpar.runtime.passes import Output

ENTERED, CONVOLVED, GATED = "linear_entered", "linear_convolved_entered", "linear_gated"
"""The product that is convolved, its convolution, and that times the gate."""


class ShortConvolution(Block):
    """`output(gate(x) * convolution(entry(x) * value(x)))`: the convolution is of each channel, and there is no
    non-linearity but the two products. In generation it keeps the last `taps - 1` products."""

    reads = ("linear_attention",)
    order = "contiguous"
    cache: ClassVar[PyTree] = {"entered": CACHED}

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Three projections inward, each to all channels."""
        sizes, scale = sizes_of(model), model.init_scale
        channels, axes = (sizes.heads, sizes.value_dim), ("heads", "head_dim")
        inward = ("entry", "gate", "value")
        weights = {name: matrix((model.embed, *channels), ("embed", *axes), scale=scale) for name in inward}
        back = scale / (2 * model.layers) ** 0.5
        weights["output"] = matrix((*channels, model.embed), (*axes, "embed"), inputs=2, scale=back)
        weights["taps"] = vector((*channels, sizes.taps), (*axes, "norm"), uniform_taps)
        made = tuple(f"linear_{name}" for name in inward)
        return Part(
            name="mixer",
            weights=factored(weights, model.low_rank),
            activations=(
                *(Activation(name, VALUE) for name in made),
                *(Activation(name, VALUE, cheap=True) for name in (ENTERED, CONVOLVED, GATED)),
            ),
            operations=(
                Matmuls(IN, inward, inward=True, outputs=made),
                Elementwise(ENTERED, Traffic(3, 5)),
                Elementwise(CONVOLVED, Traffic(2, 4)),
                Elementwise(GATED, Traffic(3, 5)),
                Matmuls(OUT, ("output",), inward=False, input=GATED),
            ),
            dims=(("linear_heads", sizes.heads), ("linear_value", sizes.value_dim)),
        )

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Refuse a window, and sizes of a state. Raises `UserError`."""
        linear = model.linear_attention
        for key in ("key_heads", "key_dim", "least_step", "norm_epsilon"):
            if linear is not None and getattr(linear, key):
                raise UserError(
                    f"{key_of(kind, f'linear_attention.{key}')}: {getattr(linear, key)}, and {model.mixer} has no "
                    "state; expected none in layers with this mixer"
                )
        if model.window is not None:
            raise UserError(
                f"{key_of(kind, 'window')}: {model.window}, and {key_of(kind, 'mixer')}: {model.mixer} sees "
                f"linear_attention.taps tokens ({sizes_of(model).taps}); expected null in layers with this mixer"
            )

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """Projections, the convolution and the gate."""
        entered, gate = self._entered(x, ops)
        return self._left(convolve(entered, self.weight("taps"), context.tokens), gate, ops), {}

    def decode(self, x: jax.Array, cache: PyTree, context: Context, ops: Ops) -> tuple[jax.Array, PyTree]:
        """See `Block.decode`; the cache is what the convolution reaches back to."""
        (entered, gate), taps = self._entered(x, ops), self.weight("taps")
        if cache is None:
            assert context.rows is not None, "rows that are continued"
            out = convolve(entered, taps, context.tokens)
            after = last_values(entered, context.tokens, context.rows.lengths, taps.shape[-1])
        else:
            out, after = convolve_next(entered[0], taps, cache["entered"][:, :, 0])
            out = out[None]
        return self._left(out, gate, ops), {"entered": after[:, :, None]}

    def _entered(self, x: jax.Array, ops: Ops) -> tuple[jax.Array, jax.Array]:
        """The channels that are convolved, and their gates."""
        group = self.part.groups[0]
        entry, gate, value = (
            self.named(one, name) for name, one in zip(group.outputs, ops.run(self, IN, x), strict=True)
        )
        return self.named(entry * value, ENTERED), gate

    def _left(self, convolved: jax.Array, gate: jax.Array, ops: Ops) -> jax.Array:
        return ops.run(self, OUT, self.named(gate * self.named(convolved, CONVOLVED), GATED))
