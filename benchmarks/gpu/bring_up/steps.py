"""The steps of a bring-up, each in a process of its own; what is over is in the journal, and is not run again.

They come in stages, and after each stage what was right and fast is recorded. Attention is first, so that a run that is
cut off has turned its kernels on; the sanitizers, which take longest, are last.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import batched
from typing import Any

import jax

from benchmarks.gpu import attention, grouped, linear_attention, tiled
from benchmarks.gpu.bring_up import sanitizer
from benchmarks.gpu.bring_up.ladder import KERNELS, RUNGS, Kernel, differing
from benchmarks.gpu.journal import Journal

LAUNCHES = 10_000
"""Of a kernel; the cases that are launched share them."""
CASE_SECONDS = 15
"""Cases do not start with fewer seconds left, and for each beside the first a few more."""


@dataclass(frozen=True)
class Step:
    """What one process does."""

    name: str
    run: Callable[[Journal], bool]
    """Returns whether all of it is over; else time was up, and another run goes on."""
    kernel: str | None = None
    """That which climbs no higher where the step shows something wrong; None for speeds."""
    tool: str | None = None
    """Of compute-sanitizer, under which it runs."""


def _climb(kernel: Kernel, rung: str, processors: int | None = None) -> Callable[[Journal], bool]:
    def run(journal: Journal) -> bool:
        cases = kernel.cases(processors or _processors(journal), journal.dry).get(rung, ())
        over = lambda case: journal.has("over", step=journal.part, case=kernel.label(case))
        for some in batched([case for case in cases if not over(case)], kernel.together):
            if journal.left < CASE_SECONDS + 3 * (len(some) - 1):
                return False
            labels = [*map(kernel.label, some)]
            journal.begin(", ".join(labels))
            kernel.check(journal, some)
            for label in labels:
                journal.add("over", step=journal.part, case=label)
        return True

    return run


def _launch(kernel: Kernel, launches: int = LAUNCHES, processors: int | None = None) -> Callable[[Journal], bool]:
    """Thousands of launches of one case of each sort: a race that is rare shows as other bits."""

    def run(journal: Journal) -> bool:
        rungs = kernel.cases(processors or _processors(journal), journal.dry)
        rung = list(rungs)[min(2, len(rungs) - 1)]
        checked = [row for row in journal.earlier if row["part"] == f"{kernel.name}, {rung}"]
        refused = {row["case"] for row in checked if "refused" in row}
        cases = launched(kernel, [case for case in rungs[rung] if kernel.label(case) not in refused])
        for case in cases:
            if journal.has("launches", kernel=kernel.name, case=kernel.label(case)):
                continue
            if journal.left < CASE_SECONDS:
                return False
            _launch_case(journal, kernel, case, 3 if journal.dry else launches // len(cases))
        return True

    return run


def launched(kernel: Kernel, cases: Sequence[Any]) -> list[Any]:
    """Of these cases, the last of each sort."""
    return [*{kernel.sort(case): case for case in cases}.values()]


def _launch_case(journal: Journal, kernel: Kernel, case: Any, launches: int) -> None:
    what = f"{launches} launches of {kernel.label(case)}"
    journal.compiling(what)
    launch, names = kernel.repeat(case, journal.dry)
    journal.begin(what)
    first = launch()
    total = [jax.numpy.int32(0)] * len(names)
    for _ in range(launches - 1):
        total = [a + b for a, b in zip(total, differing(first, launch()), strict=True)]
    found = {name: int(count) for name, count in zip(names, total, strict=True)}
    differed = {name: count for name, count in found.items() if count and name not in kernel.varies}
    journal.add(
        "launches", kernel=kernel.name, case=kernel.label(case), launches=launches, passed=not differed,
        differed=differed, varies=list(kernel.varies),
    )  # fmt: skip


def _sanitize(kernel: Kernel, tool: str) -> Callable[[Journal], bool]:
    """The cases of one tile under compute-sanitizer, which watches accesses to shared memory, or barriers, of the
    kernel's own launches: hazards of cuBLAS, or of what it is compared with, say nothing of it."""

    def run(journal: Journal) -> bool:
        row = {"kernel": kernel.name, "tool": tool}
        program = sanitizer.found_at()
        if program is None:
            why = f"{sanitizer.PROGRAM} is not installed: it is neither on PATH nor in $CUDA_HOME/bin"
            journal.add("sanitizer", **row, skipped=why)
            return True
        journal.begin(f"{tool} of {RUNGS[0]}")
        step = [sys.executable, "-m", "benchmarks.gpu", "--bring-up", "--step", f"{kernel.name}, {RUNGS[0]}"]
        found = sanitizer.sanitized(program, tool, kernel.launches, [*step, "--seconds", str(journal.left)])
        journal.add("sanitizer", **row, **found)
        return True

    return run


def _measure(measure: Callable[[Journal], None]) -> Callable[[Journal], bool]:
    def run(journal: Journal) -> bool:
        measure(journal)
        return not any(row["kind"] == "skipped" and "time budget" in row["why"] for row in journal.rows)

    return run


def _processors(journal: Journal) -> int:
    return 1 if journal.dry else jax.devices()[0].core_count


def _climbs(kernels: Sequence[Kernel]) -> tuple[Step, ...]:
    """What a record of these kernels waits for."""
    return (
        *(Step(f"{one.name}, {rung}", _climb(one, rung), one.name) for rung in RUNGS for one in kernels),
        *(Step(f"{one.name}, launches", _launch(one), one.name) for one in kernels),
    )


_OF_ATTENTION = [one for one in KERNELS if one.name.startswith("attention/")]
ATTENTION_SPEEDS = Step("speeds of attention", _measure(attention.measure))
STAGES = (
    _climbs(_OF_ATTENTION),
    (ATTENTION_SPEEDS,),
    _climbs([one for one in KERNELS if one not in _OF_ATTENTION]),
    (
        Step("speeds of grouped matmuls", _measure(grouped.measure)),
        Step("speeds of matmuls of FP8 tiles", _measure(partial(tiled.measure, kernels=(tiled.DENSE,)))),
        Step("speeds of grouped matmuls of FP8 tiles", _measure(partial(tiled.measure, kernels=(tiled.GROUPED,)))),
        Step("speeds of linear attention", _measure(linear_attention.measure)),
    ),
    tuple(
        Step(f"{one.name}, {tool}", _sanitize(one, tool), one.name, tool) for one in KERNELS for tool in sanitizer.TOOLS
    ),
)


def step(name: str) -> Step:
    """The step called `name`."""
    (found,) = (one for stage in STAGES for one in stage if one.name == name)
    return found


def is_over(step: Step, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the whole step is in the journal."""
    return any(row["kind"] == "step" and row["what"] == step.name for row in rows)


def is_left(step: Step, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run has this step to do."""
    return not is_over(step, rows) and (step.kernel is None or trouble(step.kernel, rows) is None)


def refused(kernel: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why no case of a kernel in these rows could be tried on this GPU; None where one was, or there is none."""
    cases = [row for row in rows if row["kind"] == "check" and row["kernel"] == kernel]
    return cases[0]["refused"] if cases and all("refused" in row for row in cases) else None


def trouble(kernel: str, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first row that shows something wrong with a kernel; None while all is right.

    Results at an earlier rung mean nothing for a higher one where something is wrong, and a hang costs minutes: the
    kernel climbs no higher.
    """
    wrong = lambda row: row.get("passed") is False or "failed" in row or row["kind"] in ("hang", "crash")
    return next((row for row in rows if row.get("kernel") == kernel and wrong(row)), None)
