"""A run is reported from its folder, whatever state its files are in."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jaxpar.config import UserError
from jaxpar.config.plan import PLAN_VERSION
from jaxpar.observe.evaluations import EVALUATIONS_FILE, append_evaluation
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from tests.observe.report.written_runs import BASELINE, write_run

FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "plan.json", "environment.json", "summary.json")


def notes(folder: Path) -> str:
    [run] = read_runs([folder])
    assert html_page([run]).endswith("</html>\n")
    return " | ".join(run.notes)


def test_a_whole_run_has_nothing_missing(tmp_path: Path) -> None:
    [run] = read_runs([write_run(tmp_path / "whole")])
    assert run.notes == []
    assert (run.label, run.last_step, len(run.metrics), run.baseline) == ("whole", 60, 30, BASELINE)


def test_a_run_that_goes_on_is_reported_up_to_its_last_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=30)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 32, "lo')
    [run] = read_runs([folder])
    assert run.notes == [], "an unfinished line and no summary are what a run looks like while it goes on"
    assert (run.last_step, run.baseline) == (30, BASELINE)
    assert "at step 30 of 60, still running or killed" in html_page([run])


@pytest.mark.parametrize(
    ("plan", "shown", "note"),
    [
        ({"version": PLAN_VERSION, "plan": {"zero": 3}, "config": {}}, {"zero": 3}, ""),
        ({"version": PLAN_VERSION + 1, "plan": {"zero": 3}}, {}, f"plan.json: version {PLAN_VERSION + 1} of plan.json"),
        ({"version": PLAN_VERSION, "plan": 3}, {}, "plan.json is damaged: it has no plan."),
    ],
    ids=["of this version", "of another version", "damaged"],
)
def test_of_the_plan_what_can_be_read_is_shown(tmp_path: Path, plan: object, shown: object, note: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "plan.json").write_text(json.dumps(plan))
    [run] = read_runs([folder])
    assert run.plan == shown
    assert notes(folder).startswith(note)
    assert bool(run.notes) == bool(note)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_unless_the_run_just_has_not_ended(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).unlink()
    expected = {"summary.json": "", "environment.json": ""}
    assert notes(folder).startswith(expected.get(name, f"{name} is missing"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{", b"[1, 2]\n", b"[" * 100_000 + b"\n", b'{"step": NaN}{\n'])
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_bytes(content)
    reported = notes(folder)
    unfinished = name.endswith("jsonl") and not content.endswith(b"\n")
    assert (name in reported) is not unfinished
    assert "Traceback" not in reported and "\n" not in reported


def test_a_damaged_line_is_counted_and_the_others_are_used(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[3] = lines[3][:20]
    lines[7] = "null"
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    [run] = read_runs([folder])
    assert run.notes == ["metrics.jsonl is damaged: line 4 and 1 more cannot be read and is left out."]
    assert len(run.metrics) == 28


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("events.jsonl", "summary.json"):
        (folder / name).unlink()
    os.mkfifo(folder / "events.jsonl")
    (folder / "summary.json").mkdir()
    assert notes(folder) == "summary.json is not a file. | events.jsonl is not a file."


def test_runs_of_one_name_are_called_by_their_paths_and_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / parent / "run", steps=4) for parent in "ab"]
    assert [run.label for run in read_runs(folders)] == [str(folder) for folder in folders]
    with pytest.raises(UserError, match="given twice"):
        read_runs([folders[0], tmp_path / "a" / "." / "run"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "whole", steps=6)
    results = {"kind": "perplexity", "examples": 3, "metrics": {"perplexity": [3.5, 0.5]}}
    append_evaluation(folder, {"time": "2026-01-01T00:00:00+00:00", "step": 6, "tasks": {"a": results}})
    return folder


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_any_content_gives_a_page(whole: Path, data: st.DataObject) -> None:
    folder = whole.with_name("fuzzed")
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    for name in data.draw(st.sets(st.sampled_from((*FILES[1:], EVALUATIONS_FILE)), min_size=1)):
        file = folder / name
        match data.draw(st.sampled_from(["value", "bytes", "cut"])):
            case "value":  # one value of each object is another
                lines = [json.loads(line) for line in file.read_text().splitlines()] if "jsonl" in name else None
                objects = lines if lines is not None else [json.loads(file.read_text())]
                for values in objects:
                    values[chance.choice(sorted(values))] = data.draw(JSON)
                file.write_text("".join(json.dumps(values) + "\n" for values in objects))
            case "bytes":
                content = bytearray(file.read_bytes())
                for _ in range(5):
                    content[chance.randrange(len(content))] = chance.randrange(256)
                file.write_bytes(content)
            case _:
                content = file.read_bytes()
                file.write_bytes(content[: chance.randrange(len(content))])
    page = html_page(read_runs([folder])).encode(errors="replace")
    assert page.endswith(b"</html>\n")
    embedded = page.split(b'id="report">')[1].split(b"</script>")[0]
    json.loads(embedded, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
