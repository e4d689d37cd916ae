"""The log-probability of each token of given rows: lengths in buckets, so that few programs are compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxpar.checkpoint.same_program import compared
from jaxpar.config import UserError
from jaxpar.config.counting import padded_vocab
from jaxpar.generation.functions import TILE_BYTES
from jaxpar.generation.layout import BY_PART, bucket, generation_layout
from jaxpar.generation.mixture.functions import MODELS, mixed_scores, mixture_layout
from jaxpar.generation.mixture.router import Mixing
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.programs import BY_TOKEN, SCORED
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.build import mapped, to_numpy
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.layer_order import LAYERS, Chunk
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.pages.units import plural
from jaxpar.runtime.batch import BatchLayout, single_document_fields
from jaxpar.runtime.records import Records

BATCH_TOKENS = 8192
"""Most tokens of a batch on the devices that share a row, unless one row has more."""


@dataclass(frozen=True)
class TokenScores:
    """Scores of the tokens of a row but the first, each after all tokens before it."""

    log_probabilities: Float[np.ndarray, " tokens"]
    """Log-probabilities in nats."""
    likeliest: Bool[np.ndarray, " tokens"]
    """Whether no token is likelier, and none of a lower number as likely."""
    tokens: Int[np.ndarray, "tokens choice"]
    """The `choices` likeliest tokens, likeliest first."""
    choices: Float[np.ndarray, "tokens choice"]
    """Their log-probabilities, in nats."""
    recorded: Mapping[str, np.ndarray]
    """Records [token, layer, ...], by the name of the batch field that replays them, of the tokens of the row but
    the last. Empty without `records`."""


class Scorer:
    """Scores rows of tokens, on every process of a job alike.

    A batch has rows of one bucket of lengths, and a power of two of them for each part of the mesh that has rows of its
    own; so the programs are few: `compiles` counts them. Logits are divided by `temperature`.
    """

    def __init__(self, model: PlacedModel, temperature: float = 1.0) -> None:
        self.model, self._temperature = model, temperature
        axes = dict(model.mesh.shape)
        self._parts = prod(axes[axis] for axis in DATA_AXES)
        self._part = axes["context"] * axes["tensor"]
        self._compiled: dict[tuple[int, int, bool, int], Callable[..., PyTree]] = {}

    @property
    def compiles(self) -> int:
        """The number of programs that were compiled."""
        return len(self._compiled)

    def scored(self, rows: Sequence[Sequence[int]], *, records: bool = False, choices: int = 0) -> list[TokenScores]:
        """The scores of the tokens of each row but its first, with the `choices` likeliest tokens, and with
        `records` what blocks record of those before.

        Raises:
            UserError: a row has fewer than two tokens or an unknown one, or is too long for learned positions.
        """
        self._check(rows)
        row_scores: list[TokenScores | None] = [None] * len(rows)
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            by_length[bucket(len(row) - 1, self._part)].append(index)
        for length in sorted(by_length, reverse=True):  # a batch that does not fit into memory fails first
            numbers = by_length[length]
            size = self._parts * max(1, BATCH_TOKENS // length)
            for first in range(0, len(numbers), size):
                chosen = numbers[first : first + size]
                batch = self._batch([rows[one] for one in chosen], length, records, choices)
                for index, scores in zip(chosen, batch, strict=True):
                    row_scores[index] = scores
        return [scores for scores in row_scores if scores is not None]

    def _batch(self, rows: Sequence[Sequence[int]], length: int, records: bool, choices: int) -> list[TokenScores]:
        per_part = -(-len(rows) // self._parts)
        size = self._parts * (1 << (per_part - 1).bit_length())
        tokens, labels = np.zeros((2, size, length), np.int32)
        for index, row in enumerate(rows):
            tokens[index, : len(row) - 1] = row[:-1]
            labels[index, : len(row) - 1] = row[1:]
        arrays = single_document_fields(tokens) | {"labels": labels}
        batch = BatchLayout(SCORED, tokens.shape).place(self.model.mesh, arrays)
        scored = to_numpy(self._program(size, length, records, choices)(self.model.weights, batch))
        rows_of = lambda values: [values[index, : len(row) - 1] for index, row in enumerate(rows)]
        log_probabilities, likeliest, best, likely, recorded = jax.tree.map(rows_of, scored)
        return [
            TokenScores(
                log_probabilities[index],
                likeliest[index] > 0,
                best[index],
                likely[index],
                {name: all[index] for name, all in recorded.items()},
            )
            for index in range(len(rows))
        ]

    def _program(self, rows: int, length: int, records: bool, choices: int) -> Callable[..., PyTree]:
        """Compiled on first use: (weights, batch) -> `token_scores` [row, token, ...]."""
        key = rows, length, records, choices
        if key not in self._compiled:
            layout = generation_layout(self.model.config, self.model.mesh, rows=rows, tokens=length)
            weights, dtype = layout.placements.storage.layout, layout.plan.dtypes.compute
            function = partial(token_scores, layout, records, choices, self._temperature)
            if (mixing := self.model.mixing) is not None:
                assert not (records or choices or self._temperature != 1), "a mixture has scores alone"
                weights, function = mixture_layout(weights, mixing.models), partial(mixture_scores, layout, mixing)
            layouts = weights, BatchLayout(SCORED, (rows, length)).partitions
            scored = mapped(function, self.model.mesh, dtype, layouts, (*(BY_TOKEN,) * 4, BY_PART))
            self._compiled[key] = compared(jax.jit(scored), "scores")
        return self._compiled[key]

    def _check(self, rows: Sequence[Sequence[int]]) -> None:
        model = self.model.config.model
        assert model.vocab is not None, "the vocabulary is known once the model is"
        for index, row in enumerate(rows):
            if len(row) < 2:
                raise UserError(f"row {index}: expected at least two tokens, got {len(row)}")
            wrong = next((token for token in row if not 0 <= token < model.vocab), None)
            if wrong is not None:
                raise UserError(
                    f"row {index}: token {wrong} is not of a vocabulary of {model.vocab}; expected the model's tokens"
                )
            if model.position == "learned" and len(row) - 1 > model.max_positions:
                raise UserError(
                    f"row {index}: {plural(len(row) - 1, 'token is', 'tokens are')} more than the learned positions, "
                    f"model.max_positions ({model.max_positions})"
                )


def token_scores(
    layout: StepLayout, records: bool, choices: int, temperature: float, weights: Weights, batch: Batch
) -> tuple[
    Float[Array, "batch seq"], Int[Array, "batch seq"], Int[Array, "batch seq choice"],
    Float[Array, "batch seq choice"], Records,
]:  # fmt: skip
    """The log-probability of each label, 1 where it is the likeliest token, the likeliest tokens with their
    log-probabilities, and records; on one device's part.

    Args:
        layout: has one pipeline stage, and stores weights as it computes.
        records: whether the layers record.
        choices: how many of the likeliest tokens.
        temperature: divides the logits.
        weights: in storage placement.
        batch: a microbatch, without a mask.
    """
    batch = vary(batch)
    stages = stages_of(layout, train=False)
    x, chunk = stages.embed(weights, batch), Chunk(weights[LAYERS], 0, 0)
    recorded = stages.empty_records(x) if records else {}
    x, recorded = stages.loop.recorded(chunk, vary(x), stages.token_context(batch), recorded)
    # Nothing is differentiated, so any tree does for the accumulators.
    tiles = _tiles(layout, batch)
    scores = stages.scores(weights, weights, x, batch["labels"], tiles=tiles, temperature=temperature)
    if choices:
        best = stages.choices(weights, weights, x, choices, tiles=tiles, temperature=temperature)
    else:
        best = _no_choices(batch)
    likely = jax.tree.map(lambda part: reduce_max(vary(part), ("pipe", "tensor")), (*scores, *best))
    return *likely, {name: reduce_max(values, ("pipe",)) for name, values in recorded.items()}


def mixture_scores(
    layout: StepLayout, mixing: Mixing, weights: Weights, batch: Batch
) -> tuple[
    Float[Array, "batch seq"], Int[Array, "batch seq"], Int[Array, "batch seq choice"],
    Float[Array, "batch seq choice"], Records,
]:  # fmt: skip
    """`token_scores` of a mixture, without choices and records."""
    batch = vary(batch)
    stages = stages_of(layout, train=False)
    tokens = stages.token_context(batch)
    streams = [
        stages.loop.recorded(Chunk(one[LAYERS], 0, 0), vary(stages.embed(one, batch)), tokens, {})[0]
        for one in weights[MODELS]
    ]
    scores = mixed_scores(stages, mixing, weights, streams, batch, _tiles(layout, batch))
    likely = jax.tree.map(lambda leaf: reduce_max(vary(leaf), ("pipe", "tensor")), (*scores, *_no_choices(batch)))
    return *likely, {}


def _tiles(layout: StepLayout, batch: Batch) -> int:
    """Tiles of tokens of which one has logits at a time."""
    logits = batch["tokens"].size * padded_vocab(layout.config.model) // layout.plan.axes.tensor
    return -(-4 * logits // TILE_BYTES)


def _no_choices(batch: Batch) -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros((*batch["tokens"].shape, 0), dtype) for dtype in (jnp.int32, jnp.float32))
