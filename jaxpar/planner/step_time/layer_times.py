"""Times of a model's layers, by kind, and of its head, for layouts with equal microbatches on equal devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import NamedTuple

from jaxpar.config.kinds import kind_counts, layer_kinds
from jaxpar.config.plan import LayerRun
from jaxpar.config.schema import LoraConfig, ModelConfig
from jaxpar.cost.head import head_time
from jaxpar.cost.layer import LayerTime, layer_time
from jaxpar.cost.layer_case import LayerCase, layer_cases
from jaxpar.cost.layout import Layout, Remat
from jaxpar.cost.matmul_quantization import MatmulQuantization
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device
from jaxpar.cost.work import Work, total
from jaxpar.layers.declaration.adaptation import OFF
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.memory.remat import remat_map, runs_by_kind
from jaxpar.planner.settings import of_all_names
from jaxpar.planner.step_time.chunks import Kinds
from jaxpar.planner.step_time.update import Update, matrix_seconds


class Sort(NamedTuple):
    """The facts that decide the time of a layer."""

    kind: str
    exact: bool = False
    """Whether it multiplies in the compute dtype where others do in FP8."""


def sorts_of(model: ModelConfig, quantization: MatmulQuantization | None) -> tuple[Sort, ...]:
    """The sort of each layer, in the order of the model."""
    first, last = (0, 0) if quantization is None else quantization.exact
    return tuple(
        Sort(kind, index < first or index >= model.layers - last) for index, kind in enumerate(layer_kinds(model))
    )


def _counts(model: ModelConfig, quantization: MatmulQuantization | None) -> dict[Sort, float]:
    """Layers of each sort. Of a model with another number of layers than the one that is trained, as bounds are found
    from, as large a share is exact."""
    if quantization is None or model.layers == quantization.layers:
        return dict(Counter(sorts_of(model, quantization)))
    share = min(1.0, sum(quantization.exact) / quantization.layers)
    return {
        Sort(kind, exact): count * (share if exact else 1 - share)
        for kind, count in kind_counts(model).items()
        for exact in (False, True)
    }


class Layers:
    """A layer of each sort, what they take on average, and the head."""

    def __init__(
        self, model: ModelConfig, sequence: int, layout: Layout, device: Device, network: Network,
        lora: LoraConfig = OFF,
    ):  # fmt: skip
        assert model.vocab is not None, "the vocabulary is known before a step is predicted"
        vocab, counts = model.vocab, _counts(model, layout.matmul_quantization)
        quantized = layer_cases(model, sequence, layout, lora)
        self.shares = {sort: count / sum(counts.values()) for sort, count in counts.items()}
        """The share of each sort in the layers."""
        sorts = dict.fromkeys((*map(Sort, quantized), *counts))
        self.cases: dict[Sort, LayerCase] = {
            sort: quantized[sort.kind].exact if sort.exact else quantized[sort.kind] for sort in sorts
        }
        self.case = next(iter(self.cases.values()))
        """The case of one kind, for its facts that all have in common."""
        self.times = {sort: layer_time(case, device, network) for sort, case in self.cases.items()}
        self.forward = self.mean({sort: time.forward for sort, time in self.times.items()})
        self.backward = self.mean({sort: time.backward for sort, time in self.times.items()})
        self.trained = self.average({sort: case.trained for sort, case in self.cases.items()})
        """Weights of an average layer on a device that are trained, of its matrices or factors; without experts."""
        self.experts = self.average({sort: case.experts for sort, case in self.cases.items()})
        """Weights of its experts."""
        self.quantized_parameters = self.average({sort: case.quantized_parameters for sort, case in self.cases.items()})
        """Weights that are stored as codes of 8 bits; without experts."""
        self.quantized_experts = self.average({sort: case.quantized_experts for sort, case in self.cases.items()})
        self.head: Callable[[int], Work] = cache(lambda ends: total(head_time(self.case, vocab, device, network, ends)))
        """Head and loss of a microbatch, forward and backward, on a device; so many pipeline ranks share them."""
        self._again: dict[tuple[Remat, Kinds], dict[Sort, Work]] = {}

    def again(self, remat: Remat, slots: Kinds) -> dict[Sort, Work]:
        """Work that a layer of each sort recomputes in the backward, averaged over those of a chunk."""
        if (remat, slots) not in self._again:
            by_sort = self.by_sort(remat, slots)
            self._again[remat, slots] = {sort: self._made(time, by_sort[sort]) for sort, time in self.times.items()}
        return self._again[remat, slots]

    def by_sort(self, remat: Remat, slots: Kinds) -> dict[Sort, Remat]:
        """Remat of the layers of each sort, in chunks with slots of these kinds; none where all layers are alike."""
        if isinstance(remat, str) or not slots:
            return dict.fromkeys(self.cases, remat)
        runs = runs_by_kind([LayerRun(n, of_all_names(dict(own), tuple(dict(own)))) for n, own in remat], slots)
        maps = {kind: tuple((run.layers, tuple(run.activations.items())) for run in own) for kind, own in runs.items()}
        return {sort: maps[sort.kind] for sort in self.cases}

    def copied(self, remat: Remat, slots: Kinds, fraction: float) -> dict[Sort, float]:
        """Bytes that a layer of each sort copies to the host of a microbatch, averaged over those of a chunk."""
        by_sort = self.by_sort(remat, slots)
        return {sort: copied_bytes(self.cases[sort], own, fraction) for sort, own in by_sort.items()}

    def matrix_seconds(self, device: Device, update: Update) -> float:
        """Seconds of the matmuls in the update of the trained matrices of an average layer."""
        assert update.matrices is not None, "a rule that multiplies matrices"
        seconds = lambda case: matrix_seconds(case, device, update.matrices, update.matrix_bytes)
        return self.average({sort: seconds(case) for sort, case in self.cases.items()})

    def _made(self, time: LayerTime, remat: Remat) -> Work:
        """Work that a layer of a sort recomputes."""
        if isinstance(remat, str):
            return time.again(_recomputed(remat_map(remat, time.made)))
        layers = sum(count for count, _ in remat)
        return total(time.again(_recomputed(dict(own))).times(count / layers) for count, own in remat)

    def mean(self, works: Mapping[Sort, Work]) -> Work:
        """Over all layers of the model, of each sort's."""
        return total(works[sort].times(share) for sort, share in self.shares.items())

    def average(self, numbers: Mapping[Sort, float]) -> float:
        """The same of numbers."""
        return sum(share * numbers[sort] for sort, share in self.shares.items())


