"""The table of the page on benchmarks, and the README, state how long a bring-up takes by the steps of the code."""

from __future__ import annotations

import re
from inspect import getclosurevars
from pathlib import Path
from typing import Any

from benchmarks.gpu.attention import TOGETHER
from benchmarks.gpu.attention_cases import timed
from benchmarks.gpu.bring_up.ladder import KERNELS, RUNGS, WIDTHS, Kernel
from benchmarks.gpu.bring_up.run import SANITIZING
from benchmarks.gpu.bring_up.steps import STAGES, Step, launched
from benchmarks.gpu.parts import PARTS

ROOT = Path(__file__).parents[3]
PROCESSORS = 132
ATTENTION, OTHERS = (
    [one for one in KERNELS if one.name.startswith("attention/") == attention] for attention in (True, False)
)


def row(name: str) -> str:
    """The row of a table of the page."""
    (line,) = re.findall(rf"^\| {name} \|(.*)$", (ROOT / "docs" / "benchmarks.md").read_text(), re.MULTILINE)
    return line


def stated(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", row(name))]


def cases(kernels: list[Kernel]) -> list[int]:
    return [len(each) for one in kernels for each in one.cases(PROCESSORS, False).values()]


def test_the_page_states_the_steps_and_their_minutes():
    start, group, case, launch_attention, launch, timing = stated("seconds each")
    *steps, minutes = stated("attention")
    processes = len(STAGES[0]) + len(STAGES[1])
    groups = sum(-(-number // TOGETHER) for number in cases(ATTENTION))
    assert steps == [processes, sum(cases(ATTENTION)), groups, len(ATTENTION), len(timed())]
    seconds = processes * start + groups * group + len(ATTENTION) * launch_attention + len(timed()) * timing
    assert round(seconds / 60) == minutes

    *steps, speeds, others = stated("other kernels")
    processes = len(STAGES[2]) + len(STAGES[3])
    assert steps == [processes, sum(cases(OTHERS)), len(OTHERS)]
    assert round((processes * start + sum(cases(OTHERS)) * case + len(OTHERS) * launch) / 60 + speeds) == others

    assert stated("sanitizer") == [len(STAGES[-1]), SANITIZING // 60]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"about {minutes} minutes until its kernels are turned on" in readme
    assert f"about {others} more for the other kernels" in readme


def test_each_width_of_attention_and_both_grouped_kernels_are_launched():
    sorts = {one.name: len(launched(one, one.cases(PROCESSORS, False)[RUNGS[2]])) for one in KERNELS}
    assert {number for name, number in sorts.items() if name.startswith("attention/")} == {len(WIDTHS)}
    assert {number for name, number in sorts.items() if name.startswith("grouped_tiled")} == {2}


def test_the_page_states_every_part_whose_speeds_are_measured():
    def part(step: Step) -> str:
        measure: Any = getclosurevars(step.run).nonlocals["measure"]
        module = str(measure.__module__).rpartition(".")[2]
        return {"grouped_tiled": "tiled"}.get(module, module).replace("_", "-")

    measured = {part(one) for stage in STAGES for one in stage if one.kernel is None}
    assert {*re.findall(r"`([a-z-]+)`", row("speeds"))} - {"auto"} == measured <= {one.name for one in PARTS}
