"""The planner's first choice for each cluster of a shipped configuration, compiled: it fits, and takes what was
predicted, by class of time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.planner.shipped import Shipped, first_choice, shipped
from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.planner.evidence.verified import Verified, judged
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.settings import config_of, plan_on

WITHIN = 0.15
"""Most that a class of time is off, of the compiled step."""
TIMEOUT_S = 1200.0
OF_EXPERTS = ("parallel.expert_backend=mosaic",)
"""What the planner's times of experts are of; `auto` takes it where it was verified."""
CUT = {"qwen3_30b_a3b": 4, "deepseek_v3": 7}
"""Layers of the programs of models whose whole programs take many minutes to compile."""
COMPILED = [
    pytest.param(one, marks=pytest.mark.release if one.file.stem in CUT else pytest.mark.long, id=one.file.stem)
    for one in shipped()
]


def compiled(first: Planned, search: Search) -> Verified:
    compilation = compile_step(first.config, first.cluster, timeout_s=TIMEOUT_S)
    report = make_report(Analysis(compilation, first.cluster, strict=True), "first choice")
    return judged(
        first, search.reached, report.allocated_bytes, report.fits, report.collectives, report.notes,
        report.seconds_by_kind,
    )  # fmt: skip


def cut(first: Planned, search: Search, layers: int) -> Planned:
    """The same layout of the model's first layers, which keep what they keep in it."""
    own = search.space.config
    config, layout = replace(own, model=replace(own.model, layers=layers)), first.candidate.layout.first_layers(layers)
    filled, plan = plan_on(config_of(config, layout), first.cluster)
    candidate = replace(
        first.candidate,
        layout=layout,
        time=Search(Space(config, first.cluster)).timer.step(layout),
        memory=estimate_memory(filled, plan),
    )
    return replace(first, config=filled, plan=plan, candidate=candidate)


@pytest.mark.parametrize("one", COMPILED)
def test_a_first_choice_fits_and_takes_what_was_predicted(one: Shipped):
    layers = CUT.get(one.file.stem)
    search, first, _ = first_choice(one, OF_EXPERTS if layers else ())
    found = compiled(cut(first, search, layers) if layers else first, search)
    assert found.fits
    far = {name: f"{share:+.1%}" for name, share in found.differences.items() if abs(share) > WITHIN}
    assert not far, "predicted less compiled seconds, of the step"
