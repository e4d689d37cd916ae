"""Routed experts have the factors of each row's adapter, wherever an exchange of tokens computes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.generation.requests import Request
from jaxpar.interop.adapters.adapter import Adapter, AdapterSource
from tests.generation.test_adapters import Merged, adapter_of, assert_same, base_of, drawn_by, generator_of, placed

LAYOUTS: dict[str, dict[str, Any]] = {
    "experts": {"expert": 2, "tensor": 2, "experts": {"exchange": "all_gather"}},
    "sent": {"expert": 2, "context": 2, "experts": {"exchange": "all_to_all", "capacity": 1.0}},
}
ASKED = [Request([3, 1, 4, 1, 5 + number % 2], 5, adapter=number) for number in (2, -1, 0, 1)]


def routed(name: str, number: int, seed: int = 0) -> Adapter:
    """The factors of the experts alone, so that they decide the answers."""
    factors = adapter_of(name, number, seed).factors
    return Adapter({key: pair for key, pair in factors.items() if pair[0].ndim == 3})


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize(("name", "layout"), [("mixtral", "experts"), ("mixtral", "sent"), ("gpt_oss", "experts")])
def test_experts_have_the_factors_of_each_rows_adapter(name: str, layout: str):
    """Log-probabilities of a model with them merged in float64, on one device; and another adapter in place of one
    compiles nothing."""
    base = base_of(name)
    adapters = [adapter_of(name, 0), adapter_of(name, 1), routed(name, 0, seed=4)]
    another = routed(name, 1, seed=9)
    alone, wanted = generator_of(base, {}), {}
    for key, adapter in {-1: None, 0: adapters[0], 1: adapters[1], 2: adapters[2], "another": another}.items():
        alone.update(placed(base if adapter is None else Merged(base, adapter), {}).weights)
        wanted[key] = drawn_by(alone, [replace(one, adapter=-1) for one in ASKED])
    generator = generator_of(AdapterSource(base, adapters), LAYOUTS[layout])
    for number, (request, rows) in enumerate(zip(ASKED, drawn_by(generator, list(map(replace, ASKED))), strict=True)):
        assert_same(rows, wanted[request.adapter][number])
    programs, compiled = (
        generator.programs.compiles,
        [one._cache_size() for one in generator.programs._compiled.values()],
    )
    generator.put_adapters(AdapterSource(base, [adapters[0], another, None], generator.config.lora))
    keys = {-1: -1, 0: 0, 1: "another", 2: -1}
    for number, (request, rows) in enumerate(zip(ASKED, drawn_by(generator, list(map(replace, ASKED))), strict=True)):
        assert_same(rows, wanted[keys[request.adapter]][number])
    assert generator.programs.compiles == programs
    assert [one._cache_size() for one in generator.programs._compiled.values()] == compiled
