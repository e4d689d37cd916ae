"""Continues prompts with a model on a mesh: lengths in buckets, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.stages import Wrapped

from jaxpar.config import Config
from jaxpar.generation.engine import Engine
from jaxpar.generation.layout import bucket, generation_layout
from jaxpar.generation.mixture.functions import MODELS, mixture_layout
from jaxpar.generation.mixture.router import Mixing
from jaxpar.generation.pages import Room, room_of
from jaxpar.generation.prefill import data_ranks, put_rows
from jaxpar.generation.programs import SCORED, Programs
from jaxpar.generation.requests import Continuation, Request, Speed
from jaxpar.generation.sampling import LIKELIEST, NotFinite, Sampling
from jaxpar.generation.unstacked import is_unstacked, unstacked, unstacked_layout, with_adapters
from jaxpar.interop.adapters.adapter import AdapterSource
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.build import to_numpy
from jaxpar.mesh.parameters import Weights
from jaxpar.runtime.batch import BatchLayout, single_document_fields

SLOTS = 32
"""Rows that are continued together, on each data rank."""


class Generator:
    """Continues prompts, on every process of a job alike.

    `programs.compiles` counts the programs: one that reads prompts for each number of them and bucket of lengths, one
    that puts these into slots, and one that decodes for each number of slots and bucket of lengths.

    Args:
        config: of the model, with the vocabulary and a mesh whose axes are filled in.
        mesh: the devices, with the axes of `config`.
        weights: on `mesh` in any placement; they are copied once, into the dtype that layers compute in, unless they
            are in the placement and the dtype of `generation_layout` already. Layers are copied on GPUs all the same,
            but for `unstacked` weights, which are in that placement and are taken as they are.
        zero: 0 keeps on each device what its layers compute with; under 3 the copy is sharded like the weights of a
            training step, and each token gathers every layer.
        seed: of the draws, which depend on it, the number of the row and the length of the row alone.
        slots: rows that `continued` continues together on each data rank, at most.
        prefill: a mesh of other devices, which reads prompts: the same but for its data ranks.
        mixing: the sizes of a mixture, whose weights are by `mixture_layout`.

    Raises:
        UserError: for a layout with a pipeline.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        weights: Weights,
        *,
        zero: int = 0,
        seed: int = 0,
        slots: int = SLOTS,
        prefill: Mesh | None = None,
        mixing: Mixing | None = None,
    ) -> None:
        self.config, self.mesh, self._mixing = config, mesh, mixing
        self.programs = Programs(config, mesh, zero, mixing)
        self._reading: Programs | None = None
        if prefill is not None:
            axes = {axis: prefill.shape[axis] for axis in ("replica", "fsdp")}
            self._reading = Programs(replace(config, parallel=replace(config.parallel, **axes)), prefill, zero, mixing)
        self.speed = Speed()
        self._zero, self._seed, self._slots = zero, seed, slots
        self.update(weights)

    def update(self, weights: Weights) -> None:
        """Go on with other weights of the same model; nothing compiles again."""
        if self._mixing is None:
            self._weights = self._laid_out(weights)
        else:
            self._weights = weights | {MODELS: [self._laid_out(one) for one in weights[MODELS]]}
        if self._reading is not None:
            partitions = unstacked_layout(self._layout.placements.storage.layout, self._layout.order)
            if self._mixing is not None:
                partitions = mixture_layout(partitions, self._mixing.models)
            self._read_with = jax.tree.map(jax.device_put, self._weights, shardings(self._reading.mesh, partitions))

    def put_adapters(self, source: AdapterSource) -> None:
        """Go on with other adapters, for which the weights have room; nothing compiles again."""
        assert source.stack == self.config.lora, "the programs have this room"
        self.update(with_adapters(self._weights, self._layout, source))

    def drop_weights(self) -> None:
        """Free the copy of the weights, until `update` gives others."""
        self._weights: Weights = {}
        self._read_with: Weights = {}

    def _laid_out(self, weights: Weights) -> Weights:
        """The weights of a model as the programs read them."""
        if is_unstacked(weights):
            return weights
        layout = self._layout
        stored, dtypes = shardings(self.mesh, layout.placements.storage.layout), layout.placements.storage_dtypes
        on_device = lambda leaf: jax.device_put(leaf, NamedSharding(self.mesh, leaf.sharding.spec))
        is_there = lambda leaf, where, dtype: leaf.dtype == dtype and leaf.sharding == where
        there = jax.tree.map(is_there, weights, stored, dtypes)
        # Offloaded weights are in host memory.
        weights = weights if all(jax.tree.leaves(there)) else self._cast(jax.tree.map(on_device, weights))
        return unstacked(weights, layout.order)

    @cached_property
    def _layout(self) -> StepLayout:
        return generation_layout(self.config, self.mesh, zero=self._zero)

    @cached_property
    def _cast(self) -> Wrapped:
        """Weights of any placement in the dtype and placement of generation."""
        placements = self._layout.placements
        cast = lambda tree: jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), tree, placements.storage_dtypes)
        return jax.jit(cast, out_shardings=shardings(self.mesh, placements.storage.layout))

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        *,
        sampling: Sampling = LIKELIEST,
        stop: Sequence[int] = (),
        on_token: Callable[[int, int], bool] | None = None,
        first_number: int = 0,
        answers: int = 1,
        records: bool = False,
    ) -> list[Continuation]:
        """Continue all prompts; the next of them begins where a row has ended.

        Args:
            prompts: token ids of each, at least one.
            tokens: the most new tokens of each.
            sampling: how tokens are drawn; by default the likeliest.
            stop: ids that end a row, and are not part of it.
            on_token: called with the index of a row and each new token; True ends the row after that token.
            first_number: the number of the first row, for the draws; the others follow.
            answers: rows that continue each prompt, side by side in what is returned; its forward is run once.
            records: also return what blocks record of the tokens (`jaxpar.layers.block.Block.records`).

        Raises:
            UserError: a prompt is empty, has an unknown token, or is too long for learned positions.
            NotFinite: the log-probability of a token is not finite.
        """

        def request(index: int) -> Request:
            first = index * answers

            def hear(answer: int, token: int) -> bool:
                assert on_token is not None, "who listens is called"
                return on_token(first + answer, token)

            heard = None if on_token is None else hear
            return Request(prompts[index], tokens, sampling, self._seed, first_number + first, answers, stop, heard)

        requests = [request(index) for index in range(len(prompts))]
        for index, one in enumerate(requests):
            one.check(self.config.model, f"prompt {index}")
        rows = min(len(prompts) * answers, self._slots * self._ranks)
        engine = self.engine(rows, max(map(len, prompts)) + tokens, requests=requests, records=records)
        self.speed = engine.speed
        for one in requests:
            engine.add(one)
        while engine.busy:
            if not all(row.finite for row in engine.step()):
                raise NotFinite
        return [row.continuation() for one in requests for row in one.rows]

    def scored(self, row: Sequence[int], adapter: int = -1) -> np.ndarray:
        """The log-probability of each token of a row but its first, which has at least two."""
        length = bucket(len(row) - 1, self.mesh.shape["context"] * self.mesh.shape["tensor"])
        tokens, labels = np.zeros((2, self._ranks, length), np.int32)
        tokens[:, : len(row) - 1], labels[:, : len(row) - 1] = row[:-1], row[1:]
        arrays = single_document_fields(tokens) | {"labels": labels}
        batch = BatchLayout(SCORED, tokens.shape).place(self.mesh, arrays)
        each = (put_rows(self.mesh, np.full(self._ranks, value, np.int32)) for value in (len(row) - 1, adapter))
        scores = self.programs.scores(*tokens.shape)(self._weights, batch, *each)
        return to_numpy(scores)[0, : len(row) - 1]

    def engine(
        self,
        rows: int,
        tokens: int,
        *,
        cache: int | None = None,
        requests: Sequence[Request] = (),
        records: bool = False,
    ) -> Engine:
        """Slots for at least `rows` rows of up to `tokens` tokens.

        Args:
            rows: that are continued together.
            tokens: of the longest row.
            cache: tokens of all rows that the cache has pages for, at least those of one on each data rank and at most
                those of every slot; by default those of `requests`, if these are all, or of every slot.
            requests: all that there are to be.
            records: see `Engine`.
        """
        room, ranks = self._room(rows, tokens, requests), self._ranks
        pages = room.pages
        if cache is not None:
            pages = min(max(cache // (room.page * ranks), room.longest), room.pages)
        weights = lambda: self._weights
        prefill = None if self._reading is None else (self._reading, lambda: self._read_with)
        return Engine(
            self.programs, weights, ranks * room.slots, room.capacity, pages, prefill=prefill, records=records
        )

    def least_cache(self, tokens: int) -> int:
        """Tokens that a cache of rows of up to `tokens` tokens has to hold: one row on each data rank."""
        room = self._room(1, tokens)
        return self._ranks * room.longest * room.page

    def _room(self, rows: int, tokens: int, requests: Sequence[Request] = ()) -> Room:
        return room_of(self._ranks, self.mesh.shape["context"], self.mesh.shape["tensor"], rows, tokens, requests)

    @property
    def _ranks(self) -> int:
        return data_ranks(self.mesh)
