"""`recipes/chat`: its text, its order, and a quick run from nothing to the card."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpar.config import load_config
from jaxpar.layout.checks.validate import validate
from recipes.chat import stages
from recipes.chat.__main__ import main
from recipes.chat.corpus import DONE, write_text
from tests.sentences import refused_by_command

ROOT = Path(__file__).parents[2]
FILES = 320
CONFIGS = sorted((ROOT / "recipes" / "chat").rglob("*.yaml"))


def _lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, out = tmp_path_factory.mktemp("library"), tmp_path_factory.mktemp("text")
    for index in range(FILES):
        (root / f"m{index}.py").write_text(f'def f{index}():\n    """Return {index}. More of it."""\n')
    write_text(out, root)
    return out


def test_exams_have_nothing_that_was_taught(text: Path):
    numbers = lambda question: tuple(sorted(re.findall(r"\d+", question))) if " + " in question else None
    taught = {one["messages"][0]["content"] for one in _lines(text / "chats.jsonl")}
    prompts = {numbers(one["prompt"][0]["content"]) for one in _lines(text / "prompts.jsonl")}
    asked = {numbers(one["prompt"]) for one in _lines(text / "exam_sums.jsonl")}
    assert asked and None not in asked and not asked & (prompts | set(map(numbers, taught))), "in either order"
    exam, read = ({one["text"] for one in _lines(text / f"{name}.jsonl")} for name in ("exam_text", "code"))
    assert exam and read and len(exam) + len(read) == FILES and not exam & read
    docs = (text / "docs.jsonl").read_text()
    names = {one["context"].strip() for one in _lines(text / "exam_docs.jsonl")}
    assert names and not any(f"{name}\\n" in docs or f"What does {name} do?" in taught for name in names)


def test_the_right_choice_and_sum_are_right(text: Path):
    for one in _lines(text / "exam_docs.jsonl"):
        number = one["context"].strip().split(".f")[1]
        assert one["choices"][one["answer"]] == f"Return {number}." and len(set(one["choices"])) == 4
    for one in _lines(text / "prompts.jsonl"):
        a, b = one["prompt"][0]["content"].removeprefix("What is ").rstrip("?").split(" + ")
        assert int(one["answer"]) == int(a) + int(b)


def test_the_text_is_the_same_each_time_and_marked_last(text: Path, tmp_path: Path):
    root = tmp_path / "library"
    root.mkdir()
    for index in range(FILES):
        (root / f"m{index}.py").write_text(f'def f{index}():\n    """Return {index}. More of it."""\n')
    write_text(tmp_path / "again", root)
    files = {file.name: file.read_bytes() for file in text.iterdir()}
    assert DONE in files and files == {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_configurations_are_valid_and_stages_begin_from_the_one_before(path: Path):
    config = load_config(path)
    validate(config)
    index = stages.RUNS.index(config.run.name)
    if index:
        before = load_config(path.with_name(f"{stages.RUNS[index - 1]}.yaml"))
        assert config.run.init_from == f"{before.run.dir}/{before.run.name}"


def test_bad_words_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    refused_by_command(main(["sfz"]), *capsys.readouterr(), "sfz", "did you mean sft")
    refused_by_command(main(["middle"]), *capsys.readouterr(), "middle", "corpus", "python -m recipes.chat corpus")
    refused_by_command(main(["--price", "-1"]), *capsys.readouterr(), "--price", "-1")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_quick_run_that_is_stopped_continues_and_writes_the_card(tmp_path: Path):
    command = [sys.executable, "-m", "recipes.chat", "--quick"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    runs = tmp_path / "runs" / "chat"
    deadline = time.monotonic() + 400
    while not (runs / "pretrain" / "metrics.jsonl").is_file():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "corpus: done" in done.stdout and "jaxpar.train" in done.stdout
    card = (runs / "card.html").read_text()
    for part in ("pretrain", "grpo", "bits_per_byte", "exact_match", "What is 12 + 9?"):
        assert part in card
    assert re.search(r">all</td>.*\$\d+</td></tr>", card), "the cost of all stages"
    whole = subprocess.run(command[:-1], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    refused_by_command(whole.returncode, whole.stdout, whole.stderr, "runs/chat/pretrain", "--quick")
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "grpo: done" in again.stdout and "jaxpar.train" not in again.stdout
