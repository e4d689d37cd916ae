"""Work that comes once a step: the rest of the reduction of gradients, the update, and the gather of weights."""

from __future__ import annotations

from collections import Counter
from math import ceil

from jaxpar.cost.head import lookups, of_rows
from jaxpar.cost.layout import Layout
from jaxpar.planner.step_time.chunks import Kinds, chunk_lengths, chunk_slots
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.layer_times import Layers, Sort
from jaxpar.planner.step_time.overlap import GATHERS, HELD_GATHERS, HELD_SCATTERS, SCATTERS
from jaxpar.planner.step_time.update import MASTER
from jaxpar.planner.step_time.weight_traffic import DataMessages, held_seconds, holds_chunks


class Once:
    """Seconds of a layout that come once a step, after the pipeline."""

    def __init__(self, where: Common, layout: Layout, layers: Layers, slots: Kinds, messages: DataMessages):
        """`slots` are the kinds of a chunk's, none where all layers are alike."""
        self.where, self.layout, self.layers, self.slots = where, layout, layers, slots
        self.model, self.update, self.messages = where.model, where.update, messages
        self.piped = layout.pipe > 1
        self.sharded = messages.shards.ranks if layout.zero else 1
        """Ranks of a replica that share the state of a weight."""
        self.sharded_experts = messages.expert_shards.ranks if layout.zero else 1
        self.replicas = layout.replica if layout.shard_state else 1
        """Replicas among which a replica's part of it is split again."""
        self.table = where.vocab * self.model.embed // (layout.tensor * layout.vocab_ranks)
        """Weights of an embedding or a head on a device."""
        self.tables = 1 if self.model.tied else 2
        """On every stage of a pipeline, or a part of them."""
        self.trained = 0 if layers.case.frozen else self.tables
        self.rows = self._rows()
        """Seconds of rows of the embedding in a microbatch; 0 where tables are sent."""
        dense, self.experts = self.layer_elements()
        self.local = dense + self.trained * self.table
        self.quantized, self.quantized_experts = self._quantized_elements()
        self.updated = (self.local / self.sharded + self.experts / self.sharded_experts) / self.replicas
        """Weights that a device updates."""

    def data(self) -> float:
        """Seconds of messages of weights and gradients that are not hidden."""
        layout, sent = self.layout, self.messages
        held = self.local / self.sharded + self.experts / self.sharded_experts
        exposed = 0.0
        if layout.zero == 3:
            times = 1 if self.piped else 2  # for the forward and for the backward
            embed_and_head = (
                self.tables * times * sent.shards.gather(self.table),
                self.trained * sent.shards.scatter(self.table),
            )
            exposed += (
                sum(embed_and_head)
                if self.piped
                else self.where.microbatches(layout) * self._embed_and_head_s(*embed_and_head)
            )
            exposed += self._over_replicas(held)
            exposed += sent.shards.gather_once(self.local, self.quantized)
            exposed += sent.expert_shards.gather_once(self.experts)
        elif layout.zero == 0:
            exposed += sent.data.reduce(self.local) + sent.expert_data.reduce(self.experts)
        else:
            # Stage 2 holds no whole gradient between microbatches, unless a pipeline takes many through the weights.
            times = self.where.microbatches(layout) if layout.zero == 2 and layout.pipe == 1 else 1
            by_table = self.local - self.table if self.rows else self.local
            scatter = sent.shards.scatter(by_table) + sent.expert_shards.scatter(self.experts)
            gather = sent.shards.gather_full(self.local, self.quantized)
            gather += sent.expert_shards.gather_full(self.experts, self.quantized_experts)
            exposed += times * (scatter + self.rows) + self._over_replicas(held) + gather
        if holds_chunks(layout):
            exposed += self._held()
        if self.piped and not layout.shared_embed_and_head:
            # The float32 gradients of embedding and head.
            exposed += self.where.sum_over_stages(
                layout.devices, layout.pipe, 4.0 * self.trained * self.table / (self.sharded * self.replicas)
            )
        return exposed

    def optimizer(self) -> float:
        """Seconds of the update."""
        # The largest magnitude of a matrix that becomes codes is found from its master weights.
        quantized = self.quantized / self.sharded + self.quantized_experts / self.sharded_experts
        held, quantized = self.updated, quantized / self.replicas
        update = self.where.device.bytes_seconds(self.update.moved * held + MASTER * quantized)
        if self.layout.optimizer_offload:
            embed_and_head = self.trained * self.table / (self.sharded * self.replicas)
            link = self.update.link_seconds(
                held - embed_and_head, embed_and_head, self.where.cluster.host_bandwidth, quantized
            )
            update = max(update, (1 - self.layout.resident_state) * link)
        if self.update.matrices is not None:
            update += self._of_matrices()
        return update

    @property
    def _stacked(self) -> float:
        """Layers of a device; padding rows of the stacks are included where lengths of stages are set, since these take
        part in what comes once a step. Other stages are counted as equal."""
        lengths = self.layout.stage_layers
        return self.model.layers / self.layout.pipe if lengths is None else self.layout.virtual_stages * max(lengths)

    def layer_elements(self) -> tuple[float, float]:
        """Trained parameters of the layers' matrices, or of their factors, on a device, and those of experts; of layers
        of several kinds with all padding rows."""
        if self.layout.pipe == 1 or not self.slots:
            return self._stacked * self.layers.trained, self._stacked * self.layers.experts
        rows, cases = self.layout.virtual_stages, [self.layers.cases[Sort(kind)] for kind in self.slots]
        return rows * sum(case.trained for case in cases), rows * sum(case.experts for case in cases)

    def _quantized_elements(self) -> tuple[float, float]:
        """The parameters among `layer_elements` that are stored as codes of 8 bits."""
        if self.layers.case.frozen:
            return 0.0, 0.0
        return self._stacked * self.layers.quantized_parameters, self._stacked * self.layers.quantized_experts

    def _held(self) -> float:
        """Seconds of the messages of chunks that are held whole."""
        rows = Counter(chunk_slots(self.model, chunk_lengths(self.model, self.layout)))
        each = (self.messages.of_layers(self.layers.cases[Sort(kind)], count) for kind, count in rows.items())
        gathers, scatters = zip(*each, strict=True)
        gather, scatter = held_seconds(self.layout, sum(gathers), sum(scatters))
        return self._with_hidden(gather + scatter, HELD_GATHERS * gather + HELD_SCATTERS * scatter)

    def _with_hidden(self, message: float, waits: float) -> float:
        """Seconds that messages add to a step: what it waits for, and what the others take from compute beside
        them."""
        return waits + self.where.hardware.overlap_slowdown * (message - waits)

    def _embed_and_head_s(self, gather: float, scatter: float) -> float:
        """Exposed seconds of the messages of embedding and head in a microbatch, of so many if tables are sent. A
        table that is tied is sent for the head in any case."""
        by_table = 1 / self.tables if self.rows and not self.model.tied else 1.0
        gather, scatter = by_table * gather, by_table * scatter
        return self.rows + self._with_hidden(gather + scatter, GATHERS * gather + SCATTERS * scatter)

    def _rows(self) -> float:
        """Seconds of rows of the embedding that a microbatch exchanges in place of tables, all of them waited for."""
        layout, case = self.layout, self.layers.case
        if layout.embedding_messages == "table":
            return 0.0
        assert layout.zero >= 2 and layout.pipe == 1, "rows are exchanged where a microbatch sends tables"
        ring = self.where.ring(self.messages.shards.ranks, layout.tensor)
        looked_up = lookups(self.model, self.where.vocab, case.tokens, layout.tensor)
        times = (layout.zero == 3) + (not case.frozen)
        return of_rows(ring, looked_up, self.model.embed, case.item, times=times)

    def _over_replicas(self, held: float) -> float:
        """Seconds of the messages over replicas: of the gradients of so many weights of a replica's rank, and of the
        weights where the state is split."""
        sent = self.messages
        if not self.layout.shard_state:
            return sent.replicas.reduce(held)
        return sent.replicas.scatter(held) + sent.replica_weights.gather_full(held)

    def _of_matrices(self) -> float:
        """Rules that see matrices: ranks that share weights exchange layers for dims, work on whole matrices, and send
        them back."""
        layers, sharded = self._stacked, self.sharded * self.replicas
        ring = self.where.ring(sharded * self.layout.tensor, 1)
        local = layers * (self.layers.trained + self.layers.experts) / sharded
        exchanged = ring.exchange(self.update.matrix_bytes * local)
        share = ceil(layers / ring.ranks)  # whole layers: some ranks may have none
        return 2 * exchanged + share * self.layers.matrix_seconds(self.where.device, self.update)
