"""The stages of the recipe: what each runs, and how one knows that it is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jaxpar.config.errors import UserError
from jaxpar.data.chat.template import CHATML_SOURCE
from jaxpar.observe.report.run_record import RunRecord, read_runs
from recipes.chat.corpus import BEFORE, BEHIND, DONE, EXAMS, write_text

HERE = Path(__file__).parent
FOLDER = Path("runs/chat")
"""Everything that the recipe writes, from the folder in which it is run; the configurations name it too."""
TEXT, TOKENS, TOKENIZER = FOLDER / "text", FOLDER / "tokens", FOLDER / "tokenizer"
ANSWERS = "answers.jsonl"
"""File in the folder of a run: what the model says to `QUESTIONS`."""
QUESTIONS = ("Who are you?", "What is 12 + 9?", "What does json.dumps do?", "What does zipfile.is_zipfile do?")
VOCAB = 1024
RUNS = ("pretrain", "middle", "sft", "grpo")
QUICK = {"run.steps": 2, "evaluation.batches": 1, "checkpoint.every": 2}
"""Settings of `--quick`; nothing is learned."""


class Run(Protocol):
    """Runs `python -m` with some words."""

    def __call__(self, words: Sequence[str], out: Path | None = None, /) -> int:
        """Run them, with what is printed in the file `out`; returns the exit code."""
        ...


@dataclass(frozen=True)
class Stage:
    """A stage, which may be repeated: what is done in it already is not done again."""

    name: str
    title: str
    run: Callable[[Run, bool], int]
    """Does it, quickly or not; returns an exit code."""
    is_done: Callable[[], bool]


def record(name: str) -> RunRecord | None:
    """The record of a run, if it has begun."""
    folder = FOLDER / name
    return read_runs([folder])[0] if (folder / "config.yaml").is_file() else None


def _corpus(run: Run, quick: bool) -> int:
    write_text(TEXT)
    return 0


def _tokens(run: Run, quick: bool) -> int:
    """Token folders, of which the first makes the tokenizer, and the tokenizer with the template of conversations."""
    code = TOKENS / "code"
    bpe = ["--train-bpe", str(VOCAB), "--special-tokens", "<|im_start|>", "<|im_end|>"]
    tokenizer = ["--tokenizer", str(code / "tokenizer.json")]
    chat = ["--format", "chat", "--chat-template", "chatml"]
    for name, out, share, more in (
        ("code", code, "0", bpe),
        ("code_validation", TOKENS / "validation", "0", tokenizer),
        ("docs", TOKENS / "docs", "0", tokenizer),
        ("chats", TOKENS / "chats", "0.03", [*tokenizer, *chat]),
    ):
        words = ["--input", str(TEXT / f"{name}.jsonl"), "--out", str(out), "--validation-fraction", share, *more]
        if code_of := run(["jaxpar.prepare", *words]):
            return code_of
    TOKENIZER.mkdir(exist_ok=True)
    shutil.copy(code / "tokenizer.json", TOKENIZER)
    (TOKENIZER / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))  # ends an answer
    (TOKENIZER / "chat_template.jinja").write_text(CHATML_SOURCE)
    return 0


def _training(name: str) -> Stage:
    """A run, its exams, and its answers to a few questions."""
    folder = FOLDER / name

    def train(run: Run, quick: bool) -> int:
        settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")] if quick else []
        if not _is_trained(name) and (code := run(["jaxpar.train", "--config", str(HERE / f"{name}.yaml"), *settings])):
            return code
        if not _is_trained(name):
            raise KeyboardInterrupt  # the run was told to stop, and saved
        model = ["--model", str(folder), "--special-tokens", "--tokenizer", str(TOKENIZER)]
        exams = [str(TEXT / f"{exam}.yaml") for exam in EXAMS]
        if not _has_exams(name) and (code := run(["jaxpar.evaluate", *model, "--tasks", *exams])):
            return code
        prompts = [word for one in QUESTIONS for word in ("--prompt", f"{BEFORE}{one}{BEHIND}")]
        words = [*model, *prompts, "--tokens", "48", "--json"]
        return run(["jaxpar.generate", *words], folder / ANSWERS)

    titles = {
        "pretrain": "read the library's sources",
        "middle": "read its docstrings and the language's manual",
        "sft": "imitate conversations",
        "grpo": "learn sums from rewards",
    }
    is_done = lambda: _is_trained(name) and _has_exams(name) and (folder / ANSWERS).is_file()
    return Stage(name, titles[name], train, is_done)


def _is_trained(name: str) -> bool:
    known = record(name)
    return known is not None and known.complete


def check_steps(quick: bool) -> None:
    """Raise `UserError` where runs have few steps and are to have many, or the other way round."""
    for name in RUNS:
        known = record(name)
        if known is not None and known.config is not None and (known.config.run.steps == QUICK["run.steps"]) != quick:
            wanted = "more" if quick else "few, of --quick"
            raise UserError(f"{FOLDER / name}: a run of {wanted} steps is there; move {FOLDER} away to begin anew")


def _has_exams(name: str) -> bool:
    known = record(name)
    return known is not None and bool(known.evaluations)


def answers(name: str) -> list[str]:
    """The answers of the model of a run to `QUESTIONS`."""
    lines = (FOLDER / name / ANSWERS).read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


STAGES = (
    Stage("corpus", "make text, conversations and exams", _corpus, (TEXT / DONE).is_file),
    Stage("tokens", "train a tokenizer, and encode the text", _tokens, (TOKENIZER / "chat_template.jinja").is_file),
    *map(_training, RUNS),
)
