"""`python -m jaxpar.generate --chat`: a conversation over standard input, and the way to it from a base model."""

import io
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from jaxpar.config import load_config
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.tokens.tokenizer_file import load_tokenizer
from jaxpar.generate import main
from jaxpar.generation.chat import Chat
from jaxpar.interop.sources.model_text import read_model_text
from jaxpar.models import main as models
from jaxpar.training.run.trainer import Trainer
from tests.data.chat_files import prepared_chat, template, turns
from tests.goldens.chat.generate import END_TURN, FOLDER, LETTERS, conversations
from tests.interop.folders import copy_of, rewrite, tensors
from tests.sentences import refused, refused_by_command

GOLDENS = FOLDER.parent
SFT = Path(__file__).parents[1] / "configs" / "sft.yaml"
MARKOV = "\nok.\x02"
"""After each of these tokens comes the next one; the last stands for the end of a turn."""


def with_tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose next token depends on the last one alone: it answers "ok." and ends its turn."""
    folder = copy_of("llama", tmp_path_factory.mktemp("chat") / "model")
    own = tensors(folder)
    draw = np.random.default_rng(0)
    embedding = draw.standard_normal((61, 32)).astype(np.float32)
    head = np.zeros((61, 32), np.float32)
    tokens = [LETTERS.index(letter) if letter != "\x02" else len(LETTERS) + 2 for letter in MARKOV]
    for token, after in pairwise(tokens):
        head[after] += embedding[token]
    changed: dict[str, np.ndarray | None] = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    changed |= {"model.norm.weight": np.ones(32, np.float32)}
    changed |= {name: np.zeros_like(leaf) for name, leaf in own.items() if "o_proj" in name or "down_proj" in name}
    return with_tokenizer(rewrite(folder, changed))


def asked(monkeypatch: pytest.MonkeyPatch, lines: str, *arguments: object) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(["--chat", *map(str, arguments)])


def test_each_line_is_answered_up_to_the_end_of_the_turn(model: Path, monkeypatch, capfd):
    assert asked(monkeypatch, "hi\n\n  \nand now?\n", "--model", model, "--tokens", 9, "--system", "be brief.") == 0
    assert capfd.readouterr().out == "ok.\nok.\n"
    assert asked(monkeypatch, "hi\nhi\n", "--model", model, "--tokens", 2, "--json") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["prompt"], row["text"], row["ended"]) for row in rows] == [("hi", "ok", False)] * 2


def test_the_template_sees_the_whole_conversation_and_its_end_is_found_where_it_is_no_token(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{{ '.' if m.role == 'assistant' else '\n' }}{% endfor %}"
        "{% if messages[-1].content == 'three' %}"
        "{{ raise_exception(messages | map(attribute='content') | join('|')) }}{% endif %}"
    )
    (tmp_path / "a.jinja").write_text(source)
    arguments = ("--model", model, "--tokens", 9, "--system", "s", "--chat-template", tmp_path / "a.jinja")
    code = asked(monkeypatch, "one\ntwo\n", *arguments)
    output = capfd.readouterr()
    assert output.out == "ok\nok\n" and code == 0, output.err
    code = asked(monkeypatch, "one\ntwo\nthree\n", *arguments)
    output = capfd.readouterr()
    refused_by_command(code, output.out.removeprefix("ok\nok\n"), output.err, "s|one|ok|two|ok|three")


@pytest.mark.parametrize(
    ("line", "arguments", "parts"),
    [
        ("hi", ["--prompt", "a"], ("one of --prompt TEXT", "--chat")),
        (f"a{END_TURN}b", [], ("message 1", "special token", END_TURN)),
        ("a\0b", [], ("standard input", "NUL")),
        ("hi", ["--system", END_TURN], ("--chat", "message 1", "special token")),
        ("hi", ["--chat-template", "none.jinja"], ("--chat-template 'none.jinja'", "does not exist", "chatml")),
        ("hi", ["--chat-template", "~nobody-xyz/x.jinja"], ("--chat-template", "'~nobody-xyz'", "home folder")),
        ("hi", ["--model", str(GOLDENS / "llama")], ("--tokenizer", "no tokenizer is known", "tokenizer.json")),
    ],
)
def test_mistakes_are_one_sentence(
    line: str, arguments: list[str], parts: tuple[str, ...], model: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    code = asked(monkeypatch, line + "\n", "--model", model, *arguments)
    refused_by_command(code, *capfd.readouterr(), *parts)


def test_an_answer_that_spells_a_special_token_is_not_a_part_of_the_conversation() -> None:
    class Generates:
        def continued(self, prompts: Any, tokens: int, *, sampling: Any, stop: Any, on_token: Any) -> list[None]:
            on_token(0, 0)
            return [None] * len(prompts)

    answers = [f"a{END_TURN}b", "fine"]
    text = read_model_text(FOLDER / "tokenizer.json", None)
    text = replace(text, decode=lambda tokens: answers.pop(0))
    encoder = ChatEncoder(template(), load_tokenizer(FOLDER / "tokenizer.json", "a"))
    chat, generator = Chat(encoder, text), cast(Any, Generates())
    with refused("--chat", "message 2", "special token", END_TURN):
        chat.answer("hi", generator, 9)
    assert not chat.messages and chat.answer("and now?", generator, 9).text == "fine"
    assert chat.messages == turns("and now?", "fine")
    encoder.close()


def test_a_model_without_a_template_is_refused_with_the_way_out(model: Path, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "tokenizer_config.json").unlink()
    code = asked(monkeypatch, "hi\n", "--model", folder)
    parts = ("--chat", "no chat template", str(folder / "tokenizer.json"), "--chat-template FILE", "chatml")
    refused_by_command(code, *capfd.readouterr(), *parts)
    for option in (["--system", "a"], ["--chat-template", "chatml"]):
        code = main(["--model", str(folder), "--prompt", "a", *option])
        refused_by_command(code, *capfd.readouterr(), option[0], "expected --chat")


@pytest.mark.long
def test_a_base_model_is_tuned_on_conversations_and_answers(tmp_path, monkeypatch, capfd):
    base = copy_of("smollm2", tmp_path / "base")
    shutil.copy(FOLDER / "tokenizer.json", base)
    given = {"tokenizer": base / "tokenizer.json", "chat_template": "chatml"}
    folder = prepared_chat(tmp_path / "tokens", conversations(), **given)
    assert models([str(base)]) == 0
    (tmp_path / "model.yaml").write_text(capfd.readouterr().out)
    overrides = {
        "run.init_from": base, "run.dir": tmp_path / "runs", "run.steps": 150, "data.path": folder.path,
        "data.sequence_length": 128, "data.batch_size": 8, "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 5,
        "precision.compute": "float32", "evaluation.sample_tokens": 0,
    }  # fmt: skip
    config = load_config(SFT, [f"{key}={value}" for key, value in overrides.items()])
    summary = Trainer(replace(config, model=load_config(tmp_path / "model.yaml").model)).fit(())
    assert summary.loss < 1.0
    code = asked(monkeypatch, "capital of peru?\n", "--model", tmp_path / "runs" / "sft", "--tokens", 12, "--json")
    (row,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert code == 0 and row["ended"], "the end of its turn is the first that it learns"
