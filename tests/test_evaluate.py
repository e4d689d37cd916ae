"""`python -m jaxpar.evaluate`: a table, a file, the report of a run, and one sentence for what it cannot do."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from jaxpar.evaluate import main
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from jaxpar.training.run.trainer import Trainer
from tests.data.folders import decoded, prepared
from tests.sentences import refused_by_command
from tests.training.runs import run_config

GOLDENS = Path(__file__).parent / "goldens"
CHOICE, TOKENIZER = GOLDENS / "evaluation/choice.yaml", GOLDENS / "evaluation/marked/tokenizer.json"
MODEL = ["--model", str(GOLDENS / "llama")]


@pytest.mark.long
def test_results_of_a_run_are_printed_written_and_in_its_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert found["ngram"] == 15 and errors.startswith("1 of the texts")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
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
def test_mistakes_are_one_sentence(
    arguments: list[str], parts: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    refused_by_command(main(arguments), *capfd.readouterr(), *parts)
