"""`explain` and `compare`: print one plan.json in words, or two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.config.kinds import of_kind
from jaxpar.config.reading.sections import config_difference
from jaxpar.config.spelling import printable
from jaxpar.layout.plan_file import PlanFile, read
from jaxpar.planner.report import words
from jaxpar.planner.report.text import print_parts
from jaxpar.units import percent, plural, seconds, size


def print_explanation(path: Path, console: Console) -> None:
    """Print a `plan.json` in words. Raises `UserError` where the file is not one."""
    file = read(path)
    plan, numbers = file.plan, file.predicted
    order = numbers.get("node_order")
    mesh = " x ".join(f"{axis} {n}" for axis, n in dict(plan.axes).items() if n > 1) or "one device"
    _print(console, f"{path}: {file.config.run.name} on {file.cluster or 'the local devices'}", "bold")
    lines = [
        ("mesh", mesh),
        (
            "batch",
            f"{plural(plan.axes.data, 'data rank')} x {plural(plan.microbatch_rows, 'row')} x "
            f"{plural(plan.microbatches, 'microbatch')}",
        ),
        (
            "schedule",
            f"{plan.schedule}, {plural(plan.virtual_stages, 'chunk')} a rank, each of "
            f"{_layers(plan.stage_layers)} layers",
        ),
        *[("stages", line) for line in _stages(file)],
        *([("nodes", f"start processes on them in this order: {' '.join(map(str, order))}")] if order else []),
        ("ZeRO", f"stage {plan.zero}"),
        *[(f"attention{of_kind(kind)}", f"{choice.name}: {choice.reason}") for kind, choice in plan.attention.items()],
        ("context", f"{plan.context_strategy.name}: {plan.context_strategy.reason}"),
        *[("experts", line) for line in words.exchanges(plan, file.config.parallel)],
        *[(plural(run.layers, "layer"), words.activations(run.activations)) for run in plan.runs],
    ]
    if numbers:
        rate = f"{seconds(numbers['step_time_s'])} a step, {numbers['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU"
        lines.append(("predicted", f"{rate}, MFU {percent(numbers['mfu'])}, {size(numbers['peak_bytes'])} of a GPU"))
        if within := numbers.get("interval_s"):
            lines.append(("80%", " to ".join(map(seconds, within))))
    for name, text in lines:
        _print(console, f"  {name:<11}{text}")
    _print_parts(file, console)


def _print(console: Console, text: str, style: str = "") -> None:
    """Print a line with texts of a file: nothing in them is markup, and no control character reaches the screen."""
    console.print(Text(printable(text), style=style), soft_wrap=True)


def _layers(lengths: Sequence[int]) -> str:
    least, most = min(lengths), max(lengths)
    return f"{most}" if least == most else f"{least} to {most}"


def _stages(file: PlanFile) -> list[str]:
    """Which hosts hold which stages, where they are of several kinds."""
    return [
        f"from {stage['first']} on {stage['group']} ({stage['gpu']}), {_layers(stage['layers'])} layers each"
        for stage in file.predicted.get("stages", [])
    ]


def _print_parts(file: PlanFile, console: Console) -> None:
    numbers = file.predicted
    if "breakdown" in numbers:
        print_parts(numbers["breakdown"], numbers["step_time_s"], console)


def print_comparison(first: Path, second: Path, console: Console) -> None:
    """Two plans side by side: what differs in their settings, time and memory. Raises `UserError`."""
    a, b = read(first), read(second)
    console.print("Settings", style="bold")
    for line in config_difference(a.config, b.config) or ["no difference"]:
        _print(console, f"  {line}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("", printable(str(first)), printable(str(second)), "difference"):
        table.add_column(name, justify="left" if not name else "right")

    def row(name: str, one: float, other: float, show: object) -> None:
        if one or other:
            table.add_row(name, show(one), show(other), show(other - one))  # type: ignore[operator]

    if not (a.predicted and b.predicted):
        return
    for total, parts, name, show in (
        ("step_time_s", "breakdown", "step", seconds),
        ("peak_bytes", "memory", "memory", size),
    ):
        row(name, a.predicted[total], b.predicted[total], show)
        intervals = [" to ".join(map(seconds, file.predicted.get("interval_s") or ())) for file in (a, b)]
        if name == "step" and any(intervals):
            table.add_row("  80%", *intervals, "")
        one, other = a.predicted[parts], b.predicted[parts]
        for part in dict.fromkeys((*one, *other)):
            row(f"  {printable(part)}", one.get(part, 0), other.get(part, 0), show)
    console.print(table)
