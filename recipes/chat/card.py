"""The report card: scores and answers by stage, curves, time, and what the recipe would take on eight H100s."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from jaxpar.observe.report.curves import page_data
from jaxpar.observe.report.figures import last, tokens
from jaxpar.observe.report.run_record import RunRecord, number
from jaxpar.observe.report.tasks import tasks
from jaxpar.pages.palette import series
from jaxpar.pages.render import Table, page, template
from jaxpar.pages.units import clock, count, seconds, size
from recipes.chat.stages import FOLDER, HERE, QUESTIONS, RUNS, STAGES, Run, answers, record

CLUSTER = "h100:1x8"
GPUS = 8
CARD = FOLDER / "card.html"
TIMES = FOLDER / "seconds.jsonl"
"""Seconds of stages, a line for each time that one ran."""


def write_card(run: Run, price: float) -> int:
    """Write `CARD` from what the stages left; `price` is dollars for an hour of a GPU. Returns an exit code."""
    for name in RUNS:
        words = ["--config", str(HERE / "h100" / f"{name}.yaml"), "--cluster", CLUSTER, "--top", "1", "--json"]
        if code := run(["jaxpar.plan", *words, "--no-verify", "--out", str(FOLDER / f"plan-{name}.json")], _plan(name)):
            return code
    records = [known for name in RUNS if (known := record(name)) is not None]
    curves = page_data(records)
    for one in cast("list[dict[str, Any]]", curves["runs"]):
        if "metrics.reward" in one["series"]:  # its loss says nothing beside the others'
            one["series"] = {
                name: points for name, points in one["series"].items() if name not in ("loss", "eval_loss")
            }
    text = page(
        template((HERE / "card.html").read_text()),
        "Report card",
        styles=["observe/report/page.css"],
        scripts=["pages/table.js", "observe/report/page.js"],
        data={"report": curves},
        colors=series(len(records)),
        stages=_stages({one.label: one for one in records}),
        scores=tasks(records),
        questions=[
            (question, [(name, answers(name)[index]) for name in RUNS]) for index, question in enumerate(QUESTIONS)
        ],
        cluster=_cluster(price),
        price=f"{price:g}",
        total=clock(sum(spent().values())),
    )
    CARD.write_text(text)
    return 0


def spent() -> dict[str, float]:
    """Seconds of each stage, over all times that it ran."""
    total: dict[str, float] = {}
    for line in TIMES.read_text().splitlines() if TIMES.is_file() else ():
        if line.endswith("}"):  # a kill may have cut it
            one = json.loads(line)
            total[one["stage"]] = total.get(one["stage"], 0.0) + one["seconds"]
    return total


def _stages(records: Mapping[str, RunRecord]) -> Table:
    rows = []
    for stage in STAGES:
        known = records.get(stage.name)
        values = (None, None, None)
        if known is not None:
            loss = None if last("metrics.reward")(known) is not None else last("eval_loss")(known)
            values = known.last_step, tokens(known), loss
        formats = ("{:,}".format, count, "{:.3f}".format)
        texts = ["" if value is None else words(value) for words, value in zip(formats, values, strict=True)]
        rows.append([stage.name, stage.title, *texts, clock(spent().get(stage.name, 0))])
    heads = ("stage", "the model learns to", "steps", "tokens", "validation loss, nats a token", "time")
    return Table(heads, rows, numbers=range(2, 6))


def _plan(name: str) -> Path:
    """The file of what `jaxpar.plan` printed of a stage."""
    return FOLDER / f"predicted-{name}.json"


def _cluster(price: float) -> Table:
    """Predicted time, memory and cost of each stage on `CLUSTER`."""
    rows, total = [], 0.0
    for name in RUNS:
        (best,) = json.loads(_plan(name).read_text())
        predicted, steps = best["predicted"], best["config"]["run"]["steps"]
        drawn = predicted.get("answers")
        step = drawn[0]["seconds"] if drawn else number(predicted, "step_time_s")
        memory = max(float(predicted["peak_bytes"]), float(drawn[0]["drawing_bytes"]) if drawn else 0.0)
        assert step is not None
        total += steps * step
        cost = f"${GPUS * steps * step / 3600 * price:,.0f}"
        rows.append([name, f"{steps:,}", seconds(step), clock(steps * step), size(memory), cost])
    rows.append(["all", "", "", clock(total), "", f"${GPUS * total / 3600 * price:,.0f}"])
    return Table(("stage", "steps", "a step", "time", "memory of a GPU", "cost"), rows, numbers=range(1, 6))
