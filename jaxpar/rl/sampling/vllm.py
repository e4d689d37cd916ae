"""A server as its client sees it, `python -m jaxpar.serve` or vLLM: completions with log-probabilities, and weights
that it reads from a folder.

vLLM's ways to transfer weights carry tensors between processes of PyTorch (NCCL, CUDA IPC); a folder needs none. The
server is started with VLLM_SERVER_DEV_MODE=1, or `--updates`, which opens `/pause`, `/collective_rpc` and `/resume`
(docs.vllm.ai/en/latest/training/weight_transfer, /features/sleep_mode).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.request import HTTPErrorProcessor, ProxyHandler, Request, build_opener

import numpy as np

from jaxpar.config import UserError
from jaxpar.config.spelling import cut, printable, quoted
from jaxpar.config.strict_json import json_text

SECONDS = 1800.0
"""Longest time that a request may take."""
SHOWN = 200
"""Characters of a server's message that an error shows."""
WEIGHTS = "system_fingerprint"
"""The key of an answer with a name of the weights that drew it; that of vLLM stays the same when they change."""
FULL = 0.5
"""Seconds after which a server whose queue was full is asked again."""
ENDED = {"stop": True, "length": False}
"""Whether a stop token ended an answer, by the reason that the server gives."""
UNCHANGED = {
    "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
}  # fmt: skip
"""Settings with which tokens are drawn by their probabilities; a server has others from `generation_config.json`."""


class _EveryStatus(HTTPErrorProcessor):
    """Hands over answers of every status: a redirection is not followed."""

    def http_response(self, request: Any, response: Any) -> Any:
        """The answer as it is."""
        del request
        return response

    https_response = http_response


OPENER = build_opener(ProxyHandler({}), _EveryStatus)
"""Asks the server alone, whatever proxies the environment names."""


class Unreachable(UserError):
    """A server does not answer, or has been started anew, without the weights that it had."""


class Completion(NamedTuple):
    """An answer of the server."""

    tokens: list[int]
    """The token that ended it included."""
    log_probabilities: np.ndarray
    ended: bool
    """Whether a stop token ended it."""


class VLLMServer:
    """Requests to a server.

    Args:
        url: its address.
        key: that it asks for, if it does.

    Raises:
        UserError: nothing answers there, or what answers serves no model.
    """

    def __init__(self, url: str, key: str | None = None):
        self.url, self._key = url.rstrip("/"), key
        self._weights: object = None
        """The name of its weights since the last update, if any."""
        self.connect()

    def connect(self) -> None:
        """Ask which model it serves. Raises `UserError`."""
        models = self._request("/v1/models")
        try:
            self.model: str = models["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise self._unexpected("/v1/models", models) from None

    def reload(self, folder: str) -> None:
        """Let running requests end, and go on with the weights in a folder that the server has too."""
        self._request("/pause?mode=wait", {})
        try:
            self._request("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        except BaseException:
            with suppress(UserError):
                self._request("/resume", {})
            raise
        self._request("/resume", {})

    def completions(
        self, prompt: Sequence[int], *, vocab: int, answers: int, tokens: int, temperature: float, seed: int,
        stop: Sequence[int],
    ) -> list[Completion]:  # fmt: skip
        """Answers to a prompt of token ids, below `vocab`; their log-probabilities are those at temperature 1."""
        asked = UNCHANGED | {
            "model": self.model, "prompt": list(prompt), "n": answers, "max_tokens": tokens, "seed": seed,
            "temperature": temperature, "stop_token_ids": list(stop), "ignore_eos": True, "logprobs": 0,
            "return_token_ids": True, "skip_special_tokens": False,
        }  # fmt: skip
        made = self._request("/v1/completions", asked)
        if isinstance(made, dict) and made.get(WEIGHTS) != self._weights:
            raise Unreachable(f"rl.sampler.url: {self.url} has been started anew, with other weights")
        try:
            choices = sorted(made["choices"], key=lambda one: one["index"])
            drawn = [
                Completion(one["token_ids"], _finite(one["logprobs"]["token_logprobs"]), ENDED[one["finish_reason"]])
                for one in choices
            ]
            valid = len(drawn) == answers and all(_is_answer(one, vocab, tokens, stop) for one in drawn)
        except (KeyError, TypeError, ValueError):
            valid, drawn = False, []
        if not valid:
            raise self._unexpected("/v1/completions", made)
        return drawn

    def scores(self, tokens: Sequence[int]) -> np.ndarray:
        """The log-probability of each token of a row but its first, after an update."""
        asked = {
            "model": self.model, "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.0,
            "return_token_ids": True,
        }  # fmt: skip
        made = self._request("/v1/completions", asked)
        try:
            self._weights = made.get(WEIGHTS)
            each = made["choices"][0]["prompt_logprobs"][1:]
            return _finite([one[str(token)]["logprob"] for one, token in zip(each, tokens[1:], strict=True)])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise self._unexpected("/v1/completions", made) from None

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that is answered. A server whose queue is full is asked again."""
        data = None if body is None else json_text(body).encode()
        try:
            keys = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
            request = Request(self.url + path, data, {"Content-Type": "application/json"} | keys)
            # The user's configuration names the address.
            status = 429
            while status == 429:
                with OPENER.open(request, timeout=SECONDS) as answer:
                    status, text = answer.status, answer.read()
                time.sleep(FULL if status == 429 else 0)
        except (OSError, HTTPException, ValueError) as error:
            reason = printable(cut(getattr(error, "reason", error), SHOWN))
            raise Unreachable(
                f"rl.sampler.url: {self.url} does not answer ({reason}); expected jaxpar.serve or a vLLM server"
            ) from None
        if not 200 <= status < 300:
            said = quoted(text[:SHOWN].decode(errors="replace"), SHOWN)
            started = "jaxpar.serve with --updates, or vLLM with VLLM_SERVER_DEV_MODE=1"
            hint = f"; expected {started}" if status == 404 else ""
            if status == 503 and path != "/v1/models":  # it is about to end
                raise Unreachable(f"rl.sampler.url: {self.url}{path} answers 503 ({said})")
            raise UserError(f"rl.sampler.url: {self.url}{path} answers {status} ({said}){hint}")
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise self._unexpected(path, text[:SHOWN]) from None

    def _unexpected(self, path: str, made: object) -> UserError:
        said = quoted(str(made), SHOWN)
        return UserError(f"rl.sampler.url: {self.url}{path} answers {said}; expected what a vLLM server does")


def _is_answer(one: Completion, vocab: int, most: int, stop: Sequence[int]) -> bool:
    """Whether an answer can be one: tokens of the vocabulary, at least one and at most `most`, each with its
    log-probability, and a stop token at the end that one is said to have ended."""
    known = all(type(token) is int and 0 <= token < vocab for token in one.tokens)
    sized = 0 < len(one.tokens) <= most and len(one.tokens) == len(one.log_probabilities)
    return known and sized and (not one.ended or one.tokens[-1] in stop)


def _finite(values: Sequence[float]) -> np.ndarray:
    """The array of log-probabilities. Raises `ValueError` where one is no number."""
    array = np.array(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError("not finite")
    return array
