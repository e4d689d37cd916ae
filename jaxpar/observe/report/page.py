"""The page: key figures, then curves, then everything else that a run recorded."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import check_regular
from jaxpar.config.spelling import named, quoted
from jaxpar.observe.report import sections
from jaxpar.observe.report.curves import MOST_POINTS, is_thinned, page_data
from jaxpar.observe.report.figures import FIGURES, figure_rows, gain, last_evaluation
from jaxpar.observe.report.load_map import load_maps
from jaxpar.observe.report.run_record import RunRecord
from jaxpar.observe.report.sweep import sweep_table
from jaxpar.observe.report.tasks import tasks
from jaxpar.pages.palette import series
from jaxpar.pages.render import GENERATOR, Table, page
from jaxpar.pages.units import plural
from jaxpar.remote.store import listed, read

_CARDS = {
    "training loss, last": "training loss",
    "validation loss, last": "validation loss",
    "baseline less validation loss": "below the baseline",
    "tokens": "tokens",
    "time of a step, median": "a step, median",
    "tokens per second, median": "tokens per second",
    "model FLOPs utilisation of the 16-bit peak, median": "model FLOPs utilisation",
    "memory, peak": "memory, peak",
}
"""Figures on the cards of a single run, and their names there."""
PAIR = 2
"""Runs that are compared number by number; more are a sweep, with a line each."""
MOST_IN_TITLE = 4
BEGINNING = 1000
"""Bytes in which a page of jaxpar says what it is."""
OCCUPIED = "the file is there and is not a page of jaxpar; choose another name"


def html_page(runs: list[RunRecord]) -> str:
    """The page of one run, of two side by side, or of the many of a sweep."""
    now = datetime.now(UTC)
    several, is_sweep = len(runs) > 1, len(runs) > PAIR
    sweep, sweep_note = sweep_table(runs, now) if is_sweep else (None, "")
    return page(
        "observe/report/page.html",
        _title(runs),
        styles=["observe/report/page.css"],
        scripts=["pages/table.js", "observe/report/page.js"],
        data={"report": page_data(runs)},
        colors=series(max(len(runs), PAIR)),
        several=several,
        few=not is_sweep,
        headlines=[] if is_sweep else [(run.label, _headline(run, now), " <- ".join(run.came_from)) for run in runs],
        notes=[f"{run.label}: {note}" if several else note for run in runs for note in run.notes],
        sweep=sweep,
        sweep_note=sweep_note,
        cards=_card_figures(runs[0]),
        difference=sections.configuration_difference(runs) if len(runs) == PAIR else "",
        has_curves=any(run.metrics for run in runs),
        thinned=MOST_POINTS if any(map(is_thinned, runs)) else 0,
        load_maps={} if is_sweep else load_maps(runs),
        plan=sections.plan(runs),
        memory=sections.memory(runs),
        on_host=sections.measured_on_host(runs),
        timing=sections.timing(runs),
        continued=max(sum(event["event"] == "start" for event in run.events) for run in runs) > 1,
        numbers=[("", _numbers(runs))],
        evaluations=tasks(runs),
        environment=sections.environment(runs),
        events=sections.events(runs),
        samples=sections.samples(runs),
        configuration=sections.configurations(runs),
        now=f"{now:%Y-%m-%d %H:%M}",
    )


def _title(runs: list[RunRecord]) -> str:
    if len(runs) > MOST_IN_TITLE:
        return f"{len(runs)} runs: {runs[0].label} to {runs[-1].label}"
    return " and ".join(run.label for run in runs)


def _headline(run: RunRecord, now: datetime) -> str:
    """Model, devices and progress of a run."""
    parts = [sections.state(run, now)]
    if run.config is not None:
        model = run.config.model
        shape = f"{plural(model.layers, 'layer')}, width {model.embed}"
        parts.append(f"{shape}, {_parameters(run)}{run.config.optimizer.name}")
    mesh = next((f"{value} on {why}" for name, value, why in sections.logged_plan(run) if name == "mesh"), None)
    return " · ".join([*parts, *([mesh] if mesh else [])])


def _parameters(run: RunRecord) -> str:
    """The number of parameters that the run logged: counting them here would need JAX."""
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
        if figure.name.startswith(("validation", "baseline")) and (step := last_evaluation(run)) is not None:
            name = f"{name}, step {step:.0f}"
        shown.append((figure.words(value), name))
    return shown


def _numbers(runs: list[RunRecord]) -> Table:
    heads = ("", *(run.label for run in runs), *(["difference"] if len(runs) == PAIR else [])) if runs[1:] else ("", "")
    return Table(heads, figure_rows(runs), numbers=range(1, len(heads)))


def check_page(file: Path) -> None:
    """Raises `UserError` where `page` is something that must not be overwritten."""
    try:
        if file.is_dir():
            raise UserError(f"--out {named(file)}: a folder, expected the name of a file")
        if file.exists() and GENERATOR.encode() not in _beginning(file):
            raise UserError(f"--out {named(file)}: {OCCUPIED}")
        if not file.parent.is_dir():
            raise UserError(f"--out {named(file)}: the folder {file.parent} does not exist")
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"--out {named(file)}: cannot be read ({getattr(error, 'strerror', error)})") from error


def check_stored_page(url: str) -> None:
    """Checks a URL as `check_page` does. Raises `StoreError` where the store refuses."""
    there = [file.size for file in listed(url).values()]
    if there and not (len(there) == 1 and there[0] and GENERATOR.encode() in (read(url, BEGINNING) or b"")):
        raise UserError(f"--out {quoted(url)}: {OCCUPIED}")


def _beginning(file: Path) -> bytes:
    check_regular(file, f"--out {named(file)}")
    with file.open("rb") as opened:
        return opened.read(BEGINNING)
