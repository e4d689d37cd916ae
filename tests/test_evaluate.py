"""`python -m jaxpar.evaluate`: a table, a file, the report of a run, and one sentence for what it cannot do."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpar import evaluate
from jaxpar.evaluate import main
from jaxpar.evaluation import run_task
from jaxpar.evaluation.outcome import Metric, Outcome
from jaxpar.generation import placed_model
from jaxpar.interop.sources import tokenizer
from jaxpar.observe.evaluations import EVALUATIONS_FILE
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from jaxpar.training.run.trainer import Trainer
from tests.data.folders import decoded, prepared
from tests.interop.test_adapter import save_factors
from tests.sentences import refused_by_command
from tests.small_run import small
from tests.training.runs import run_config

GOLDENS = Path(__file__).parent / "goldens"
CHOICE, TOKENIZER = GOLDENS / "evaluation/choice.yaml", GOLDENS / "evaluation/marked/tokenizer.json"
MODEL = ["--model", str(GOLDENS / "llama")]


@pytest.mark.long
def test_results_of_a_run_are_printed_written_and_in_its_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    data = {"source": "stdlib", "batch_size": 8, "sequence_length": 32}
    config = run_config(tmp_path, 3, model={"vocab": None, "vocab_multiple": 16}, data=data, parallel={"fsdp": 8})
    Trainer(config).fit(())
    folder, text, out = tmp_path / config.run.name, tmp_path / "sample.txt", tmp_path / "results.json"
    text.write_text("import os\n\n\ndef path(name):\n    return os.path.join(name, 'x')\n" * 3)
    tokens = prepared(tmp_path / "tokens", [text.read_text(), "other " * 20])
    asked = ["--model", str(folder), "--tasks", str(text), "--out", str(out)]
    assert main([*asked, "--contamination", str(tokens.path)]) == 0
    shown = dict(re.findall(r"^sample +1 +(\w+) +([\d.-]+)", capfd.readouterr().out, re.MULTILINE))
    results = json.loads(out.read_text())
    metrics = results["tasks"]["sample"]["metrics"]
    assert shown == {name: f"{value:.4f}" for name, (value, _) in metrics.items()}
    assert (results["step"], results["length"], results["details"]["sample"][0]["bytes"]) == (
        3,
        32,
        len(text.read_bytes()),
    )
    assert metrics["contaminated"][0] == float(text.read_text() in decoded(tokens)[0])
    page = html_page(read_runs([folder]))
    assert f"{metrics['bits_per_byte'][0]:.4f} ± {metrics['bits_per_byte'][1]:.4f}" in page
    split = ["--set", "parallel.tensor=2", "--set", "parallel.context=4", "--json"]
    assert main([*asked, *split]) == 0
    again = json.loads(capfd.readouterr().out)["tasks"]["sample"]["metrics"]
    assert again["nats_per_token"] == pytest.approx(metrics["nats_per_token"], rel=1e-5)


def test_training_data_is_searched_without_a_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = prepared(tmp_path / "tokens", [f"document number {number}: {'abcdefgh' * number}" for number in range(12)])
    seen = decoded(folder)[0][2]
    task = tmp_path / "quiz.jsonl"
    task.write_text("".join(json.dumps({"prompt": text, "answer": "x"}) + "\n" for text in (seen, "zyxw" * 9, "q")))
    asked = ["--tasks", str(task), "--contamination", str(folder.path), "--ngram", "15"]
    assert main([*asked, "--json"]) == 0
    out, errors = capfd.readouterr()
    found = json.loads(out)
    assert found["tasks"]["quiz"]["metrics"]["contaminated"] == [pytest.approx(1 / 3), pytest.approx(1 / 3)]
    assert found["ngram"] == 15 and errors.startswith("1 text ")


@pytest.fixture
def fake_tasks(monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The result of every task of a file; no model is placed or asked."""
    placed = lambda config, source: SimpleNamespace(config=config)
    outcome = Outcome("multiple_choice", 1, {"acc": Metric(math.nan, math.inf)}, [{"acc": math.nan, "of": [math.inf]}])
    monkeypatch.setattr(placed_model, "place_model", placed)
    monkeypatch.setattr(run_task, "run_task", lambda model, task: outcome)
    return outcome


FAKED = ["--tasks", str(CHOICE), "--tokenizer", str(TOKENIZER), "--json"]


