"""`python -m jaxpar.serve`, asked by the client of OpenAI; and what it refuses before it listens."""

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jax
import openai
import pytest

from jaxpar.generation.placed_model import PlacedModel, open_model, place_model
from jaxpar.serve import main
from jaxpar.serving.weights import open_weights
from tests.goldens.chat.generate import FOLDER
from tests.interop.folders import copy_of
from tests.interop.test_adapter import save_factors
from tests.sentences import refused_by_command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = copy_of("llama", tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder)
    return folder


@pytest.fixture
def served(model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    (tmp_path / "key").write_text("sk-local\n")
    command = [sys.executable, "-m", "jaxpar.serve", "--model", model, "--port", "0", "--length", "512", "--slots", "4"]
    save_factors(model, tmp_path / "adapter")
    for name in ("adapted", "twin"):
        command += ["--adapter", f"{name}={tmp_path / 'adapter'}"]
    command += ["--adapters", tmp_path, "--max-adapters", "1"]
    process = subprocess.Popen(
        [*map(str, command), "--api-key-file", str(tmp_path / "key")], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"XLA_FLAGS": ""},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("model is served on http://127.0.0.1:") and "4 slots of 512 tokens" in line
    yield process, line.split()[4].rstrip(":")
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.long
def test_the_client_of_openai_is_answered_and_sigterm_ends_the_server(served, model):
    process, address = served
    with openai.OpenAI(base_url=address, api_key="sk-local", max_retries=0) as client:
        assert [one.id for one in client.models.list()] == ["model", "adapted", "twin"]
        whole = client.completions.create(model="model", prompt="ab", max_tokens=8, temperature=0, logprobs=0)
        parts = client.completions.create(model="model", prompt="ab", max_tokens=8, temperature=0, stream=True)
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text != ""
        assert whole.choices[0].logprobs is not None and whole.usage is not None
        assert len(whole.choices[0].logprobs.token_logprobs or ()) == whole.usage.completion_tokens <= 8
        adapted = client.completions.create(model="adapted", prompt="ab", max_tokens=8, temperature=0, logprobs=0)
        assert adapted.model == "adapted" and adapted.choices[0].logprobs != whole.choices[0].logprobs
        asked = {"model": "model", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 8}
        said = client.chat.completions.create(**asked, logprobs=True)
        stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        *pieces, last = stream
        assert last.usage is not None and said.usage is not None
        assert last.usage.completion_tokens == said.usage.completion_tokens
        assert "".join(one.choices[0].delta.content or "" for one in pieces) == said.choices[0].message.content
        with httpx.Client(base_url=address, headers={"Authorization": "Bearer sk-local"}, timeout=300) as other:
            load = {"lora_name": "second", "lora_path": str(model.parent / "adapter")}
            full = other.post("/load_lora_adapter", json=load)
            assert full.status_code == 409 and "room for 2" in full.text, "those of --adapter have room in any case"
            assert other.post("/unload_lora_adapter", json={"lora_name": "twin"}).status_code == 200
            assert other.post("/load_lora_adapter", json=load).text == (
                "Success: LoRA adapter 'second' added successfully."
            )
            again = client.completions.create(model="second", prompt="ab", max_tokens=8, temperature=0, logprobs=0)
            assert again.choices[0].logprobs == adapted.choices[0].logprobs
            assert other.post("/unload_lora_adapter", json={"lora_name": "second"}).status_code == 200
        assert [one.id for one in client.models.list()] == ["model", "adapted"]
        with pytest.raises(openai.BadRequestError, match="max_tokens: got 0"):
            client.completions.create(model="model", prompt="ab", max_tokens=0)
        with pytest.raises(openai.NotFoundError, match="expected 'model'"):
            client.completions.create(model="other", prompt="ab")
        with pytest.raises(openai.AuthenticationError, match="API key"):
            client.with_options(api_key="wrong").models.list()
        long = client.completions.create(model="model", prompt="ab", max_tokens=400, temperature=1, stream=True)
        first = next(iter(long))
        process.send_signal(signal.SIGTERM)
        reasons = [part.choices[0].finish_reason for part in (first, *long)]
        assert reasons[-1] in ("length", "stop")
    assert process.wait(60) == 0


def test_the_weights_are_on_the_devices_once(model: Path, monkeypatch: pytest.MonkeyPatch):
    read = list[weakref.ref[jax.Array]]()

    def place(*arguments: Any) -> PlacedModel:
        placed = place_model(*arguments)
        read.extend(map(weakref.ref, jax.tree.leaves(placed.weights)))
        return placed

    monkeypatch.setattr("jaxpar.serving.weights.place_model", place)
    weights = open_weights(*open_model(str(model), ()), {})
    generator = weights.generator
    gc.collect()
    used = {id(leaf) for leaf in jax.tree.leaves(generator._weights)}
    assert read and {id(leaf) for each in read if (leaf := each()) is not None} <= used
    weights.replace(model)
    assert used.isdisjoint(map(id, jax.tree.leaves(generator._weights)))


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path):
    arguments = ["--model", str(model), "--port", "0"]
    empty = tmp_path / "empty"
    empty.write_text("\n")
    (tmp_path / "key").write_text("sk-local\n")
    keyed = ["--api-key-file", str(tmp_path / "key")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases: list[tuple[list[str], tuple[str, ...]]] = [
            (["--host", "0.0.0.0"], ("--host 0.0.0.0", "--api-key-file")),
            (["--api-key-file", str(empty)], ("--api-key-file", "expected one line with a key")),
            (["--api-key-file", str(tmp_path / "none")], ("--api-key-file", "cannot be read")),
            (["--port", port], (port, "cannot listen")),
            (["--port", "70000"], ("--port 70000", "65535")),
            (["--length", "64", "--cache", "63"], ("--cache 63", "--length 64", "at least 256")),
            (["--adapters", str(tmp_path)], ("--adapters", "--api-key-file")),
            ([*keyed, "--adapters", str(tmp_path / "none")], ("--adapters", "none", "expected a folder")),
            (["--max-adapters", "3"], ("--max-adapters 3", "--adapters FOLDER")),
            (["--adapter-rank", "3"], ("--adapter-rank 3", "--adapters FOLDER")),
            ([*keyed, "--adapters", str(tmp_path), "--adapter-rank", "513"], ("--adapter-rank 513", "at most 512")),
            (["--adapter", "name"], ("--adapter 'name'", "expected NAME=FOLDER")),
            (["--adapter", "model=a"], ("--adapter 'model=a'", "another model with the name")),
            (["--adapter", "a=x", "--adapter", "a=y"], ("--adapter 'a=y'", "another model with the name")),
            (["--adapter", f"a={model}"], ("--adapter a", "expected an adapter")),
            (["--prefill-devices", "8"], ("--prefill-devices 8", "8 devices", "fewer")),
            ([*keyed, "--host", "a..b"], ("--host", "a..b", "address")),
        ]
        for more, parts in cases:
            refused_by_command(main([*arguments, *more]), *capsys.readouterr(), *parts)
