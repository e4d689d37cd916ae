"""The parts of a step's time on one cluster that layouts share which differ in the schedule alone."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from jaxpar.cost.work import Work, total
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.chunks import GATHERED, Kinds, chunk_lengths, chunk_slots, kinds_of_slots, why_padded
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.layer_times import Passed, Sort, sorts_of
from jaxpar.planner.step_time.once import Once
from jaxpar.planner.step_time.overlap import HOST, first_gather, waited
from jaxpar.planner.step_time.pipeline import Pieces, Stages, chunk_layers, pipeline_seconds, seconds_of_chunks
from jaxpar.planner.step_time.ticks import ChunkTime
from jaxpar.planner.step_time.weight_traffic import (
    SLICED,
    DataMessages,
    holds_chunks,
    reduces_with_weights,
    slices_chunks,
)

PARTS = {
    "matmuls": "matmul", "attention": "attention", "other": "other", "exchange": "exchange", "tensor": "tensor",
    "context": "context", "scales": "scales",
}  # fmt: skip
"""Parts of a step, and their names in `Work`."""
MESSAGES = ("exchange", "tensor", "context")
"""Parts that are messages, those of recomputation included."""


class Step:
    """The parts of a step's time."""

    def __init__(self, where: Common, layout: Layout, like: Step | None = None):
        """`like` is the step of a layout that differs in its ends alone, whose layers and messages are taken over."""
        self.where, self.layout = where, layout
        self.model, self.hardware, self.network = where.model, where.hardware, where.network
        if like is None:
            self._layers()
        else:
            vars(self).update(vars(like) | {"layout": layout})
        once = Once(where, layout, self.layers, self.slots, self.messages)
        self.once = {"data": once.data(), "optimizer": once.optimizer()}
        """Seconds by part that come once a step, after the pipeline."""
        self.spent = self._microbatches()
        """Seconds by part, those of `once` included; without the bubble and the wait for the slowest host."""
        self.spent |= {"data": self.spent["data"] + self.once["data"], "optimizer": self.once["optimizer"]}

    def _layers(self) -> None:
        """Compute the times of layers, and of their messages."""
        where, layout = self.where, self.layout
        self.microbatches = where.microbatches(layout)
        self.layers = where.layers(layout)
        self.case = self.layers.case
        self.holds = holds_chunks(layout)
        self.slots: Kinds = kinds_of_slots(where.model, layout)
        """The kind of each; none where all layers are alike."""
        self.unlike = layout.matmul_codes is not None and any(layout.matmul_codes.exact)
        """Whether some layers multiply in FP8 and others do not."""
        self.messages = DataMessages(where, layout, float(self.case.item))
        self.jitter = where.jitter(layout.devices)
        again = self.layers.again(layout.remat, self.slots)
        self.passed = {sort: self._passed(sort, work) for sort, work in again.items()}
        """A layer of each sort."""

    def spent_in(self, layout: Layout, waits: bool) -> dict[str, float]:
        """All seconds, in the schedule of `layout`."""
        makespan, gathers = self.ideal, 0.0
        if layout.pipe > 1 and waits:
            gathers = 2 * self.microbatches * layout.virtual_stages * self.pieces.gather
            stages = Stages(layout.schedule, layout.pipe, self.microbatches, layout.virtual_stages)
            ends = self.pieces.head, self.pieces.transfer
            if self.slots or self.unlike:
                makespan = seconds_of_chunks(stages, self.chunks(layout), *ends)
            else:
                longest = max(chunk_layers(self.model.layers, layout.pipe * layout.virtual_stages))
                makespan = pipeline_seconds(stages, self.pieces.chunk(longest), *ends)
        spent = {**self.spent, "data": self.spent["data"] + gathers}
        return {**spent, "bubble": makespan - self.ideal - gathers, "stragglers": makespan * (self.jitter - 1)}

    def chunks(self, layout: Layout) -> tuple[ChunkTime, ...]:
        """Each chunk, in the order of the model: the sum over its layers; slots that pad it count where they run."""
        model, why, lengths = self.model, why_padded(layout), chunk_lengths(self.model, layout)
        slots, sorts = Counter(chunk_slots(model, lengths)), iter(sorts_of(model, layout.matmul_codes))
        found = []
        for length in lengths:
            own = Counter(islice(sorts, length))
            padding = Counter({Sort(kind): number for kind, number in (slots - _kinds(own)).items()})
            run = own + padding if why not in (None, GATHERED) else own
            forward, backward, weight = (
                sum(number * getattr(self.passed[sort], name) for sort, number in run.items())
                for name in ChunkTime._fields
            )
            if why == GATHERED:  # a branch skips the work, not the messages
                gathered = sum(number * self.passed[sort].gathered for sort, number in padding.items())
                forward, backward = forward + gathered, backward + gathered
            more = self.pieces.of_chunk
            found.append(ChunkTime(forward + more, backward + more, weight))
        return tuple(found)

    def _passed(self, sort: Sort, again: Work) -> Passed:
        """A layer of a sort, forward and backward, beside the messages of its weights."""
        time, gathered, scattered = self.layers.times[sort], 0.0, 0.0
        if not self.holds:
            gathered, scattered = self.messages.of_layers(self.layers.cases[sort])
        forward, backward = time.forward, time.backward
        if time.message:
            forward, backward = time.beside_weights(gathered, gathered + scattered)
        back = backward.seconds + again.seconds
        f, w = self._beside(forward.seconds, gathered, sends=forward.sends), min(time.weight, back)
        if reduces_with_weights(self.layout):
            weight = self._beside(w, scatter=scattered)
            b = self._beside(back - w, gathered, sends=backward.sends + again.sends) + weight
        else:
            weight, b = w, self._beside(back, gathered, scattered, backward.sends + again.sends)
        offload, sliced = self._offload(sort, f, b), self._sliced(sort)
        both: dict[str, float] = total([forward, backward])._asdict()
        spent = {part: both[name] for part, name in PARTS.items()}
        spent |= {name: spent[name] + getattr(again, name) for name in MESSAGES}
        spent["recomputation"] = again.seconds - sum(getattr(again, name) for name in MESSAGES)
        spent |= {"offload": sum(offload), "slices": sum(sliced), "data": f + b - forward.seconds - back}
        f, b = f + offload[0] + sliced[0], b + offload[1] + sliced[1]
        return Passed(f, b, min(weight, b), gathered, spent)

    def _sliced(self, sort: Sort) -> tuple[float, float]:
        """Seconds, forward and backward, of copies of a layer's weights and gradients from and into their stacks."""
        if not slices_chunks(self.layout):
            return 0.0, 0.0
        case, seconds = self.layers.cases[sort], self.where.device.bytes_seconds
        whole, trained = case.parameters + case.experts, case.trained + case.experts
        return seconds(SLICED.forward * whole), seconds(SLICED.backward * whole + SLICED.gradient * trained)

    def _beside(self, compute: float, gather: float = 0.0, scatter: float = 0.0, sends: float = 0.0) -> float:
        """Seconds of compute and the messages of weights beside it, none of which is hidden in the `sends` seconds of
        it in which tokens travel to experts or back."""
        waits = waited(gather, scatter, max(0.0, compute - sends), self.layout.tensor)
        return compute + waits + self.hardware.overlap_slowdown * (gather + scatter - waits)

    def _microbatches(self) -> dict[str, float]:
        """Seconds by part of the forward and backward of all microbatches."""
        layout, m, mean = self.layout, self.microbatches, self._mean_passed()
        head, sums = self.layers.head(layout.ends), self._sum_over_stages()
        # The output of the last chunk goes to all ranks, and what they find of its gradient is summed.
        ends, first = head.seconds + 2 * sums, first_gather(mean.gathered)
        self.pieces = Pieces(mean.forward, mean.backward, mean.weight, ends, self._transfer(), sums, first)
        """The pieces of an average layer."""
        count, share = m * self.model.layers / layout.pipe, m if layout.shared_ends else m / layout.pipe
        self.ideal = count * (mean.forward + mean.backward) + share * head.seconds
        spent = {name: count * seconds for name, seconds in mean.spent.items()}
        spent |= {part: spent[part] + share * getattr(head, name) for part, name in PARTS.items()}
        return spent | {"bubble": 0.0, "stragglers": 0.0}  # these are of the schedule

    def _mean_passed(self) -> Passed:
        """A layer on average over sorts."""
        first, *others = self.passed.values()
        if not others:
            return first
        each = self.passed.items()
        mean = lambda index: self.layers.average({sort: own[index] for sort, own in each})
        of_part = lambda name: self.layers.average({sort: own.spent[name] for sort, own in each})
        return Passed(mean(0), mean(1), mean(2), mean(3), {name: of_part(name) for name in first.spent})

    def _offload(self, sort: Sort, forward: float, backward: float) -> tuple[float, float]:
        """Seconds of copies to and from the host's memory that are not hidden: what is longer than a layer's compute,
        and at least `HOST` of them."""
        layout = self.layout
        copied = self.layers.copied(layout.remat, self.slots, layout.offload_fraction)[sort]
        if not copied:
            return 0.0, 0.0
        copy = copied / self.where.cluster.host_bandwidth
        least = HOST * copy
        return max(least, copy - forward), max(least, copy - backward)

    def _sum_over_stages(self) -> float:
        """Seconds of a sum over the stages of what is between two layers, where they share embedding and head.

        Uniform ticks have one in every forward (the embeddings), one in every backward (their gradients, unless they
        are frozen, which is not told apart), and two in every loss.
        """
        layout = self.layout
        if not layout.shared_ends:
            return 0.0
        return self.where.sum_over_stages(layout.devices, layout.pipe, self.case.between * self.case.item)

    def _transfer(self) -> float:
        """From a stage to the next: the residual stream of a microbatch, of which each tensor rank sends its share."""
        layout = self.layout
        if layout.pipe == 1:
            return 0.0
        whole = float(self.case.tokens * self.case.embed * self.case.item)
        pair = self.network.pair(layout.devices // layout.pipe, layout.pipe)
        return pair.shift(whole / layout.tensor)


def _kinds(sorts: Counter[Sort]) -> Counter[str]:
    """How many layers of each kind there are."""
    found: Counter[str] = Counter()
    for sort, number in sorts.items():
        found[sort.kind] += number
    return found
