"""The page, read as text; `test_in_browser.py` looks at it."""

import html
import json
import re
from pathlib import Path

import pytest

from jaxpar.observe.report import sections
from jaxpar.observe.report.figures import figure_rows
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from tests.observe.report.written_runs import BASELINE, loss_at, write_run


def page_of(*folders: Path) -> str:
    return html_page(read_runs(list(folders)))


def words(page: str) -> str:
    """The page without its script, style and tags."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", "\n", body))


def test_the_page_has_every_part_of_a_run(tmp_path: Path) -> None:
    reported = words(page_of(write_run(tmp_path / "first")))
    for part in (
        "trained to step 60 of 60", f"{loss_at(60):.4f}", f"{loss_at(60) + 0.1:.4f}", "246k",
        "fsdp 2, tensor 2", "not cudnn: it needs <an NVIDIA GPU> & the platform is cpu",
        "predicted per device", "88.0 MiB", "peak of host memory in the process", "3.0 GiB", "not to be compared",
        "compilation", "4.50 s", "host's own part of it", "2.0%",
        "packages: jax", "Compiled in 4.5 s; the step needs 87.9 MiB per device.", "saved checkpoints/00000040",
        "came to its end", "information </script><b>", "optimizer.weight_decay",
    ):  # fmt: skip
        assert part in reported, part


def test_the_samples_that_came_together_last_are_shown(tmp_path: Path) -> None:
    """A run that evaluates by drawing answers has some after each evaluation."""
    folder = write_run(tmp_path / "run")
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines()
    at = next(index for index, line in enumerate(lines) if '"sample"' in line)
    said = lambda text: json.dumps(json.loads(lines[at]) | {"continuation": text})
    lines[at : at + 1] = [said("first answer"), lines[0], said("second answer"), said("third answer")]
    file.write_text("\n".join(lines) + "\n")
    samples = [text for _, _, text in sections.samples(read_runs([folder]))]
    assert samples == ["second answer", "third answer"]


def test_a_run_shows_the_models_from_which_it_came(tmp_path: Path) -> None:
    stages = write_run(tmp_path / "third", came_from=("runs/second (step 40)", "runs/<first> (step 9)", "models/llama"))
    earlier = write_run(tmp_path / "earlier", init_from="models/qwen")
    drawn = write_run(tmp_path / "drawn")
    chain = "came from: runs/second (step 40) <- runs/<first> (step 9) <- models/llama"
    assert chain in words(page_of(stages))
    assert "came from: models/qwen" in words(page_of(earlier)), "a run of a release that did not log it"
    assert "came from" not in words(page_of(drawn))
    two = words(page_of(stages, drawn))
    assert two.count("came from") == 1 and chain in two


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", optimizer="muon", floor=2.0, steps=40)])
    rows = {row[0]: row[1:] for row in figure_rows(runs)}
    first, second = loss_at(60), loss_at(40, 2.0)
    change = second - first
    assert rows["training loss, last"][:2] == (f"{first:.4f}", f"{second:.4f}")
    assert rows["training loss, last"][2] == f"{change:+.4f} ({100 * change / first:+.1f}%)"
    assert rows["baseline"] == (f"{BASELINE:.4f}", f"{BASELINE:.4f}", "the same")
    assert rows["steps"][2] == "-20 (-33.3%)"
    reported = words(html_page(runs))
    difference = reported[reported.index("What differs in the configuration") : reported.index("Curves")].split()
    assert difference[-8:] == ["a", "b", "run.steps", "60", "40", "optimizer.name", "adamw", "muon"]


def test_a_validation_loss_of_an_earlier_step_has_its_step_beside_it(tmp_path: Path) -> None:
    current, behind = write_run(tmp_path / "current"), write_run(tmp_path / "behind", until=46)
    assert "step of the last validation loss" not in words(page_of(current))
    page = words(page_of(behind))
    assert "validation loss, step 40" in page and "above the baseline, step 40" in page
    (rows,) = [{row[0]: row[1:] for row in figure_rows(read_runs([behind]))}]
    assert rows["step of the last validation loss"] == ("40",)


def test_mixtures_that_differ_are_reported_source_by_source(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", sources={"web": 1.0, "code": 3.0})
    second, third = write_run(tmp_path / "b", sources={"web": 1.0, "books": 2.0}), write_run(tmp_path / "c")

    def difference(*folders: Path) -> list[str]:
        reported = words(page_of(*folders))
        return reported[reported.index("What differs in the configuration") : reported.index("Curves")].split()

    assert difference(first, second)[-7:] == ["key", "a", "b", "data.sources.code", "3.0", "data.sources.books", "2.0"]
    assert {"data.sources", "data.sources.web"} <= set(difference(third, first))
    assert "The two runs have the same configuration." in words(page_of(third, write_run(tmp_path / "d")))


def test_a_number_that_one_run_lacks_is_left_empty(tmp_path: Path) -> None:
    rows = figure_rows(read_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", until=20)]))
    assert ("compilation", "4.50 s", "", "") in rows
    assert all(row[0] != "model FLOPs utilisation of the 16-bit peak, median" for row in rows)


def test_a_loss_above_the_baseline_is_not_called_below_it(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", floor=3.0))
    assert f"<b>{loss_at(60, 3.0) + 0.1 - BASELINE:.4f}</b><span>above the baseline</span>" in page


def test_nothing_in_a_run_can_break_the_page_and_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "<b>&'\"run"))
    assert "<b>&'" not in page and "information </script>" not in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0
    assert not re.search(r"<(img|link|script)[^>]+(src|href)=[\"'](?!data:)", page)


def test_a_run_without_steps_has_a_page(tmp_path: Path) -> None:
    assert "No step was logged." in words(page_of(write_run(tmp_path / "run", until=0)))


def test_a_run_that_failed_is_reported_as_failed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=20)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"time": "2026-01-01T00:00:00+00:00", "event": "close", "step": 20, "ended": false}\n')
    reported = words(page_of(folder))
    assert "failed after step 20 of 60" in reported


def test_what_was_noticed_is_reported_and_marked(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", epochs={"code": 0.25, "<books>": 1.5}, data_wait=0.125)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "anomaly", "step": 14, "kind": "loss_spike", "text": "Loss spike at step 14: 5.3."}\n')
        file.write('{"event": "rewound", "step": 14, "to": 12}\n')
    page = page_of(folder)
    reported = words(page)
    assert "Loss spike at step 14: 5.3." in reported and "went back to the checkpoint of step 12" in reported
    assert '"anomalies":[[14,"Loss spike at step 14: 5.3."]]' in page and "Devices waiting for data" in page
    numbers = " ".join(reported[reported.index("Numbers") : reported.index("Environment")].split())
    assert "epochs of code 0.25" in numbers and "epochs of <books> 1.5" in numbers
    assert "Devices waiting" not in page_of(write_run(tmp_path / "other", data_wait=0.0))


def test_the_learning_rate_of_muons_matrices_is_a_chart_of_its_own(tmp_path: Path) -> None:
    title = "Learning rate of the layers\\u0027 matrices"
    assert title not in page_of(write_run(tmp_path / "adamw"))
    assert title in page_of(write_run(tmp_path / "muon", optimizer="muon", matrix_learning_rate=2e-2))


def test_many_events_are_cut_in_the_middle(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=2)
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(f'{{"event": "message", "step": {n}, "text": "reported {n}."}}\n' for n in range(2000))
    reported = words(page_of(folder))
    assert "events between are left out" in reported
    assert "reported 0." in reported and "reported 1999." in reported and "reported 1000." not in reported


@pytest.mark.long
def test_a_run_of_200_000_rows_has_a_page_of_a_usual_size(tmp_path: Path) -> None:
    usual = write_run(tmp_path / "usual", until=40)
    folder = write_run(tmp_path / "run", until=2)
    [line] = (folder / "metrics.jsonl").read_text().splitlines()[-1:]
    row = json.loads(line)
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(line.replace(f'"step": {row["step"]},', f'"step": {n},') + "\n" for n in range(1, 200_001))
    page = page_of(folder)
    assert "200,000" in words(page) and len(page) < len(page_of(usual)) + 2**20
