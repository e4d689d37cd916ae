"""The step of a layout as a trace: its layers beside the messages of their weights, and what comes once."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from jaxpar.cost.layout import Layout
from jaxpar.cost.work import Work
from jaxpar.planner.step_time.chunks import GATHERED, Kinds, chunk_lengths, chunk_slots, kinds_of_slots, why_padded
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.layer_times import Sort, sorts_of
from jaxpar.planner.step_time.once import Once
from jaxpar.planner.step_time.overlap import beside_copies, beside_weights, first_gather
from jaxpar.planner.step_time.pipeline import Chunk, Pieces, joined, run_pipeline
from jaxpar.planner.step_time.weight_traffic import DataMessages, holds_chunks, reduces_with_weights
from jaxpar.trace.parts import WIRE, Message, Op, Repeat, Run

AGAIN = "recomputed "
"""Before the kind of compute that a backward repeats."""
PARTS: tuple[str, ...] = (
    "matmuls", "attention", "other", "exchange", "tensor", "context", "scales", "recomputation", "offload", "slices",
    "data", "bubble", "stragglers", "optimizer",
)  # fmt: skip
"""Parts of a step."""


class Step:
    """The step of layouts that differ in the schedule alone."""

    def __init__(self, where: Common, layout: Layout):
        self.where, self.layout = where, layout
        self.model, self.network, self.clock = where.model, where.network, where.clock
        self.microbatches = where.microbatches(layout)
        self.layers = where.layers(layout)
        self.case = self.layers.case
        self.slots: Kinds = kinds_of_slots(where.model, layout)
        """The kind of each; none where all layers are alike."""
        self.messages = DataMessages(where, layout, float(self.case.item))
        self.jitter = where.jitter(layout.devices)
        sent = (lambda _: (0.0, 0.0)) if holds_chunks(layout) else self.messages.of_layers
        self.sent = {sort: sent(case) for sort, case in self.layers.cases.items()}
        """Seconds of messages of the weights of a layer of each sort alone, hidden or not: gathers in the forward, the
        backward has as many, and reductions."""
        same = (
            self.layers, self.slots, layout.remat, layout.offload_fraction, *self.sent.values(),
            reduces_with_weights(layout), self.messages.at_rest,
        )  # fmt: skip
        self.passed = where.made.of(("passed", *same), lambda: self._all_passed(layout))
        """A layer of each sort."""
        same += layout.pipe, layout.devices, layout.shared_embed_and_head, self.microbatches
        self.pieces, self.work = where.made.of(("microbatches", *same), self._microbatches)
        once = Once(where, layout, self.layers, self.slots, self.messages)
        self.once = {"data": once.data(), "optimizer": once.optimizer()}
        """Seconds by part that come once a step, after the pipeline."""
        self.updated = once.updated

    def _all_passed(self, layout: Layout) -> dict[Sort, Chunk]:
        """A layer of each sort, where layers keep what those of `layout` do."""
        again = self.layers.again(layout.remat, self.slots)
        return {sort: self._passed(sort, work) for sort, work in again.items()}

    def _passed(self, sort: Sort, again: Work) -> Chunk:
        """A layer of a sort, with all that is beside it."""
        time, case, tensor = self.layers.times[sort], self.layers.cases[sort], self.layout.tensor
        gather, scatter = self.sent[sort]
        forward, backward = time.forward, time.backward
        if time.message:
            forward, backward = time.beside_weights(gather, gather + scatter)
        seconds = min(time.weight, backward.seconds + again.seconds)
        weight, walk = Run(seconds, seconds, {"matmuls": seconds}), self.clock.walk
        back = walk(Repeat("backward", backward.run()), Repeat("again", again.run(AGAIN)))
        if not gather + scatter:
            forth = forward.run()
        elif reduces_with_weights(self.layout):
            forth = walk(*beside_weights(forward.run(), gather, 0.0, tensor))
            rest = walk(Repeat("backward", back), Repeat("weight", weight, -1))
            weight = walk(*beside_weights(weight, 0.0, scatter, tensor))
            back = walk(*beside_weights(rest, gather, 0.0, tensor), Repeat("weight", weight))
        else:
            forth = walk(*beside_weights(forward.run(), gather, 0.0, tensor))
            back = walk(*beside_weights(back, gather, scatter, tensor))
        if copied := self.layers.copied(self.layout.remat, self.slots, self.layout.offload_fraction)[sort]:
            copy = copied / self.where.cluster.host_bandwidth
            forth, back = (walk(*beside_copies(run, copy)) for run in (forth, back))
        forth, back = (
            walk(Repeat("layer", run), Op("slices", self.where.device.bytes_seconds(size), "slices"))
            for run, size in zip((forth, back), self.messages.stack_bytes(case), strict=True)
        )
        return Chunk(forth, back, weight)

    def _microbatches(self) -> tuple[Pieces, Run]:
        """The pieces of a pipeline, and the forward and backward of all microbatches on a rank that never waits."""
        layout, walk = self.layout, self.clock.walk
        head, sums = self.layers.head(layout.vocab_ranks).run(), self._sum_over_stages()
        layer = joined(self.clock, [(self.passed[sort], share) for sort, share in self.layers.shares.items()])
        # The output of the last chunk goes to all ranks, and what they find of its gradient is summed.
        ends = walk(Repeat("head", head), Op("sums", 2 * sums, "pipe"))
        first = first_gather(self.layers.average({sort: gather for sort, (gather, _) in self.sent.items()}))
        pieces = Pieces(self.clock, layer, ends, self._transfer(), sums, first)
        return pieces, self._work_of(layer, self.model.layers / layout.pipe)

    def _work_of(self, chunk: Chunk, chunks: float) -> Run:
        """All microbatches on a rank with so many of a chunk, or of a layer, that never waits."""
        m, head = self.microbatches, self.layers.head(self.layout.vocab_ranks).run()
        return self.clock.walk(
            Repeat("forward", chunk.forward, m * chunks),
            Repeat("backward", chunk.backward, m * chunks),
            Repeat("head", head, m if self.layout.shared_embed_and_head else m / self.layout.pipe),
        )

    def pipeline(self, layout: Layout) -> Run:
        """All microbatches in the schedule of `layout`."""
        if layout.pipe == 1:
            return self.work
        return run_pipeline(layout, self.microbatches, self.chunks(layout), [self.pieces])

    def program(self, pipeline: Run) -> Run:
        """The microbatches, and what comes once a step."""
        return self.clock.walk(
            Repeat("microbatches", pipeline), Message("data", self.once["data"], WIRE, True, "data"),
            Op("optimizer", self.once["optimizer"], "optimizer"),
        )  # fmt: skip

    def spent_in(self, layout: Layout, pipeline: Run, chunk: Chunk | None = None) -> dict[str, float]:
        """Seconds by part of a step whose microbatches take as long as `pipeline`: the bubble is what a rank waits in
        it, whose chunks are as `chunk`; None for the average one, without its first gather."""
        work = self.work if chunk is None else self._work_of(chunk, layout.virtual_stages)
        spent = dict.fromkeys(PARTS, 0.0)
        for kind, seconds in work.seconds_by_kind.items():
            spent["recomputation" if kind.startswith(AGAIN) else kind] += seconds
        apart = chunk is None and pipeline is not work
        gathers = 2 * apart * self.microbatches * layout.virtual_stages * self.pieces.gather
        spent["data"] += self.once["data"] + gathers
        spent["optimizer"] += self.once["optimizer"]
        spent["bubble"] = pipeline.seconds - work.seconds - gathers
        spent["stragglers"] = pipeline.seconds * (self.jitter - 1)
        return spent

    def chunks(self, layout: Layout) -> tuple[Chunk, ...]:
        """Each chunk, in the order of the model: the sum over its layers; slots that pad it count where they run."""
        model, why, lengths = self.model, why_padded(layout), chunk_lengths(self.model, layout)
        slots, sorts = Counter(chunk_slots(model, lengths)), iter(sorts_of(model, layout.matmul_quantization))
        made, chunks = dict[frozenset[tuple[Sort, int]], Chunk](), []
        for length in lengths:
            own = Counter(islice(sorts, length))
            key = frozenset(own.items())
            if key not in made:
                padding = Counter({Sort(kind): count for kind, count in (slots - _kinds(own)).items()})
                run = own + padding if why not in (None, GATHERED) else own
                # A branch skips the work, not the messages.
                gathered = sum(n * self.sent[sort][0] for sort, n in padding.items()) if why == GATHERED else 0.0
                # A short chunk runs the first rows of a map.
                shorter = layout.first_layers(length) if run is own else layout
                passed = self.passed if self.slots or shorter is layout else self._all_passed(shorter)
                made[key] = self.pieces.joined([(passed[sort], n) for sort, n in run.items()], gathered)
            chunks.append(made[key])
        return tuple(chunks)

    def _sum_over_stages(self) -> float:
        """Seconds of a sum over the stages of what is between two layers, where they share embedding and head.

        Uniform ticks have one in every forward (the embeddings), one in every backward (their gradients, unless they
        are frozen, which is not told apart), and two in every loss.
        """
        layout = self.layout
        if not layout.shared_embed_and_head:
            return 0.0
        return self.where.sum_over_stages(
            layout.devices, layout.pipe, self.case.between * self.case.shape.stream / self.case.embed * self.case.item
        )

    def _transfer(self) -> float:
        """From a stage to the next: the residual streams of a microbatch, of which each tensor rank sends its share."""
        layout = self.layout
        if layout.pipe == 1:
            return 0.0
        message = float(self.case.tokens * self.case.shape.stream * self.case.item)
        pair = self.network.pair(layout.devices // layout.pipe, layout.pipe)
        return pair.shift(message / layout.tensor)


def _kinds(sorts: Counter[Sort]) -> Counter[str]:
    """The number of layers of each kind."""
    by_kind: Counter[str] = Counter()
    for sort, count in sorts.items():
        by_kind[sort.kind] += count
    return by_kind
