"""A model as the server knows it: its tokenizer, its chat template, and the room of a row."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import join_or, quoted
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.messages import Unusable
from jaxpar.generation.requests import Request
from jaxpar.generation.sampling import Sampling
from jaxpar.generation.text import Stop
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.pages.units import plural
from jaxpar.serving.fields import messages_of
from jaxpar.serving.refusals import Refusal


@dataclass
class ServedModel:
    """Turns the fields of a request into tokens."""

    name: str
    model: ModelConfig
    text: ModelText
    length: int
    """Tokens that a row may get to, its prompt included."""
    chat: ChatEncoder | None
    why_no_chat: str = ""
    adapters: dict[str, int] = field(default_factory=dict)
    """The indices of adapters by their names; each is a model for clients."""
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    """Seed of requests that have none."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _drawn: int = 0
    """Streams of `seed` that were drawn from."""

    @property
    def names(self) -> list[str]:
        """Names of the model and of its adapters."""
        return [self.name, *self.adapters]

    def adapter(self, name: str | None) -> int:
        """The index of the adapter that a request names; -1 for the model itself. Raises `Refusal` for other names."""
        if name not in self.names:
            expected = f"expected {join_or([repr(one) for one in self.names])}"
            status, what = (400, "it is missing") if name is None else (404, f"there is no {quoted(name, 60)} here")
            raise Refusal(status, f"model: {what}; {expected}", "model")
        return self.adapters.get(name, -1)

    def completions(self, values: Mapping[str, Any]) -> list[tuple[Request, list[Stop]]]:
        """The prompts of a request for completions. Raises `Refusal`."""
        prompt = values["prompt"]
        if prompt is None:
            raise Refusal(400, "prompt: it is missing; expected a text, token ids, or a list of one of them", "prompt")
        alone = isinstance(prompt, str) or isinstance(prompt[0], int)
        with self._lock:
            every = [
                self.text.encode_start(one) if isinstance(one, str) else one for one in ([prompt] if alone else prompt)
            ]
        return [self._request(values, tokens, "prompt", values["max_tokens"], self.text.stops, ()) for tokens in every]

    def chat_completion(self, values: Mapping[str, Any]) -> list[tuple[Request, list[Stop]]]:
        """The conversation of a request, as a list of one prompt. Raises `Refusal`."""
        messages = messages_of(values["messages"])
        if self.chat is None:
            raise Refusal(400, f"messages: this server has no chat template ({self.why_no_chat})", "messages")
        with self._lock:
            try:
                self.chat.check(messages)
                tokens, end = self.chat.prompt(messages), self.chat.end_of_turn()
            except Unusable as error:
                raise Refusal(400, f"messages: {error}", "messages") from None
        limit = values["max_completion_tokens"] or values["max_tokens"] or max(1, self.length - len(tokens))
        stop = [*self.text.stops, *end.tokens]
        return [self._request(values, tokens, "messages", limit, stop, end.texts)]

    def _request(
        self, values: Mapping[str, Any], prompt: Sequence[int], name: str, tokens: int, stop: Sequence[int],
        stop_texts: Sequence[str],
    ) -> tuple[Request, list[Stop]]:  # fmt: skip
        if len(prompt) + tokens > self.length:
            raise Refusal(
                400,
                f"{name}: {plural(len(prompt), 'token')} and {tokens} new ones are more than {self.length}; expected a "
                "shorter one, or fewer in max_tokens",
                name,
            )
        stop = [*(() if values["ignore_eos"] else stop), *(values["stop_token_ids"] or ())]
        stops = values["stop"] or []
        texts = [*([stops] if isinstance(stops, str) else stops), *stop_texts]
        seed, stream = values["seed"], 0
        if seed is None:
            seed, stream = self.seed, self._new_streams(values["n"])
        try:
            sampling = Sampling(
                values["temperature"], values["repetition_penalty"], max(0, values["top_k"]), values["top_p"],
                values["min_p"],
            )  # fmt: skip
            adapter = self.adapter(values["model"])
            request = Request(prompt, tokens, sampling, seed, stream, values["n"], frozenset(stop), adapter=adapter)
            request.check(self.model, name)
        except UserError as error:
            raise Refusal(400, str(error), name) from None
        return request, [Stop(self.text.decode, texts) for _ in range(values["n"])]

    def _new_streams(self, answers: int) -> int:
        """The first of streams that no other answer without a seed draws from."""
        with self._lock:
            stream = self._drawn
            self._drawn = (stream + answers) % 2**30
        return stream
