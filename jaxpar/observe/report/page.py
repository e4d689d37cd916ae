"""The page: key figures, then curves, then everything else that a run recorded."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path

from jaxpar.observe.html import cards, document, notes, table
from jaxpar.observe.report import sections
from jaxpar.observe.report.curves import MOST_POINTS, is_thinned, page_data
from jaxpar.observe.report.figures import FIGURES, figure_rows, gain, last_evaluation
from jaxpar.observe.report.run_record import RunRecord

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")

_CARDS = {
    "training loss, last": "training loss",
    "held-out loss, last": "held-out loss",
    "baseline less held-out loss": "below the baseline",
    "tokens": "tokens",
    "time of a step, median": "a step, median",
    "tokens per second, median": "tokens per second",
    "model FLOPs utilisation, median": "model FLOPs utilisation",
    "memory, peak": "memory, peak",
}
"""Figures on the cards of a single run, and their names there."""

_TOOLBAR = """
<div class="toolbar">
<label>x axis <select id="x-axis"><option value="steps">steps</option><option value="tokens">tokens</option>
<option value="time">time in steps</option></select></label>
<label>smoothing <input type="range" id="smoothing" min="0" max="0.98" step="0.02" value="0"><output>off</output>
</label>
<button type="button" id="log-all" aria-pressed="false">log scale</button>
<button type="button" id="whole" hidden>whole run</button>
<span class="dim hint">drag to look closer</span>
</div>
<div id="charts"></div><noscript><p class="note">The curves are drawn by a script in this page, which is off here.</p>
</noscript>
"""


def html_page(runs: list[RunRecord]) -> str:
    """The page of one run, or of two side by side."""
    now = datetime.now(UTC)
    title = " and ".join(run.label for run in runs)
    body = [f"<h1>{escape(title)}</h1>", *(_headline(run, index, len(runs), now) for index, run in enumerate(runs))]
    for run in runs:
        whose = f"{run.label}: " if len(runs) > 1 else ""
        body.append(notes(f"{whose}{note}" for note in run.notes))
    body.append(_comparison(runs) if len(runs) > 1 else cards(_card_figures(runs[0])))
    body.append(_curves(runs))
    body += [
        sections.section("plan", "Plan", sections.plan(runs)),
        sections.section("memory", "Memory: predicted and measured", sections.memory(runs)),
        sections.section("timing", f"Time{_since(runs)}", sections.timing(runs)),
        "" if len(runs) > 1 else _numbers(runs, ("", "")),
        sections.section("environment", "Environment", sections.environment(runs)),
        sections.section("events", "Events", sections.events(runs)),
        sections.section("samples", "Sample", sections.samples(runs)),
        sections.section("configuration", "Configuration", sections.configurations(runs), opened=False),
        f"<p class='dim foot'>Made by python -m jaxpar.report on {now:%Y-%m-%d %H:%M} UTC.</p>",
    ]
    return document(
        title, "".join(body), style=_STYLE.read_text(), script=_SCRIPT.read_text(), data={"report": page_data(runs)}
    )


def _headline(run: RunRecord, index: int, runs: int, now: datetime) -> str:
    """What was trained, where, and its progress."""
    name = f'<i class="swatch run{index}"></i><b>{escape(run.label)}</b> ' if runs > 1 else ""
    parts = [sections.state(run, now)]
    if run.config is not None:
        model = run.config.model
        parts.append(f"{model.layers} layers, width {model.embed}, {_parameters(run)}{run.config.optimizer.name}")
    mesh = next((f"{value} on {why}" for name, value, why in sections.logged_plan(run) if name == "mesh"), None)
    return f"<p class='dim'>{name}{escape(' · '.join([*parts, *([mesh] if mesh else [])]))}</p>"


def _parameters(run: RunRecord) -> str:
    """As the run counted them: counting them here would need JAX."""
    logged = next((value for name, value, _ in sections.logged_plan(run) if name == "parameters"), None)
    return "" if logged is None else f"{logged} parameters, "


def _card_figures(run: RunRecord) -> list[tuple[str, str]]:
    shown = []
    for figure in FIGURES:
        value = figure.value(run) if figure.name in _CARDS else None
        if value is None:
            continue
        name = _CARDS[figure.name]
        if figure.value is gain and value < 0:
            value, name = -value, "above the baseline"
        if figure.name.startswith(("held-out", "baseline")) and (step := last_evaluation(run)) is not None:
            name = f"{name}, step {step:.0f}"
        shown.append((figure.words(value), name))
    return shown


def _comparison(runs: list[RunRecord]) -> str:
    difference = sections.configuration_difference(runs)
    return _numbers(runs, ("", *(run.label for run in runs), "difference")) + sections.section(
        "difference", "What differs in the configuration", difference
    )


def _since(runs: list[RunRecord]) -> str:
    """The times of a run that was continued are those of its last process."""
    starts = [sum(event["event"] == "start" for event in run.events) for run in runs]
    return " since the last start" if max(starts) > 1 else ""


def _numbers(runs: list[RunRecord], heads: tuple[str, ...]) -> str:
    return sections.section("figures", "Numbers", table(heads, figure_rows(runs), numbers=range(1, len(heads))))


def _curves(runs: list[RunRecord]) -> str:
    if not any(run.metrics for run in runs):
        return "<h2>Curves</h2><p>No step was logged.</p>"
    thinned = ""
    if any(is_thinned(run) for run in runs):
        thinned = (
            f"<p class='dim'>A curve has at most {MOST_POINTS} points here: of each stretch the least and the greatest."
            " metrics.jsonl has them all.</p>"
        )
    return f"<h2>Curves</h2>{_TOOLBAR}{thinned}"
