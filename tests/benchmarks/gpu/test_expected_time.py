"""The page and the README state what a bring-up does, and how long it may take, from the steps that the code has."""

from __future__ import annotations

import re
from inspect import getclosurevars
from pathlib import Path
from typing import Any

from benchmarks.gpu.attention import TOGETHER
from benchmarks.gpu.attention_cases import timed
from benchmarks.gpu.bring_up.ladder import KERNELS, RUNGS, WIDTHS, Kernel
from benchmarks.gpu.bring_up.run import HANG, SANITIZING
from benchmarks.gpu.bring_up.steps import LAUNCHES, STAGES, Step, launched
from benchmarks.gpu.parts import PARTS

ROOT = Path(__file__).parents[3]
PAGE = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
PROCESSORS = 132


def stated(pattern: str) -> list[int]:
    """The numbers of the one place of the page that fits."""
    (found,) = re.finditer(pattern, PAGE)
    return [int(number.replace(",", "")) for number in found.groups()]


def numbers_of_cases(kernel: Kernel) -> list[int]:
    return [len(cases) for cases in kernel.cases(PROCESSORS, False).values()]


def test_the_page_states_the_steps_of_attention_and_their_minutes():
    climbs, speeds = STAGES[:2]
    kernels = [one for one in KERNELS if one.name.startswith("attention/")]
    cases = [number for one in kernels for number in numbers_of_cases(one)]
    groups = sum(-(-number // TOGETHER) for number in cases)
    processes, start, of_cases, in_groups, together, compiling, *rest = stated(
        r"Attention: (\d+) processes \((\d+) s to start\), (\d+) cases compiled in (\d+) groups of at most (\d+) "
        r"\((\d+) s\), (\d+) times ([\d,]+) launches \((\d+) s\) and (\d+) cases timed \((\d+) s\): (\d+) minutes"
    )
    times, launches, launching, of_timed, timing, minutes = rest
    assert (processes, of_cases, in_groups, together) == (len(climbs) + len(speeds), sum(cases), groups, TOGETHER)
    assert (times, launches, of_timed) == (len(kernels), LAUNCHES, len(timed()))
    seconds = processes * start + groups * compiling + times * launching + of_timed * timing
    assert round(seconds / 60) == minutes


def test_the_page_states_the_steps_of_the_other_kernels_and_their_minutes():
    climbs, speeds = STAGES[2:4]
    kernels = [one for one in KERNELS if not one.name.startswith("attention/")]
    (start,) = stated(r"\((\d+) s to start\)")
    processes, of_cases, each, times, launches, launching, measuring, minutes = stated(
        r"The other kernels: (\d+) processes, (\d+) cases \((\d+) s\), (\d+) times ([\d,]+) launches \((\d+) s\) and "
        r"(\d+) minutes of speeds: (\d+) minutes"
    )
    assert (processes, of_cases) == (len(climbs) + len(speeds), sum(sum(numbers_of_cases(one)) for one in kernels))
    assert (times, launches) == (len(kernels), LAUNCHES)
    assert round((processes * start + of_cases * each + times * launching) / 60 + measuring) == minutes


def test_the_page_states_the_cases_that_are_launched():
    sorts = {one.name: len(launched(one, one.cases(PROCESSORS, False)[RUNGS[2]])) for one in KERNELS}
    of_width, widths, of_kernel = stated(
        r"attention ([\d,]+) at each of the (\d+) widths of heads, of grouped matmuls of FP8 tiles ([\d,]+) of each of "
        "two kernels"
    )
    assert {number for name, number in sorts.items() if name.startswith("attention/")} == {widths} == {len(WIDTHS)}
    assert {number for name, number in sorts.items() if name.startswith("grouped_tiled")} == {2}
    assert (of_width, of_kernel) == (LAUNCHES // widths, LAUNCHES // 2)


def test_the_page_states_the_steps_of_the_sanitizer():
    assert stated(r"The sanitizer: (\d+) steps, of at most (\d+) minutes each") == [len(STAGES[-1]), SANITIZING // 60]
    assert f"a hang ({HANG} s without a new line" in PAGE


def test_the_page_states_every_part_whose_speeds_are_measured():
    def part(step: Step) -> str:
        measure: Any = getclosurevars(step.run).nonlocals["measure"]
        module = str(measure.__module__).rpartition(".")[2]
        return {"grouped_tiled": "tiled"}.get(module, module).replace("_", "-")

    (row,) = re.findall(r"\| speeds \| the parts ([^:]*) above:", PAGE)
    measured = {part(one) for stage in STAGES for one in stage if one.kernel is None}
    assert {*re.findall(r"`([^`]+)`", row)} == measured <= {one.name for one in PARTS}


def test_the_readme_states_the_same_minutes():
    readme = " ".join((ROOT / "README.md").read_text().split())
    (of_attention,), (others,) = stated(r"timed \(\d+ s\): (\d+) minutes"), stated(r"of speeds: (\d+) minutes")
    assert f"about {of_attention} minutes until its kernels are turned on" in readme
    assert f"about {others} more for the other kernels" in readme
