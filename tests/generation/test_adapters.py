"""Rows of several adapters in one batch have the log-probabilities of each adapter merged into the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.kinds import layer_kinds
from jaxpar.generation.generator import Generator
from jaxpar.generation.placed_model import PlacedModel, place_on, prefill_mesh
from jaxpar.generation.requests import Continuation, Request
from jaxpar.generation.sampling import Sampling
from jaxpar.interop.adapters.adapter import Adapter, AdapterSource
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.goldens.loading import FOLDER
from tests.sentences import refused
from tests.small_run import layout_of, small

CAPACITY, SLOTS = 64, 8
ROUNDED = 32 * 2.0**-24
"""Relative difference by rounding: float32 has W + AB rounded, or the products by W, A and B."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "one_device": {},
    "split": {"fsdp": 2, "tensor": 2, "context": 2},
    "tensor4": {"tensor": 4, "replica": 2},
}
TARGETS = (
    (3, ("attention.query", "attention.value", "mlp.down")),
    (5, ("attention.key", "attention.output", "mlp.up", "mlp.gate")),
    (2, ("attention.query", "attention.key")),
)
"""Rank and matrices of each adapter; the second has none in the first layer."""
ROUTED = ("layers.mlp.up", "layers.mlp.gate", "layers.mlp.down")
"""Matrices of experts have three dims in models with experts, and two in others."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A model with an adapter merged in float64."""

    base: HFFolder
    adapter: Adapter

    @property
    def model(self) -> Any:
        return self.base.model

    def read(self, weight: str, layers: Sequence[int] | None, region: Any) -> np.ndarray:
        values = self.base.read(weight, layers, region).astype(np.float64)
        for index, layer in enumerate(layers or ()):
            if (weight, layer) in self.adapter.factors:
                a, b = self.adapter.factors[weight, layer]
                full = np.matmul if a.ndim == b.ndim == 3 and weight in ROUTED else partial(np.tensordot, axes=1)
                values[index] += full(a.astype(np.float64), b.astype(np.float64))[region]
        return values.astype(np.float32)


@cache
def base_of(name: str) -> HFFolder:
    return HFFolder(FOLDER / name)


