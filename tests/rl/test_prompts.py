"""Prompts of a file or a function: their tokens, their order and the end of an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import processors

from jaxpar.config import DataConfig, urls
from jaxpar.data import open_data
from jaxpar.interop.sources.tokenizer import _text_of_codec
from jaxpar.remote import store
from jaxpar.rl.prompts import Prompt, PromptRows, Tokenizer, open_prompts
from jaxpar.rl.records import read_records
from jaxpar.rl.run import RolloutRun
from tests.rl.runs import config_of
from tests.sentences import refused


def test_special_tokens_of_a_prompt_are_read_as_such_and_end_an_answer_where_they_are_to():
    """A prompt spells out a chat's template; `generate` ends as the run did."""
    tokenizer, data = "tests/goldens/chat", DataConfig(source="prompts", path="a", tokenizer="tests/goldens/chat")
    codec = Tokenizer(tokenizer, "<|im_start|>")
    assert codec.encode_start("<|im_start|>hi")[0] == codec.end != Tokenizer(tokenizer, "<|im_end|>").end
    text = _text_of_codec(replace(data, end_token="<|im_start|>"), "jaxpar.rl.prompts:codec_of", False)
    assert text.stops[0] == codec.end


CHAT = "tests/goldens/chat"


def beginning(folder: Path) -> str:
    """A folder with a tokenizer that puts a token before a text."""
    made = tokenizers.Tokenizer.from_file(f"{CHAT}/tokenizer.json")
    made.add_special_tokens(["<bos>"])
    special = [("<bos>", made.token_to_id("<bos>"))]
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=special)
    made.save(f"{folder}/tokenizer.json")
    return str(folder)


def test_a_prompt_begins_a_document_and_what_follows_does_not(tmp_path: Path):
    """Names of special tokens are those tokens in a prompt, and text in what follows it."""
    (tmp_path / "some.jsonl").write_text('{"prompt": "<|im_start|>hi", "completion": "hi<|im_end|>"}\n' * 2)
    path = str(tmp_path / "some.jsonl")
    data = DataConfig(
        "demonstrations", path=path, validation_path=path, tokenizer=beginning(tmp_path), sequence_length=64
    )
    codec, row = Tokenizer(beginning(tmp_path), None), open_data(data, vocab=None, seed=0).train.row(0)
    bos, start = codec.encode("<bos><|im_start|>", special_tokens=True)
    document = row["segments"] == 1
    tokens = [*row["tokens"][document].tolist(), int(row["labels"][document][-1])]
    text = codec.encode("hi")
    assert tokens == [bos, start, *text, *codec.encode("hi<|im_end|>"), codec.end]
    assert codec.encode_start("hi") == [bos, *text] and tokens.count(codec.end) == 1


def test_prompts_are_taken_in_the_order_of_their_epoch_by_two_threads():
    """Another epoch is asked for while one is looked up."""
    prompts = [Prompt((at,), {}) for at in range(5)]

    class Interrupted(PromptRows):
        _asked = (-1, np.zeros(0, np.int64))

        @property
        def _known(self) -> Any:
            return self._asked

        @_known.setter
        def _known(self, known: Any) -> None:
            self._asked = (known[0] + 1, known[1][::-1])  # the other thread has

    plain, interrupted = PromptRows(prompts, 8, 3, ()), Interrupted(prompts, 8, 3, ())
    assert interrupted.taken(0, 5) == plain.taken(0, 5)


def test_prompts_may_be_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(urls, "STORES", ("memory",))
    monkeypatch.setenv("JAXPAR_CACHE", str(tmp_path))
    url = "memory://prompts/some.jsonl"
    store.write(url, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    assert read_records("digits", url).validation == read_records(url, url).train == [{"prompt": "a"}, {"prompt": "b"}]


def test_prompts_that_are_messages_are_rendered_by_the_template_of_the_tokenizer(tmp_path: Path):
    """The assistant's turn begins behind them; a message that spells a special token is refused."""
    file = tmp_path / "chat.jsonl"
    write = lambda *prompts: file.write_text("\n".join(json.dumps({"prompt": one}) for one in prompts))
    data = DataConfig(source="prompts", path=str(file), validation_path=str(file), tokenizer=CHAT)
    message = {"role": "user", "content": "hi"}
    write([message], "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    rows = open_prompts(data, None, 1).train
    assert isinstance(rows, PromptRows)
    rendered, spelled = rows.prompts
    assert rendered.tokens == spelled.tokens and rendered.record["prompt"] == [message]
    for prompt, parts in (
        ([{"role": "user", "content": "<|im_end|>"}], ("data.path", "message 1", "<|im_end|>")),
        ([{"role": "user"}], ("record 1", "message 1 is not text")),
        ([], ("record 1", "a list of messages")),
        (5, ("record 1", "a list of messages")),
        ("", ("record 1 has no prompt",)),
    ):
        write(prompt)
        with refused(*parts):
            open_prompts(data, None, 1)
    write([message])
    with refused("data.tokenizer: null", "messages"):
        open_prompts(replace(data, tokenizer=None), None, 1)
    (tmp_path / "tokenizer.json").write_text(Path(CHAT, "tokenizer.json").read_text())
    with refused("data.tokenizer", "no chat template"):
        open_prompts(replace(data, tokenizer=str(tmp_path)), None, 1)


def test_the_end_of_an_answer_is_the_end_that_the_tokenizer_names(tmp_path: Path):
    """Before names that published tokenizers have; without any of them it is to be set."""
    text = Path(CHAT, "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_start|>"}}))
    assert Tokenizer(str(tmp_path), None).end == Tokenizer(CHAT, "<|im_start|>").end != Tokenizer(CHAT, None).end
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<nil>").replace("<|im_end|>", "<stop>"))
    with refused("data.end_token: null", "it has", "<stop>"):
        Tokenizer(str(tmp_path), None)


def test_prompts_of_a_file_and_of_a_function(tmp_path: Path):
    records = [{"prompt": f"{n} + {n} = ", "answer": str(2 * n)} for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "sums.py").write_text("def prompts():\n    return [{'prompt': 'a', 'answer': 'b'}, {'prompt': 'c'}]\n")
    of = lambda name: RolloutRun(
        config_of(
            tmp_path, 1, data={"path": str(tmp_path / name)}, rl={"rewards": {"exact": 1.0}}, model={"vocab": 257}
        ),
        devices=jax.devices()[:1],
    )
    rows = of("sums.jsonl").data
    assert isinstance(rows.train, PromptRows) and isinstance(rows.validation, PromptRows)
    texts = {one.record["prompt"] for part in (rows.train, rows.validation) for one in part.prompts}
    assert texts == {one["prompt"] for one in records}
    epoch = [one.tokens for one in rows.train.taken(0, len(rows.train.prompts))]
    assert len(set(epoch)) == len(epoch) and rows.decode is not None
    assert rows.decode(rows.train.prompts[0].tokens) == rows.train.prompts[0].record["prompt"]
    assert of("sums.py:prompts").data.vocab == 257
