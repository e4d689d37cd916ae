"""A decoder layer: blocks (its sublayers, such as attention), each with norms, added to the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.errors import UserError
from jaxpar.config.mappings.residual import ResidualConfig
from jaxpar.config.plan import UNTILED, LayerLayout
from jaxpar.config.schema import Config
from jaxpar.layers.beside.per_layer import NAME as MIXES
from jaxpar.layers.block import Block, Context
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layers.declaration.columns import Beside, Columns
from jaxpar.layers.declared import PARALLEL, PREDICTED, SHARED, blocks_of, declare_layer, mixer_classes, norms_around
from jaxpar.layers.dropout import dropout
from jaxpar.layers.norm import NORMS, LayerScale
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.residual.altup import AltUp, side_by_side
from jaxpar.layers.residual.laurel import NAME as LEARNED
from jaxpar.layers.residual.laurel import with_learned
from jaxpar.runtime.batch import Field, union
from jaxpar.runtime.observed import Maxima
from jaxpar.runtime.passes import Output
from jaxpar.runtime.taps import Tap

PLAIN_OPS = Ops()

type Run = Callable[[Block, jax.Array, jax.Array], jax.Array]
"""(a block, its input, the residual stream) -> the summand of the residual stream."""


class DecoderLayer(nnx.Module):
    """Blocks, each with a norm before it, after it, or both, added to the residual stream.

    Between blocks activations are split over tensor ranks by sequence, inside by heads or hidden width.
    """

    def __init__(
        self,
        config: Config,
        layout: LayerLayout = UNTILED,
        ops: Ops = PLAIN_OPS,
        beside: Beside | None = None,
    ):
        model, norm = config.model, NORMS[config.model.norm]
        self.activations = declare_layer(model).activations
        self.beside = Beside(model.embed) if beside is None else beside
        self.factors = model.residual
        self.parallel, shared = model.norm_placement in PARALLEL, model.norm_placement == SHARED
        blocks = blocks_of(model, adaptation_of(config), layout)
        self.names = tuple(block.part.name for block in blocks)
        mixers = len(mixer_classes(model))
        self.norms_stream = self.names[: {"stream": len(blocks), "stream_mixer": mixers}.get(model.norm_placement, 0)]
        """The blocks whose norm is the residual stream from then on."""
        self.norms_around = tuple(norms_around(block.part, model) for block in blocks)
        """Whether each block has a norm before it, and one after it."""
        for name, block, (before, after) in zip(self.names, blocks, self.norms_around, strict=True):
            setattr(self, name, block)
            if before and not (shared and name != self.names[0]):
                setattr(self, f"{name}_norm", norm(model))
            if after:
                setattr(self, f"post_{name}_norm", norm(model))
        if model.altup is not None:
            self.altup, self.altup_norm = AltUp(model), norm(model)
        if model.layer_scale:
            self.layer_scale = LayerScale()
        self.ops, self.dropout, self.layout = ops, model.dropout, layout
        self.reports = _checked_reports([name for block in self.blocks for name in block.reports])
        self.fields: tuple[Field, ...] = union(*(block.fields for block in self.blocks))
        self.records: tuple[Field, ...] = union(*(block.records for block in self.blocks))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the layer, in order."""
        return tuple(getattr(self, name) for name in self.names)

    def linear(self, name: str, x: jax.Array, index: Int[Array, ""], tokens: TokenContext) -> Any:
        """Run a group of matmuls by its name, with its collectives. Schedules that compute weight gradients later
        differentiate it by itself: it is linear in the group's matrices and in `x`."""
        ops = self.ops.for_layer(index, tokens)
        (block,) = (one for one in self.blocks if name in [group.name for group in one.part.groups])
        return ops.run(block, name, x)

    def __call__(
        self,
        x: Float[Array, "batch part embed"],
        context: Context,
        tap: Tap | None = None,
        observed: Maxima | None = None,
    ) -> Output:
        """The residual stream after the layer, and the reports of its blocks.

        Args:
            x: the residual stream and what is beside it; `part` is sequence length / (context * tensor).
            context: this rank's tokens, and what else all layers share.
            tap: calls each group of matmuls; for zero-bubble schedules it captures what W needs.
            observed: zeros, whose cotangents are the statistics of the layer's matmuls, such as amax.
        """
        x, columns, context = self._entered(x, context)
        ops, reports = self.ops.for_layer(context.index, context.tokens, observed, tap), {}

        def run(block: Block, h: jax.Array, stream: jax.Array) -> jax.Array:
            h, report = block(h, context._replace(stream=stream), ops)
            reports.update(report)
            return h

        return self.beside.joined(self._residual_blocks(x, context, run), columns), reports

    def decode(
        self, x: Float[Array, "batch part embed"], caches: Mapping[str, PyTree] | None, context: Context
    ) -> tuple[jax.Array, dict[str, PyTree]]:
        """The residual stream after a step of generation, and the updated cache of each block; see `Block.decode`."""
        ops, after = self.ops.for_layer(context.index, context.tokens), {}
        x, columns, context = self._entered(x, context)

        def run(block: Block, h: jax.Array, stream: jax.Array) -> jax.Array:
            name, at_block = block.part.name, context._replace(stream=stream)
            h, after[name] = block.decode(h, None if caches is None else caches[name], at_block, ops)
            return h

        return self.beside.joined(self._residual_blocks(x, context, run), columns), after

    def _entered(self, x: jax.Array, context: Context) -> tuple[jax.Array, Columns, Context]:
        """The residual stream, the columns beside it, which blocks may write, and the context of the blocks."""
        x, columns = self.beside.split(x)
        attend = self.beside.writing(context.attend, columns)
        return x, columns, context._replace(layout=self.layout, beside=columns, attend=attend)

    def _residual_blocks(self, x: jax.Array, context: Context, run: Run) -> jax.Array:
        """The residual stream, or several, behind the blocks."""
        x = self._streams(x, context, run) if hasattr(self, "altup") else self._blocks(self.names, x, context, run)
        return self.layer_scale(x) if hasattr(self, "layer_scale") else x

    def _streams(self, x: jax.Array, context: Context, run: Run) -> jax.Array:
        """Several streams: all are predicted before the blocks, which read one of them, and corrected behind. The
        inputs of the layer are then mixed with the corrected one, and added to the others."""
        predicted = self._named(self.altup.predict(x, self.altup_norm, context.train), PREDICTED)
        y = self._blocks([name for name in self.names if name != MIXES], self.altup.active(predicted), context, run)
        streams = self.altup.correct(predicted, y, self.altup_norm, context.train)
        if MIXES in self.names:
            scaled = self._named(self.altup.scaled(streams), f"{MIXES}_input")
            streams = streams.at[:, :, 1:].add(self._output(MIXES, scaled, scaled, context, run)[:, :, None])
        return side_by_side(streams)

    def _blocks(self, names: Sequence[str], x: jax.Array, context: Context, run: Run) -> jax.Array:
        """x + post_norm(block(pre_norm(x))) for each block in turn, where `run` calls the block with x; x is its norm
        under `norm_placement: stream`, and the two terms have factors (`model.residual`). Parallel blocks read the
        first x, or one norm of it; a learned residual reads what the mixer reads."""
        entered, h_in, behind_norm = x, x, False
        for name in names:
            learned, (before, after) = name == LEARNED, self.norms_around[self.names.index(name)]
            if before:
                h_in = self._normed_input(name, entered if self.parallel else x, h_in)
            elif not learned:
                h_in = self._named(x, f"{name}_input") if behind_norm else x
            x, h = (h_in, h_in) if name in self.norms_stream else (x, h_in)
            h = self._output(name, h, x, context, run)
            x = with_learned(x, h_in, h) if learned else residual_sum(x, h, self.factors, name)
            behind_norm = after
            if not (after or self.parallel) and name != self.names[-1]:
                x = self._named(x, f"{name}_residual")
        return x

    def _output(self, name: str, h: jax.Array, x: jax.Array, context: Context, run: Run) -> jax.Array:
        """The output of a block for the input `h`, where the residual stream is `x`, after its norm and dropout."""
        index = self.names.index(name)
        h = run(getattr(self, name), h, x)
        if self.norms_around[index][1]:
            # The norm's backward needs its input; from that, elementwise operations recompute the residual stream.
            h = getattr(self, f"post_{name}_norm")(self._named(h, f"{name}_projected"))
        return self._drop(h, len(self.names) * context.index + index + 1, context.tokens, context.train)

    def _normed_input(self, name: str, x: jax.Array, before: jax.Array) -> jax.Array:
        """The input of a block with a norm before it, from what that reads, and the input of the block before it."""
        if not hasattr(self, f"{name}_norm"):
            return before
        return self._named(getattr(self, f"{name}_norm")(x), f"{name}_input")

    def _named(self, x: jax.Array, name: str) -> jax.Array:
        return name_activation(x, name, self.activations)

    def _drop(self, x: jax.Array, site: jax.Array, tokens: TokenContext, train: bool) -> jax.Array:
        if not train or self.dropout == 0.0:
            return x
        assert tokens.seed is not None, "training has a seed"
        indices = sequence_part(tokens.indices)
        return dropout(x, self.dropout, seed=tokens.seed, site=site, examples=tokens.examples, indices=indices)


def residual_sum(
    x: Float[Array, "batch part embed"], h: Float[Array, "batch part embed"], factors: ResidualConfig, block: str
) -> Float[Array, "batch part embed"]:
    """The residual stream with the output of a block; where a factor is not 1, computed in float32."""
    stream, output = (
        (factors.mlp_stream, factors.mlp_output) if block == "mlp" else (factors.mixer_stream, factors.mixer_output)
    )
    if stream == output == 1:
        return x + h
    return (stream * x.astype(jnp.float32) + output * h.astype(jnp.float32)).astype(x.dtype)


def _checked_reports(names: Sequence[str]) -> tuple[str, ...]:
    """The names of metrics. Raises `UserError` for `<block>.<value>`, a mean over the block's tokens, if the block does
    not report `<block>.tokens`."""
    for name in names:
        block, _, value = name.partition(".")
        if value and "." not in value and f"{block}.tokens" not in names:
            raise UserError(
                f"the report {name} is a mean over the tokens of {block}, which reports no {block}.tokens; expected it "
                f"in `reports` of the block, or a name without a dot, which is a mean over the tokens of the batch"
            )
    return tuple(names)
