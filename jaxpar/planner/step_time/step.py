"""The parts of a step's time on one cluster that layouts share which differ in the schedule alone."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from jaxpar.cost.work import Work
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.chunks import GATHERED, Kinds, chunk_lengths, chunk_slots, kinds_of_slots, why_padded
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.data_messages import DataMessages
from jaxpar.planner.step_time.layer_times import Passed, Sort, sorts_of
from jaxpar.planner.step_time.once import Once
from jaxpar.planner.step_time.overlap import HOST, first_gather, waited
from jaxpar.planner.step_time.pipeline import Pieces, Stages, chunk_layers, pipeline_seconds, seconds_of_chunks
from jaxpar.planner.step_time.ticks import ChunkTime
from jaxpar.planner.step_time.weight_traffic import SLICED, holds_chunks, reduces_with_weights, slices_chunks


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
        self.rest = Once(where, layout, self.layers, self.slots, self.messages)
        self.once = {"data": self.rest.data(), "optimizer": self.rest.optimizer()}
        """Seconds by part that come once a step, after the pipeline."""
        self.spent: dict[str, float] = {}
        """Seconds by part, those of `once` included; without the bubble and the wait for the slowest host."""
        self._microbatches(self.spent)
        self.spent["data"] += self.once["data"]
        self.spent["optimizer"] = self.once["optimizer"]

    def _layers(self) -> None:
        """What layers take, and their messages."""
        where, layout = self.where, self.layout
        self.microbatches = where.microbatches(layout)
        self.layers = where.layers(layout)
        self.case = self.layers.case
        self.holds = holds_chunks(layout)
        self.slots: Kinds = kinds_of_slots(where.model, layout)
        """The kind of each; none where all layers are alike."""
        self.unlike = layout.matmul_codes is not None and any(layout.matmul_codes.exact)
        """Whether some layers multiply in FP8 and others do not."""
        again = self.layers.again(layout.remat, self.slots)
        self.again = self.layers.mean(again)
        self.messages = DataMessages(where, layout, float(self.case.item))
        self.jitter = where.jitter(layout.devices)
        self.works = {sort: self._works(sort) for sort in self.layers.times}
        """Forward and backward of a layer of each sort."""
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
                sum(number * self.passed[sort][place] for sort, number in run.items()) for place in range(3)
            )
            if why == GATHERED:  # a branch skips the work, not the messages
                gathered = sum(number * self.passed[sort].gathered for sort, number in padding.items())
                forward, backward = forward + gathered, backward + gathered
            more = self.pieces.of_chunk
            found.append(ChunkTime(forward + more, backward + more, weight))
        return tuple(found)

    def _of_weights(self, sort: Sort) -> tuple[float, float]:
        """Seconds of gathers of a layer's weights, forward and as long backward, and of reductions of its gradients."""
        return (0.0, 0.0) if self.holds else self.messages.of_layers(self.layers.cases[sort])

    def _works(self, sort: Sort) -> tuple[Work, Work]:
        """Forward and backward of a layer of a sort, beside its weights."""
        time = self.layers.times[sort]
        if not time.message:
            return time.forward, time.backward
        gathered, scattered = self._of_weights(sort)
        return time.beside_weights(gathered, gathered + scattered)

    def _passed(self, sort: Sort, again: Work) -> Passed:
        """A layer of a sort, forward and backward."""
        time, (forward, backward) = self.layers.times[sort], self.works[sort]
        gathered, scattered = self._of_weights(sort)
        f, b, b_again = forward.seconds, backward.seconds, again.seconds
        sliced = self._sliced(sort)
        back = b + b_again
        weight = min(time.weight, back)
        sends, sends_back = forward.sends, backward.sends + again.sends
        whole_f = self._beside(f, gathered, sends=sends)
        if reduces_with_weights(self.layout):
            weight = self._beside(weight, scatter=scattered)
            whole_b = self._beside(back - min(time.weight, back), gathered, sends=sends_back) + weight
        else:
            whole_b = self._beside(back, gathered, scattered, sends_back)
        offload = self._offload(sort, whole_f, whole_b)
        whole_f, whole_b = whole_f + offload[0] + sliced[0], whole_b + offload[1] + sliced[1]
        return Passed(whole_f, whole_b, min(weight, whole_b), f, b, b_again, *offload, gathered, sum(sliced))

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

    def _microbatches(self, spent: dict[str, float]) -> None:
        """Forward and backward of all microbatches, the pipeline around them included."""
        layout, again, m = self.layout, self.again, self.microbatches
        forward, backward = (self.layers.mean({sort: own[way] for sort, own in self.works.items()}) for way in (0, 1))
        per_rank = self.model.layers / layout.pipe
        mean = self._mean_passed()
        whole_f, whole_b, f, b, b_again = mean.forward, mean.backward, mean.own_forward, mean.own_backward, mean.again
        offload, back = (mean.offload, mean.offload_back), b + b_again
        head, sums = self.layers.head(layout.ends), self._sum_over_stages()
        # The output of the last chunk goes to all ranks, and what they find of its gradient is summed.
        first = first_gather(mean.gathered)
        self.pieces = Pieces(whole_f, whole_b, mean.weight, head.seconds + 2 * sums, self._transfer(), sums, first)
        """Of an average layer."""
        count = m * per_rank
        share = m if layout.shared_ends else m / layout.pipe
        self.ideal = count * (whole_f + whole_b) + share * head.seconds
        spent["matmuls"] = count * (forward.matmul + backward.matmul) + share * head.matmul
        spent["attention"] = count * (forward.attention + backward.attention)
        spent["other"] = count * (forward.other + backward.other) + share * head.other
        spent["recomputation"] = count * (again.seconds - again.tensor - again.context - again.exchange)
        spent["exchange"] = count * (forward.exchange + backward.exchange + again.exchange)
        spent["tensor"] = count * (forward.tensor + backward.tensor + again.tensor) + share * head.tensor
        spent["context"] = count * (forward.context + backward.context + again.context)
        spent["scales"] = count * (forward.scales + backward.scales)
        spent["offload"] = count * sum(offload)
        spent["slices"] = count * mean.sliced
        spent["data"] = count * (whole_f + whole_b - f - back - sum(offload) - mean.sliced)
        spent["bubble"] = spent["stragglers"] = 0.0  # of the schedule, below

    def _mean_passed(self) -> Passed:
        """A layer on average over sorts."""
        first, *others = self.passed.values()
        if not others:
            return first
        each = self.passed.items()
        return Passed(*(self.layers.average({sort: own[place] for sort, own in each}) for place in range(10)))

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