def adapter_of(name: str, number: int, seed: int = 0) -> Adapter:
    rng, model = np.random.default_rng([seed, number]), base_of(name).model
    rank, targets = TARGETS[number]
    factors = {}
    for layer in range(1 if number == 1 else 0, model.layers):
        specs = weight_specs(model, layer_kinds(model)[layer])
        for target in targets:
            if (spec := specs.get(f"layers.{target}")) is not None:
                stack, end = spec.stack, spec.stack + spec.inputs
                a, b = (*spec.shape[:end], rank), (*spec.shape[:stack], rank, *spec.shape[end:])
                pair = (0.3 * rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
                factors[f"layers.{target}", layer] = tuple(pair)
    return Adapter(factors)


def placed(source: Any, parallel: dict[str, Any]) -> PlacedModel:
    config = replace(small(parallel=parallel), model=source.model)
    return place_on(config, source, jax.devices()[: layout_of(config.parallel)])


def generator_of(source: Any, parallel: dict[str, Any]) -> Generator:
    model = placed(source, parallel)
    return Generator(model.config, model.mesh, model.weights)


@pytest.mark.long
def test_prompts_that_another_mesh_reads_have_their_adapters():
    """Also after an update of the adapters."""
    base, adapters = base_of("llama"), [adapter_of("llama", number) for number in range(3)]
    source = AdapterSource(base, adapters)
    model = placed(source, {})
    other = prefill_mesh(model.config, jax.devices()[1:2])
    apart = Generator(model.config, model.mesh, model.weights, prefill=other)
    alone = Generator(model.config, model.mesh, model.weights)
    asked = [Request([3, 1, 4, 1, 5], 6, adapter=number) for number in (-1, 0, 1, 2)]
    for order in ((0, 1, 2), (2, 0, 1)):
        changed = AdapterSource(base, [adapters[number] for number in order], source.stack)
        answers = []
        for generator in (apart, alone):
            generator.put_adapters(changed)
            answers.append(drawn_by(generator, [replace(one) for one in asked]))
        for rows, wanted in zip(*answers, strict=True):
            assert_same(rows, wanted)


def requests_of(vocab: int, adapters: Sequence[int]) -> list[Request]:
    """Two prompts for each adapter, one of them the same for all; some have several answers."""
    rng, same = np.random.default_rng(5), np.random.default_rng(6).integers(0, vocab, 33).tolist()
    made = []
    for number, adapter in enumerate(adapters):
        sampling = Sampling(temperature=1.0 * (number % 2))
        other = rng.integers(0, vocab, rng.integers(1, 20)).tolist()
        for prompt, answers in ((same, 2), (other, 1)):
            made.append(Request(prompt, 9 + number, sampling, 7, 10 * len(made), answers, adapter=adapter))
    return made


def drawn_by(generator: Generator, requests: Sequence[Request]) -> list[list[Continuation]]:
    engine = generator.engine(SLOTS, CAPACITY)
    for request in requests:
        engine.add(request)
    while engine.busy:
        engine.step()
    return [[row.continuation() for row in request.rows] for request in requests]


def assert_same(rows: Sequence[Continuation], wanted: Sequence[Continuation]) -> None:
    for one, other in zip(rows, wanted, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, rtol=ROUNDED, atol=1e-5)


def of_each_alone(name: str, adapters: dict[int, Adapter]) -> dict[int, list[list[Continuation]]]:
    """By adapter, the answers of the model with it merged, on one device; -1 is the model itself."""
    base, made, generator = base_of(name), dict[int, list[list[Continuation]]](), None
    for index in (-1, *adapters):
        merged = base if index < 0 else Merged(base, adapters[index])
        if generator is None:
            generator = generator_of(merged, {})
        else:
            generator.update(placed(merged, {}).weights)
        requests = [one for one in requests_of(base.model.vocab or 0, (0, 1, 2, -1)) if one.adapter == index]
        made[index] = drawn_by(generator, [replace(one, adapter=-1) for one in requests])
    return made


@pytest.mark.matrix(quick=(), ci=2)
@pytest.mark.parametrize(("name", "layout"), [*(("llama", layout) for layout in LAYOUTS), ("phi3", "one_device")])
def test_rows_of_several_adapters_are_those_of_each_alone(name: str, layout: str):
    """Beside each other and rows without one, whatever the order; another adapter at an index compiles nothing."""
    adapters = {number: adapter_of(name, number) for number in range(3)}
    wanted = of_each_alone(name, adapters)
    source = AdapterSource(base_of(name), list(adapters.values()))
    generator = generator_of(source, LAYOUTS[layout])
    requests = requests_of(source.model.vocab or 0, (0, 1, 2, -1))
    for order in (range(len(requests)), [5, 2, 7, 0, 3, 6, 1, 4]):
        some = [replace(requests[at]) for at in order]
        for at, rows in zip(order, drawn_by(generator, some), strict=True):
            assert_same(rows, wanted[requests[at].adapter][at % 2])
    for request, adapter in zip(requests[::2], (0, 1, 2, -1), strict=True):
        row = [*request.prompt, *wanted[adapter][0][0].tokens.tolist()]
        scores = generator.scored(row, adapter)[len(request.prompt) - 1 :]
        np.testing.assert_allclose(scores, wanted[adapter][0][0].log_probabilities, atol=1e-5)


@pytest.fixture(scope="module")
def several() -> Generator:
    return generator_of(AdapterSource(base_of("llama"), [adapter_of("llama", number) for number in range(3)]), {})


def test_another_adapter_at_an_index_compiles_nothing(several: Generator):
    """Also where there was none; the other adapters stay as they are."""
    base = base_of("llama")
    asked = [Request([3, 1, 4, 1, 5], 6, adapter=number) for number in (-1, 0, 1, 2)]
    first = drawn_by(several, [replace(one) for one in asked])
    programs, compiled = several.programs.compiles, [one._cache_size() for one in several.programs._compiled.values()]
    adapters, stack = [adapter_of("llama", number) for number in range(3)], several.config.lora
    try:
        several.put_adapters(AdapterSource(base, [adapters[0], adapter_of("llama", 2, seed=9), None], stack))
        after = drawn_by(several, [replace(one) for one in asked])
    finally:
        several.put_adapters(AdapterSource(base, adapters, stack))
    assert_same([*after[0], *after[1]], [*first[0], *first[1]])
    assert_same(after[3], first[0])
    assert np.abs(after[2][0].log_probabilities - first[2][0].log_probabilities).max() > 1e-3
    alone = generator_of(Merged(base, adapter_of("llama", 2, seed=9)), {})
    assert_same(after[2], drawn_by(alone, [replace(asked[0])])[0])
    assert several.programs.compiles == programs
    assert [one._cache_size() for one in several.programs._compiled.values()] == compiled
    wide = adapter_of("llama", 1)
    with refused("rank 5", "at most 3"):
        AdapterSource(base, [wide], replace(stack, rank=3, size=1))
    with refused("attention.key", "query"):
        AdapterSource(base, [wide], replace(stack, targets=("query",), size=1))


def test_rows_of_different_adapters_share_no_page(several: Generator):
    """The same prompt, which fills two pages, with each adapter; the answers of one request share them."""
    engine = several.engine(SLOTS, CAPACITY)
    prompt = np.random.default_rng(8).integers(0, 90, 40).tolist()
    requests = [Request(prompt, 10, answers=2, adapter=number) for number in (-1, 0, 1, 2)]
    for request in requests:
        engine.add(request)
    engine.step()
    pages = {}
    for slot, row in enumerate(engine._slots):
        assert row is not None, "each has a slot"
        pages.setdefault(row.request.adapter, []).append(set(engine._pages.table[slot, :4].tolist()))
    for number, (one, other) in pages.items():
        assert len(one & other) == 2, "the two full pages of the prompt"
        assert not any((one | other) & some for key, sets in pages.items() if key != number for some in sets)
    while engine.busy:
        engine.step()
    alone = [drawn_by(several, [replace(request)])[0] for request in requests]
    for request, wanted in zip(requests, alone, strict=True):
        assert_same([row.continuation() for row in request.rows], wanted)
