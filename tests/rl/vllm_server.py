"""A server on loopback that answers as vLLM does; it records what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

type Scores = Callable[[Sequence[int]], np.ndarray]
"""The log-probability of each token of a row but its first."""


class FakeVLLM:
    """Draws tokens evenly from `vocab`, and says of them what `scores` does."""

    def __init__(self, vocab: int, scores: Scores | None = None):
        self.vocab, self.scores = vocab, scores
        self.asked: list[tuple[str, Any]] = []
        self.replay: dict[str, Any] = {}
        """By path, what is answered whatever is asked; a number is a status, and bytes are all that is sent."""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((path, body))
        if path in self.replay:
            made = self.replay[path]
            return (made, {"error": "no"}) if isinstance(made, int) else (200, made)
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "policy", "object": "model"}]}
        if path != "/v1/completions":
            return 200, {"status": "ok"}
        assert self.scores is not None, "someone knows the model"
        prompt, choices = body["prompt"], []
        draws = np.random.default_rng(body.get("seed"))
        for index in range(body.get("n", 1)):
            drawn = draws.integers(self.vocab, size=body["max_tokens"]).tolist()
            ends = [at for at, token in enumerate(drawn) if token in body.get("stop_token_ids", [])]
            drawn = drawn[: ends[0] + 1] if ends else drawn
            likely = self.scores([*prompt, *drawn])
            before = [None, *({str(t): {"logprob": float(x)}} for t, x in zip(prompt[1:], likely, strict=False))]
            choices.append({
                "index": index, "token_ids": drawn, "finish_reason": "stop" if ends else "length",
                "logprobs": {"token_logprobs": likely[len(prompt) - 1 :].tolist()}, "prompt_logprobs": before,
            })  # fmt: skip
        return 200, {"choices": choices[::-1]}


@contextmanager
def serving(fake: FakeVLLM) -> Iterator[str]:
    """The address of a server on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            status, made = fake.answer(self.path, json.loads(self.rfile.read(size)) if size else None)
            if isinstance(made, bytes):
                self.wfile.write(made)
                return
            data = made.encode() if isinstance(made, str) else json.dumps(made).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
