"""A vLLM server as its client sees it: completions with log-probabilities, and weights that it reads from a folder.

Its ways to transfer weights carry tensors between processes of PyTorch (NCCL, CUDA IPC); a folder needs none. The
server is started with VLLM_SERVER_DEV_MODE=1, which opens `/pause`, `/collective_rpc` and `/resume`
(docs.vllm.ai/en/latest/training/weight_transfer, /features/sleep_mode).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from jaxpar.config import UserError
from jaxpar.config.spelling import quoted
from jaxpar.config.strict_json import json_text

SECONDS = 1800.0
"""Longest time that a request may take."""
SHOWN = 200
"""Characters of a server's message that an error shows."""


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
        seconds: the longest time that a request may take.

    Raises:
        UserError: nothing answers there, or what answers serves no model.
    """

    def __init__(self, url: str, seconds: float = SECONDS):
        self.url, self._seconds = url.rstrip("/"), seconds
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
        finally:
            self._request("/resume", {})

    def completions(
        self, prompt: Sequence[int], *, answers: int, tokens: int, temperature: float, seed: int, stop: Sequence[int]
    ) -> list[Completion]:
        """Answers to a prompt of token ids; their log-probabilities are those at temperature 1."""
        asked = {
            "model": self.model, "prompt": list(prompt), "n": answers, "max_tokens": tokens, "seed": seed,
            "temperature": temperature, "stop_token_ids": list(stop), "ignore_eos": True, "logprobs": 0,
            "return_token_ids": True, "skip_special_tokens": False,
        }  # fmt: skip
        made = self._request("/v1/completions", asked)
        try:
            choices = sorted(made["choices"], key=lambda one: one["index"])
            drawn = [
                Completion(
                    [int(token) for token in one["token_ids"]],
                    np.array(one["logprobs"]["token_logprobs"], np.float64),
                    one["finish_reason"] == "stop",
                )
                for one in choices
            ]
        except (KeyError, TypeError, ValueError):
            raise self._unexpected("/v1/completions", made) from None
        if len(drawn) != answers or any(len(one.tokens) != len(one.log_probabilities) for one in drawn):
            raise self._unexpected("/v1/completions", made)
        return drawn

    def scores(self, tokens: Sequence[int]) -> np.ndarray:
        """The log-probability of each token of a row but its first."""
        asked = {
            "model": self.model, "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.0,
            "return_token_ids": True,
        }  # fmt: skip
        made = self._request("/v1/completions", asked)
        try:
            each = made["choices"][0]["prompt_logprobs"][1:]
            return np.array([one[str(token)]["logprob"] for one, token in zip(each, tokens[1:], strict=True)])
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._unexpected("/v1/completions", made) from None

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json_text(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=self._seconds) as answer:  # an address that the user's configuration names
                text = answer.read()
            return json.loads(text) if text else None
        except HTTPError as error:
            said = quoted(error.read(SHOWN).decode(errors="replace"), SHOWN)
            hint = "; expected a server started with VLLM_SERVER_DEV_MODE=1" if error.code == 404 else ""
            raise UserError(f"rl.sampler.url: {self.url}{path} answers {error.code} ({said}){hint}") from None
        except (URLError, TimeoutError, ConnectionError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"rl.sampler.url: {self.url} does not answer ({reason}); expected a vLLM server") from None
        except ValueError:
            raise self._unexpected(path, text[:SHOWN]) from None

    def _unexpected(self, path: str, made: object) -> UserError:
        said = quoted(str(made), SHOWN)
        return UserError(f"rl.sampler.url: {self.url}{path} answers {said}; expected what a vLLM server does")
