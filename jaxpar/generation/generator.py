"""Continues prompts with a model on a mesh: lengths in buckets, so that few programs are compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped
from jaxtyping import Int

from jaxpar.config import Config, UserError
from jaxpar.generation.layout import BY_ROW, bucket, generation_layout, prompt_bucket
from jaxpar.generation.programs import Programs
from jaxpar.generation.sampling import Drawn, NotFinite, Sampling
from jaxpar.generation.unstacked import is_unstacked, unstacked
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.mesh.build import on_hosts
from jaxpar.mesh.parameters import Weights
from jaxpar.runtime.batch import FORWARD, BatchLayout, one_document_rows
from jaxpar.units import plural


@dataclass(frozen=True)
class Continuation:
    """Tokens generated after one prompt."""

    tokens: Int[np.ndarray, " tokens"]
    """Without the prompt, and without the token that ended it."""
    log_probabilities: np.ndarray
    """Log-probabilities of `tokens`, in nats, by the model itself: at temperature 1 and without filters."""
    ended: bool
    """Whether the model, or the caller, ended it; else the limit of tokens did."""
    recorded: Mapping[str, np.ndarray]
    """By the name of the field of a batch that replays it, [token, layer, ...]: records of the tokens that the model
    has read, the prompt and all but the last that was drawn. Empty without `records`."""
    ending: float | None = None
    """Log-probability of the token of `stop` that ended it, if one did."""


type Records = Mapping[str, np.ndarray]
"""By the name of a field, [row, token, layer, ...], or of one row."""


@dataclass
class Speed:
    """How long the last call took."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0


