"""Clients get answers, streams and refusals over HTTP, and free their slots when they go away."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn

from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.tokens.tokenizer_file import load_tokenizer
from jaxpar.generation.generator import Generator
from jaxpar.interop.sources.model_text import read_model_text
from jaxpar.serving.app import Server
from jaxpar.serving.fields import COMPLETION, fields_of
from jaxpar.serving.served_model import ServedModel
from tests.data.chat_files import template, turns
from tests.goldens.chat.generate import FOLDER
from tests.serving import served
from tests.serving.served import KEY, LENGTH, LETTERS, QUEUE, SLOTS, completion, decode, encode, events, wait_until_idle


def test_completions_are_those_of_the_generator(client: httpx.Client, generator: Generator):
    (wanted,) = generator.continued([encode("hello")], 12)
    found = completion(client, prompt="hello", max_tokens=12, logprobs=0)
    (choice,) = found["choices"]
    assert choice["text"] == decode(wanted.tokens) and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == [LETTERS[token] for token in wanted.tokens]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted.log_probabilities.tolist(), abs=1e-5)
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    both = completion(client, prompt=["hello", "b"], max_tokens=12)["choices"]
    assert [one["index"] for one in both] == [0, 1] and both[0]["text"] == choice["text"]
    assert completion(client, prompt=encode("hello"), max_tokens=12)["choices"][0]["text"] == choice["text"]
    stop = choice["text"][4]
    cut = completion(client, prompt="hello", max_tokens=12, stop=stop)["choices"][0]
    assert cut["text"] == choice["text"].split(stop)[0] and cut["finish_reason"] == "stop"


def test_a_stream_has_the_text_in_pieces(client: httpx.Client):
    fields = {"prompt": "hello", "max_tokens": 12, "n": 2, "temperature": 1.0, "seed": 5}
    alone = completion(client, **fields)
    assert completion(client, **fields)["choices"] == alone["choices"], "a seed decides the draws"
    assert alone["choices"][0]["text"] != alone["choices"][1]["text"]
    asked = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}} | fields
    with client.stream("POST", "/completions", json=asked) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer)
    assert len(found) > 12 and found[-1]["usage"] == alone["usage"] and found[-1]["choices"] == []
    for index in range(2):
        mine = [one["choices"][0] for one in found[:-1] if one["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in mine) == alone["choices"][index]["text"]
        assert [one["finish_reason"] for one in mine if one["finish_reason"]] == ["length"]


def test_draws_without_a_seed_are_never_those_of_another_answer(server: Server):
    values = fields_of(b'{"model": "tiny", "prompt": ["a", "b"]}', COMPLETION)
    model = replace(server.model, _drawn=0)
    asked = [request for n in (1, 4, 1) for request, _ in model.completions(values | {"n": n})]
    assert {draws[0] for request in asked for draws in request.draws()} == {model.seed}
    streams = [draws[1] for request in asked for draws in request.draws()]
    assert len(streams) == 12 and len(set(streams)) == 12
    ((alone, _), (other, _)) = model.completions(values | {"seed": 5})
    assert alone.draws()[0][:2] == other.draws()[0][:2] == (5, 0)
    seeds = {ServedModel("tiny", model.model, model.text, LENGTH, None).seed for _ in range(4)}
    assert len(seeds) == 4, "a server that is started again draws the same answers"


def test_a_stop_string_over_several_tokens_is_in_no_piece(client: httpx.Client):
    text = completion(client, prompt="hello", max_tokens=12)["choices"][0]["text"]
    stop = text[4:7]
    fields = {"prompt": "hello", "max_tokens": 12, "stop": ["nowhere", stop]}
    whole = completion(client, **fields)["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (text[: text.index(stop)], "stop")
    with client.stream(
        "POST", "/completions", json={"model": "tiny", "temperature": 0, "stream": True} | fields
    ) as answer:
        parts = [one["choices"][0] for one in events(answer)]
    assert "".join(one["text"] for one in parts) == whole["text"] and parts[-1]["finish_reason"] == "stop"


def test_models_are_listed_and_a_key_is_needed(client: httpx.Client, address: str):
    assert [one["id"] for one in client.get("/models").json()["data"]] == ["tiny"]
    assert client.get("/models/tiny").json()["id"] == "tiny" and client.get("/models/other").status_code == 404
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
        answer = httpx.get(f"{address}/models", headers=headers)
        assert answer.status_code == 401 and "API key" in answer.json()["error"]["message"]


def test_an_adapter_is_a_model_with_the_model_as_its_parent(server: Server):
    adapted = replace(server, model=replace(server.model, adapters={"first": 0}))
    get = lambda path: served.asked(adapted, lambda client: client.get(f"/v1/models{path}"), KEY)
    listed = get("").json()["data"]
    assert [(one["id"], one.get("parent")) for one in listed] == [("tiny", None), ("first", "tiny")]
    assert get("/first").json() == listed[1] and get("/second").status_code == 404


WRONG: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "not JSON": (b"{", 400, ("body", "JSON object")),
    "a list": (b"[]", 400, ("body", "[]", "JSON object")),
    "NaN": (b'{"temperature": NaN}', 400, ("NaN",)),
    "deep": (b"[" * 4000, 400, ("body",)),
    "long": (b" " * 5000, 413, ("4096",)),
    "no model": ({"prompt": "a"}, 400, ("model", "'tiny'")),
    "other model": ({"model": "gpt", "prompt": "a"}, 404, ("'gpt'", "'tiny'")),
    "no prompt": ({"model": "tiny"}, 400, ("prompt", "missing")),
    "empty prompt": ({"model": "tiny", "prompt": ""}, 400, ("prompt", "''", "empty")),
    "unknown token": ({"model": "tiny", "prompt": [1, 99]}, 400, ("token 99", "61")),
    "half a pair": (b'{"model": "tiny", "prompt": "\\ud800"}', 400, ("prompt",)),
    "mistyped": ({"model": "tiny", "prompt": "a", "max_token": 3}, 400, ("max_token", "did you mean max_tokens?")),
    "unknown": ({"model": "tiny", "prompt": "a", "tools": []}, 400, ("tools", "no such field")),
    "temperature": ({"model": "tiny", "prompt": "a", "temperature": -1}, 400, ("temperature", "-1", "from 0")),
    "text": ({"model": "tiny", "prompt": "a", "max_tokens": "3"}, 400, ("max_tokens", "'3'", "whole number")),
    "flag": ({"model": "tiny", "prompt": "a", "n": True}, 400, ("n: ", "True", "whole number")),
    "logprobs": ({"model": "tiny", "prompt": "a", "logprobs": 5}, 400, ("logprobs", "5")),
    "too long": ({"model": "tiny", "prompt": "a", "max_tokens": LENGTH}, 400, ("1 token", "2048")),
    "too many": ({"model": "tiny", "prompt": "a", "n": 6}, 400, ("n: ", "6")),
    "stop": ({"model": "tiny", "prompt": "a", "stop": [""]}, 400, ("stop", "empty")),
    "long stop": ({"model": "tiny", "prompt": "a", "stop": ["b", "a" * 257]}, 400, ("stop", "longer than 256 letters")),
    "long name": ({"model": "tiny", "prompt": "a", "max_token" * 8: 3}, 400, ("max_token", "...", "expected one of")),
    "name of no text": (b'{"\\ud800": 1}', 400, ("ud800", "no such field")),
    "options": ({"model": "tiny", "prompt": "a", "stream_options": {}}, 400, ("stream_options", "stream: true")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_get_one_sentence(client: httpx.Client, name: str):
    body, status, parts = WRONG[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert all(part in message for part in parts) and "\n" not in message, message


def test_other_kinds_paths_and_methods_are_refused(client: httpx.Client):
    answer = client.post("/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]["message"]
    assert client.get("/nothing").status_code == 404 and client.get("/completions").status_code == 405
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    answer = client.post("/chat/completions", json=asked)
    assert answer.status_code == 400 and "chat template" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_frees_its_slots_and_a_full_queue_refuses(client, address, server, stream):
    wait_until_idle(server)
    asked = {"model": "tiny", "prompt": "a", "max_tokens": LENGTH - 1, "n": SLOTS + QUEUE, "stream": stream}
    gone = threading.Event()

    def leave() -> None:
        with (
            httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as other,
            other.stream("POST", f"{address}/completions", json=asked) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            gone.wait()

    def time_out() -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{address}/completions", json=asked, headers={"Authorization": f"Bearer {KEY}"},
                timeout=httpx.Timeout(60, read=1.0),
            )  # fmt: skip

    thread = threading.Thread(target=leave if stream else time_out)
    thread.start()
    while not server.worker._jobs:
        time.sleep(0.01)
    full = client.post("/completions", json={"model": "tiny", "prompt": "b", "max_tokens": 1})
    assert full.status_code == 429 and "queue is full" in full.json()["error"]["message"]
    assert full.headers["retry-after"]
    gone.set()
    thread.join()
    before = server.worker._engine.speed.new_tokens
    wait_until_idle(server)
    assert server.worker._engine.speed.new_tokens - before < SLOTS * LENGTH // 2
    assert completion(client, prompt="b", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_request_that_takes_too_long_ends(server: Server):
    short = replace(server, seconds=0.3)
    asked = {"model": "tiny", "prompt": "a", "max_tokens": LENGTH - 1}
    running = uvicorn.Server(uvicorn.Config(short.app(), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/v1/completions"
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(url, json=asked, headers=headers, timeout=60)
    assert answer.status_code == 504 and "0.3 s" in answer.json()["error"]["message"]
    with httpx.stream("POST", url, json=asked | {"stream": True}, headers=headers, timeout=60) as answer:
        last = [line for line in answer.iter_lines() if line][-1]
    assert "0.3 s" in json.loads(last.removeprefix("data: "))["error"]["message"]
    wait_until_idle(server)
    running.should_exit = True
    thread.join()


CHATTY = (
    "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}"
    "{% if messages[0].content == 'no' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}.{% endfor %}"
)


def test_messages_are_answered_also_after_a_template_that_did_not_end(server, generator, monkeypatch):
    monkeypatch.setattr("jaxpar.data.chat.renderer.SECONDS", 0.3)
    tokenizer = FOLDER / "tokenizer.json"
    encoder = ChatEncoder(template(CHATTY), load_tokenizer(tokenizer, "a"))
    model = ServedModel("tiny", generator.config.model, read_model_text(tokenizer, None), LENGTH, encoder)
    transport = httpx.ASGITransport(replace(server, model=model).app())

    async def ask() -> list[httpx.Response]:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            asked = {"model": "tiny", "max_tokens": 3, "temperature": 0, "n": 2}
            return [
                await client.post("/v1/chat/completions", json=asked | {"messages": turns(said)})
                for said in ("hi", "loop", "no", "hi")
            ]

    first, looped, refused, again = asyncio.run(ask())
    encoder.close()
    (wanted,) = generator.continued([encoder._tokenizer.encode("hi.").ids], 3)
    assert first.status_code == again.status_code == 200, again.text
    for answer in (first, again):
        choices = answer.json()["choices"]
        assert [one["message"]["content"] for one in choices] == [model.text.decode([*wanted.tokens])] * 2
    assert looped.status_code == 500 and looped.json()["error"]["type"] == "server_error"
    assert "0.3 seconds of processor time" in looped.json()["error"]["message"]
    assert refused.status_code == 400 and "roles must alternate" in refused.json()["error"]["message"]


def test_without_a_key_only_names_of_this_machine_are_answered(server: Server):
    """Else a page of another site could reach it from a browser, under a name that leads here."""
    transport = httpx.ASGITransport(replace(server, key=None).app())

    async def status(host: str) -> int:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return (await client.get("/v1/models")).status_code

    wanted = {
        "localhost:8000": 200, "127.0.0.1": 200, "[::1]:8000": 200, "evil.example": 403, "localhost.evil.org": 403,
    }  # fmt: skip
    assert {host: asyncio.run(status(host)) for host in wanted} == wanted
