"""`python -m jaxpar.generate`: text and numbers from a run, and one sentence for what it cannot do."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from jaxpar.generate import main
from jaxpar.training.run.trainer import Trainer
from tests.processes import run_python
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
    for layout in ([], ["--set", "parallel.tensor=2", "--set", "parallel.context=4"], ["--prefill-devices", "2"]):
        assert main([*asked, *layout]) == 0
        found.append([json.loads(line) for line in capfd.readouterr().out.splitlines()])
    for other in found[1:]:
        assert [row["tokens"] for row in found[0]] == [row["tokens"] for row in other]
    assert [row["prompt"] for row in found[0]] == ["import ", "def f(x):"]
    assert all(len(row["tokens"]) == len(row["log_probabilities"]) <= 12 for row in found[0])
    text = found[0][0]["text"]
    assert main([*asked[:2], "--prompt", "import ", "--tokens", "12", "--stop", text[3:5]]) == 0
    assert capfd.readouterr().out == f"import {text[: text.find(text[3:5])]}\n"
    done = run_python("-m", "jaxpar.generate", *asked, "--set", "parallel.tensor=2", without=("XLA_FLAGS",))
    assert done.returncode == 0, done.stderr
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
        (["--chat", "--special-tokens"], ("--special-tokens", "template")),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], parts: tuple[str, ...], capfd: pytest.CaptureFixture[str]):
    refused_by_command(main(["--model", str(FOLDER / "llama"), *arguments]), *capfd.readouterr(), *parts)


def test_lines_that_are_no_prompts_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.jsonl"
    for text, line in (('"a"\n{"text": 1}\n', "line 2"), ("a\n", "line 1"), ("\n", "no prompt")):
        file.write_text(text)
        refused_by_command(main(["--model", str(FOLDER / "llama"), "--prompts", str(file)]), *capfd.readouterr(), line)


def marked_llama(folder: Path) -> Path:
    """A golden with a tokenizer that begins each text with a token."""
    shutil.copytree(FOLDER / "llama", folder)
    for file in (FOLDER / "evaluation" / "marked").iterdir():
        shutil.copy(file, folder)
    return folder


FOUND: dict[str, tuple[list[int], float]] = {
    "the capital of peru is": ([30, 30, 27, 55], -1.959394),
    "the cat<eos>the cat": ([59, 59, 43, 26, 27, 37, 60, 42], -1.559223),
}
"""Likeliest tokens after prompts and the first's log-probability, as transformers 5.23 finds them in float32."""


def test_a_prompt_has_the_tokens_that_transformers_gives_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The beginning of a text once, also where the prompt has it, and special tokens where the flag asks for them."""
    model = marked_llama(tmp_path / "m")
    prompts = [*FOUND, "<bos>the capital of peru is"]
    asked = [word for prompt in prompts for word in ("--prompt", prompt)]
    assert main(["--model", str(model), *asked, "--tokens", "8", "--json", "--special-tokens"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    for row, (tokens, first) in zip(rows, [*FOUND.values(), next(iter(FOUND.values()))], strict=True):
        assert row["tokens"] == tokens and row["log_probabilities"][0] == pytest.approx(first, abs=1e-5)
    assert main(["--model", str(model), *asked[:2], *asked[4:], "--tokens", "8", "--json"]) == 0
    plain, spelled = (json.loads(line)["tokens"] for line in capfd.readouterr().out.splitlines())
    assert plain == rows[0]["tokens"] != spelled, "the name of the token is text like any other"


def test_a_tokenizer_of_another_model_is_named_before_anything_is_printed(tmp_path, capfd):
    file = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"zebra": 300, "<unk>": 0}, unk_token="<unk>")).save(str(file))
    status = main(["--model", str(FOLDER / "llama"), "--tokenizer", str(file), "--prompt", "zebra", "--tokens", "2"])
    refused_by_command(status, *capfd.readouterr(), "--tokenizer", "token 300", "61")


def test_weights_that_are_not_finite_are_one_sentence_and_no_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    model = marked_llama(tmp_path / "m")
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.nan)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    status = main(["--model", str(model), "--prompt", "the cat", "--tokens", "2", "--json"])
    refused_by_command(status, *capfd.readouterr(), "not all finite", "precision.compute")