class Generator:
    """Continues prompts, on every process of a job alike.

    `programs.compiles` counts the programs: one for each number of rows, bucket of prompts and bucket of rows at their
    end, and one that decodes for each number of rows and bucket of rows at their end.

    Args:
        config: of the model, with the vocabulary and a mesh whose axes are filled in.
        mesh: the devices, with the axes of `config`.
        weights: on `mesh` in any placement; they are copied once, into the dtype that layers compute in, unless they
            are in the placement and the dtype of `generation_layout` already. Layers are copied on GPUs all the same,
            but for `unstacked` weights, which are in that placement and are taken as they are.
        sampling: how tokens are drawn; by default the likeliest.
        zero: 0 keeps on each device what its layers compute with; under 3 the copy is sharded like the weights of a
            training step, and each token gathers every layer.
        seed: of the draws, which depend on it, the number of the row and the length of the row alone.

    Raises:
        UserError: for a layout with a pipeline.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        weights: Weights,
        *,
        sampling: Sampling | None = None,
        zero: int = 0,
        seed: int = 0,
    ) -> None:
        self.config, self.mesh = config, mesh
        self.sampling = Sampling() if sampling is None else sampling
        axes = dict(mesh.shape)
        self._rows = prod(axes[axis] for axis in (*DATA_AXES, "tensor"))
        self._part = axes["context"] * axes["tensor"]
        self.programs = Programs(config, mesh, self.sampling, zero)
        everywhere, number = NamedSharding(mesh, PartitionSpec()), np.asarray(seed % 2**32, np.uint32)
        self._seed = jax.make_array_from_callback((), everywhere, lambda _: number)
        self.speed = Speed()
        self._zero = zero
        self.update(weights)

    def update(self, weights: Weights) -> None:
        """Go on with other weights of the same model; nothing compiles again."""
        self._weights = weights if is_unstacked(weights) else self._laid_out(weights)

    def drop_weights(self) -> None:
        """Free the copy of the weights, until `update` gives others."""
        self._weights: Weights = {}

    def _laid_out(self, weights: Weights) -> Weights:
        """The weights as the programs read them."""
        layout = self._layout
        dtype, stored = layout.placements.storage.dtype, shardings(self.mesh, layout.placements.storage.layout)
        on_device = lambda leaf: jax.device_put(leaf, NamedSharding(self.mesh, leaf.sharding.spec))
        there = jax.tree.map(lambda leaf, where: leaf.dtype == dtype and leaf.sharding == where, weights, stored)
        # Offloaded weights are in host memory.
        weights = weights if all(jax.tree.leaves(there)) else self._cast(jax.tree.map(on_device, weights))
        return unstacked(weights, layout.order)

    @cached_property
    def _layout(self) -> StepLayout:
        return generation_layout(self.config, self.mesh, zero=self._zero)

    @cached_property
    def _cast(self) -> Wrapped:
        """Weights of any placement in the dtype and placement of generation."""
        storage = self._layout.placements.storage
        cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(storage.dtype), tree)
        return jax.jit(cast, out_shardings=shardings(self.mesh, storage.layout))

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        *,
        stop: Sequence[int] = (),
        on_token: Callable[[int, int], bool] | None = None,
        first_number: int = 0,
        answers: int = 1,
        records: bool = False,
    ) -> list[Continuation]:
        """Continue all prompts together.

        Args:
            prompts: token ids of each, at least one.
            tokens: at most so many new tokens for each.
            stop: ids that end a row, and are not part of it.
            on_token: called with the index of a row and each new token; True ends the row after that token.
            first_number: the number of the first row, for the draws; the others follow.
            answers: rows that continue each prompt, side by side in what is returned; its forward is run once.
            records: also return what blocks record of the tokens (`jaxpar.layers.block.Block.records`).

        Raises:
            UserError: a prompt is empty, has an unknown token, or is too long for learned positions.
            NotFinite: the log-probability of a token is not finite.
        """
        self._check(prompts, tokens)
        rows = len(prompts) * answers
        made: list[list[int]] = [[] for _ in range(rows)]
        likelihoods: list[list[float]] = [[] for _ in range(rows)]
        recorded: list[list[Records]] = [[] for _ in range(rows)]
        running = dict.fromkeys(range(rows), False)
        ended = [False] * rows
        endings: list[float | None] = [None] * rows
        for drawn, new in self._drawn(prompts, tokens, first_number, answers, records):
            for row in list(running):
                recorded[row].append({name: all[row, : len(prompts[row // answers])] for name, all in new.items()})
                token = int(drawn.token[row])
                if not np.isfinite(drawn.log_probability[row]):
                    raise NotFinite
                if token in stop:
                    ended[row], endings[row] = True, float(drawn.log_probability[row])
                    del running[row]
                    continue
                made[row].append(token)
                likelihoods[row].append(float(drawn.log_probability[row]))
                if on_token is not None and on_token(row, token):
                    ended[row] = True
                    del running[row]
            if not running:
                break
        return [
            Continuation(np.array(new, np.int32), np.array(likely), end, _joined(pieces), ending)
            for new, likely, end, pieces, ending in zip(made, likelihoods, ended, recorded, endings, strict=True)
        ]

    def _drawn(
        self, prompts: Sequence[Sequence[int]], tokens: int, first_number: int, answers: int, records: bool
    ) -> Iterator[tuple[Drawn, Records]]:
        """The new tokens of all rows, one after the other, and the records of what was read before each; the next is
        under way while one is read."""
        longest = max(map(len, prompts))
        rows = -(-len(prompts) // self._rows) * self._rows
        padded, capacity = prompt_bucket(longest, self._part), bucket(longest + tokens, self._part)
        prefill = self.programs.prefill(rows, padded, capacity, answers=answers, records=records)
        decode = self.programs.decode(rows * answers, capacity, records=records)
        self.speed = Speed(prompt_tokens=sum(map(len, prompts)))
        began = time.perf_counter()
        ids = np.arange(first_number, first_number + rows * answers, dtype=np.int32)
        state, drawn = prefill(self._weights, *self._placed(prompts, rows, padded, ids), self._seed)
        read = on_hosts(drawn)
        self.speed.prompt_seconds = time.perf_counter() - began
        began = time.perf_counter()
        for number in range(tokens):
            if number + 1 < tokens:
                state, coming = decode(self._weights, state, self._seed)
            yield read
            self.speed.new_tokens = (number + 1) * len(prompts) * answers
            if number + 1 < tokens:
                read = on_hosts(coming)
            self.speed.new_seconds = time.perf_counter() - began

    def _placed(
        self, prompts: Sequence[Sequence[int]], rows: int, length: int, numbers: Int[np.ndarray, " answers"]
    ) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
        """Prompts, their lengths and numbers on the mesh."""
        tokens, lengths = np.zeros((rows, length), np.int32), np.ones(rows, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        put = lambda array, spec: jax.make_array_from_callback(
            array.shape, shardings(self.mesh, spec), lambda index: array[index]
        )
        return (
            BatchLayout(FORWARD, tokens.shape).place(self.mesh, one_document_rows(tokens)),
            put(lengths, BY_ROW),
            put(numbers, BY_ROW),
        )

    def _check(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        model = self.config.model
        assert model.vocab is not None, "the vocabulary is known once the model is"
        for row, prompt in enumerate(prompts):
            if not len(prompt):
                raise UserError(f"prompt {row}: expected at least one token, got none")
            wrong = next((token for token in prompt if not 0 <= token < model.vocab), None)
            if wrong is not None:
                raise UserError(
                    f"prompt {row}: token {wrong} is not of a vocabulary of {model.vocab}; expected the model's tokens"
                )
            if model.position == "learned" and len(prompt) + tokens > model.max_positions:
                raise UserError(
                    f"prompt {row}: {plural(len(prompt), 'token')} and {tokens} new are more than the learned "
                    f"positions, model.max_positions ({model.max_positions})"
                )


def _joined(pieces: Sequence[Records]) -> Records:
    """Records of a row's tokens, from those of neighbouring ones."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}