def test_results_of_factors_are_in_their_run_and_null_where_they_are_not_finite(tmp_path, fake_tasks: Outcome, capfd):
    save_factors(GOLDENS / "llama", tmp_path / "run")
    (tmp_path / "run/config.yaml").write_text("")
    out = tmp_path / "results.json"
    assert main(["--model", str(tmp_path / "run"), *FAKED, "--out", str(out)]) == 0
    refuse: Any = lambda word: pytest.fail(f"{word} is not JSON")
    printed = json.loads(capfd.readouterr().out, parse_constant=refuse)
    assert printed["tasks"] == {"choice": {"kind": "multiple_choice", "examples": 1, "metrics": {"acc": [None, None]}}}
    assert (printed["step"], printed["length"]) == (1, small().data.sequence_length)
    assert json.loads((tmp_path / "run" / EVALUATIONS_FILE).read_text(), parse_constant=refuse) == printed
    written = json.loads(out.read_text(), parse_constant=refuse)
    assert written == printed | {"details": {"choice": [{"acc": None, "of": [None]}]}}


def test_a_task_of_a_file_and_one_of_the_harness_may_have_one_name(fake_tasks: Outcome, capfd, monkeypatch):
    theirs = {name: Outcome(name, 2, {"acc": Metric(0.5, None)}) for name in ("choice", "other")}
    monkeypatch.setattr(evaluate, "_harness", lambda names, folder: SimpleNamespace(run=lambda model: theirs))
    assert main([*MODEL, *FAKED, "--tasks", str(CHOICE), "choice", "other"]) == 0
    found = json.loads(capfd.readouterr().out)["tasks"]
    assert {name: own["examples"] for name, own in found.items()} == {"choice": 1, "lm_eval:choice": 2, "other": 2}


def test_a_tokenizer_without_a_beginning_is_refused_before_tasks_are_run_for_min_k(
    tmp_path: Path, fake_tasks: Outcome, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, text_of = prepared(tmp_path / "tokens", ["abc " * 40] * 9), tokenizer.text_of
    monkeypatch.setattr(tokenizer, "text_of", lambda *given, **more: replace(text_of(*given, **more), begin=None))
    monkeypatch.setattr(run_task, "run_task", lambda model, task: pytest.fail("a task was run"))
    status = main([*MODEL, *FAKED, "--contamination", str(folder.path)])
    refused_by_command(status, *capfd.readouterr(), "tokenizer.json", "no token for the beginning")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([*MODEL, "--tasks", str(CHOICE), "--ngram", "13"], ("--ngram", "--contamination")),
        (["--contamination", "x", "--tasks", str(CHOICE), "--length", "8"], ("--length", "--model")),
        (["--contamination", "x", "--tasks", str(CHOICE), "--tokenizer", "t"], ("--tokenizer", "--model")),
        (["--contamination", "x", "--tasks", str(CHOICE), "--set", "a.b=3"], ("--set", "--model")),
        (["--contamination", "x", "--tasks", str(CHOICE), "--special-tokens"], ("--special-tokens", "--model")),
        ([*MODEL, "--tasks", str(CHOICE), "--include-path", "x"], ("--include-path", "--tasks")),
        (["--tasks", str(CHOICE)], ("--model", "--contamination")),
        ([*MODEL, "--tasks", "arc_easy"], ("arc_easy", ".jsonl", "lm-evaluation-harness", "eval")),
        ([*MODEL, "--tasks", "none.yaml"], ("none.yaml", "does not exist")),
        ([*MODEL, "--tasks", str(CHOICE)], ("--tokenizer", "tokenizer.json")),
        ([*MODEL, "--tasks", str(CHOICE), "--set", "model.layers=3"], ("model.layers=3", "parallel")),
        ([*MODEL, "--tasks", str(CHOICE), "--out", "none/x.json"], ("--out", "none", "does not exist")),
        ([*MODEL, "--tasks", "arc_easy", "--contamination", "x"], ("--tasks", "arc_easy", "file")),
        ([*MODEL, "--tasks", str(CHOICE), "--contamination", "x", "--ngram", "0"], ("--ngram", "from 1 up", "'0'")),
        ([*MODEL, "--tasks", str(CHOICE), "--contamination", str(GOLDENS)], ("--contamination", "index.json")),
        ([*MODEL, "--taks", str(CHOICE)], ("--taks", "--tasks")),
        (["--model", str(GOLDENS / "gpt2"), "--tasks", str(CHOICE), "--tokenizer", str(TOKENIZER), "--length", "65"],
         ("--length 65", "at most 64")),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(arguments: list[str], parts: tuple[str, ...], capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    refused_by_command(main(arguments), *capfd.readouterr(), *parts)


def test_names_of_special_tokens_are_tokens_where_evaluate_is_asked(fake_tasks: Outcome, monkeypatch, capfd):
    seen = []
    monkeypatch.setattr(run_task, "run_task", lambda model, task: seen.append(model.text.encode("<eos>")) or fake_tasks)
    assert main([*MODEL, *FAKED]) == main([*MODEL, *FAKED, "--special-tokens"]) == 0
    assert seen[1] == [2] and 2 not in seen[0]
