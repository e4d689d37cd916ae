"""`explain`: a plan.json in words."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from jaxpar.compiler.report.screen import print_lines
from jaxpar.config.kinds import kind_clause
from jaxpar.layout.choices.reasons import choice_reasons
from jaxpar.layout.plan_file import PlanFile, read
from jaxpar.pages.units import percent, plural, seconds, size
from jaxpar.planner.report import words
from jaxpar.planner.search.stage_groups import number_words


def print_explanation(path: Path, console: Console) -> None:
    """Print a `plan.json` in words. Raises `UserError` where the file is not one."""
    file = read(path)
    lines = [f"{name:<11}{text}" for name, text in (*_settings(file), *_predicted(file))]
    if "breakdown" in file.predicted:
        lines += words.parts(file.predicted["breakdown"], file.predicted["step_time_s"])
    title = f"{path}: {file.config.run.name} on {file.cluster or 'the local devices'}"
    print_lines(console, *lines, title=title)


def _settings(file: PlanFile) -> list[tuple[str, str]]:
    plan, numbers = file.plan, file.predicted
    order = numbers.get("node_order")
    return [
        ("mesh", words.axes(plan.axes)),
        ("batch", words.batch(plan.axes.data, plan.microbatch_rows, plan.microbatches)),
        (
            "schedule",
            f"{plan.schedule}, {plural(plan.virtual_stages, 'chunk')} a rank, each of "
            f"{number_words(plan.stage_layers)} layers",
        ),
        *(
            (
                "stages",
                f"from {one['first']} on {one['group']} ({one['gpu']}), {number_words(one['layers'])} layers each",
            )
            for one in numbers.get("stages", [])
        ),
        *([("nodes", f"start processes on them in this order: {' '.join(map(str, order))}")] if order else []),
        ("ZeRO", f"stage {plan.zero}"),
        *(
            (f"attention{kind_clause(kind)}", f"{choice.name}: {choice.reason}")
            for kind, choice in plan.attention.items()
        ),
        *(
            (f"linear attention{kind_clause(kind)}", f"{choice.name}: {choice_reasons(choice)}")
            for kind, choice in plan.linear_attention.items()
        ),
        ("context", f"{plan.context_strategy.name}: {plan.context_strategy.reason}"),
        *([("states", f"{states.name}: {choice_reasons(states)}")] if (states := plan.state_messages).reason else []),
        *(("experts", line) for line in words.exchanges(plan, file.config.parallel)),
        *((plural(run.layers, "layer"), words.activations(run.activations)) for run in plan.runs),
    ]


def _predicted(file: PlanFile) -> list[tuple[str, str]]:
    numbers = file.predicted
    if not numbers:
        return []
    rate = f"{seconds(numbers['step_time_s'])} a step, {numbers['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU"
    lines = [("predicted", f"{rate}, MFU {percent(numbers['mfu'])}, {size(numbers['peak_bytes'])} of a GPU")]
    interval = numbers.get("interval_s")
    return [*lines, (words.INTERVAL, " to ".join(map(seconds, interval)))] if interval else lines
