"""`python -m jaxpar.generate`: text and numbers from a run, and one sentence for what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpar.generate import main
from jaxpar.training.run.trainer import Trainer
from tests.sentences import refused_by_command
from tests.training.runs import run_config

FOLDER = Path(__file__).parent / "goldens"


@pytest.mark.long
def test_a_run_continues_text_on_any_layout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = {"source": "stdlib", "batch_size": 8, "sequence_length": 32}
    config = run_config(tmp_path, 3, model={"vocab": None, "vocab_multiple": 16}, data=data, parallel={"fsdp": 8})
    Trainer(config).fit(())
    folder = tmp_path / config.run.name
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"import "\n{"prompt": "def f(x):"}\n')
    asked = ["--model", str(folder), "--prompts", str(prompts), "--tokens", "12", "--json"]
    found = []
    for layout in ([], ["--set", "parallel.tensor=2", "--set", "parallel.context=4"]):
        assert main([*asked, *layout]) == 0
        found.append([json.loads(line) for line in capfd.readouterr().out.splitlines()])
    assert [row["tokens"] for row in found[0]] == [row["tokens"] for row in found[1]]
    assert [row["prompt"] for row in found[0]] == ["import ", "def f(x):"]
    assert all(len(row["tokens"]) == len(row["log_probabilities"]) <= 12 for row in found[0])
    text = found[0][0]["text"]
    assert main([*asked[:2], "--prompt", "import ", "--tokens", "12", "--stop", text[3:5]]) == 0
    assert capfd.readouterr().out == f"import {text[: text.find(text[3:5])]}\n"
    alone = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-m", "jaxpar.generate", *asked, "--set", "parallel.tensor=2"]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=True, cwd=FOLDER.parents[1])
    assert [json.loads(line)["tokens"] for line in done.stdout.splitlines()] == [row["tokens"] for row in found[0]]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--prompt", "a", "--tokens", "0"], ("--tokens 0", "from 1")),
        (["--prompt", "a", "--top-p", "2"], ("top_p", "at most 1")),
        (["--prompt", "a", "--set", "model.layers=3"], ("model.layers=3", "parallel")),
        (["--prompt", "a"], ("--tokenizer", "tokenizer.json")),
        ([], ("--prompt TEXT", "--prompts FILE")),
        (["--prompts", "none.jsonl"], ("none.jsonl",)),
        (["--promt", "a"], ("--promt", "--prompt")),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], parts: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    refused_by_command(main(["--model", str(FOLDER / "llama"), *arguments]), *capfd.readouterr(), *parts)


def test_lines_that_are_no_prompts_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.jsonl"
    for text, line in (('"a"\n{"text": 1}\n', "line 2"), ("a\n", "line 1"), ("\n", "no prompt")):
        file.write_text(text)
        refused_by_command(main(["--model", str(FOLDER / "llama"), "--prompts", str(file)]), *capfd.readouterr(), line)