def _recomputed(treatments: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name, treatment in treatments.items() if treatment == "recompute")


def kept_bytes(case: LayerCase, remat: Remat) -> float:
    """Bytes of one microbatch that layers keep for their backward, averaged over them."""
    return CLOSED_FORMS[remat](case.shape) if isinstance(remat, str) else _bytes(case, remat, ("save", "offload"))


def copied_bytes(case: LayerCase, remat: Remat, fraction: float) -> float:
    """The same of what goes to the host's memory: activations that `remat` offloads, or else a `fraction` of what is
    kept. Where a run asks for a fraction, its map names the activations that make it up, and they count."""
    named = 0.0 if isinstance(remat, str) else _bytes(case, remat, ("offload",))
    return named or fraction * kept_bytes(case, remat)


def _bytes(
    case: LayerCase, remat: tuple[tuple[int, tuple[tuple[str, str], ...]], ...], treatments: Collection[str]
) -> float:
    """Bytes of the activations with one of these treatments, averaged over layers; a map saves what it leaves out."""
    sizes = activation_bytes(case.shape)
    layers = sum(count for count, _ in remat)
    local = lambda named: sum(size for name, size in sizes.items() if named.get(name, "save") in treatments)
    return sum(count * local(dict(named)) for count, named in remat) / layers
