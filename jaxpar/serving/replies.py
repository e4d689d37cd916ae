"""Answers in the form of OpenAI's: in one object, or in pieces."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxpar.serving.worker import Piece


@dataclass
class Usage:
    """Tokens of a request."""

    prompt: int
    new: int = 0

    def body(self) -> dict[str, int]:
        """The JSON object of the counts, in OpenAI's format."""
        return {"prompt_tokens": self.prompt, "completion_tokens": self.new, "total_tokens": self.prompt + self.new}


@dataclass
class Reply:
    """The answer to one request; `decode` is for the tokens of log-probabilities."""

    model: str
    answers: int
    usage: Usage
    decode: Callable[[Sequence[int]], str] | None
    """None where the client asks for no log-probabilities."""
    with_usage: bool = False
    """Whether a last piece has the usage."""
    with_ids: bool = False
    """Whether the tokens of answers are named, with the stop tokens that end them."""
    kind, chunk, prefix = "text_completion", "text_completion", "cmpl-"
    began: dict[str, object] = field(init=False)
    pieces: list[list[Piece]] = field(init=False)

    def __post_init__(self) -> None:
        self.began = {"id": f"{self.prefix}{uuid.uuid4().hex}", "created": int(time.time()), "model": self.model}
        self.pieces = [[] for _ in range(self.answers)]
        self._offsets = [0] * self.answers

    def add(self, piece: Piece) -> None:
        """More of an answer, for `body`."""
        if self.with_ids and piece.ending is not None:
            piece = piece._replace(tokens=[*piece.tokens, piece.ending])
        self.pieces[piece.answer].append(piece)
        self.usage.new += len(piece.tokens)

    def body(self) -> dict[str, object]:
        """Returns the reply with all answers."""
        choices = [self._choice(index, pieces) for index, pieces in enumerate(self.pieces)]
        return self.began | {"object": self.kind, "choices": choices, "usage": self.usage.body()}

    def first_events(self) -> Iterator[bytes]:
        """Events before all pieces."""
        return iter(())

    def event(self, piece: Piece) -> bytes:
        """A piece as an event of a stream."""
        self.usage.new += len(piece.tokens)
        offset, self._offsets[piece.answer] = self._offsets[piece.answer], self._offsets[piece.answer] + len(piece.text)
        return self._event([self._part(piece, offset)])

    def last_events(self) -> Iterator[bytes]:
        """Events behind all pieces."""
        if self.with_usage:
            yield self._event([], usage=self.usage.body())
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return event(self.began | {"object": self.chunk, "choices": choices, **more})

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, object]:
        ids: dict[str, object] = {"token_ids": [token for piece in pieces for token, _ in piece.tokens]}
        return {
            "index": index, "text": "".join(piece.text for piece in pieces), "logprobs": self._likely(pieces, 0),
            "finish_reason": pieces[-1].finish,
        } | (ids if self.with_ids else {})  # fmt: skip

    def _part(self, piece: Piece, offset: int) -> dict[str, object]:
        likely = self._likely([piece], offset)
        return {"index": piece.answer, "text": piece.text, "logprobs": likely, "finish_reason": piece.finish}

    def _likely(self, pieces: Sequence[Piece], offset: int) -> dict[str, object] | None:
        """Log-probabilities of tokens, whose text begins at `offset`."""
        if self.decode is None:
            return None
        tokens = [token for piece in pieces for token in piece.tokens]
        texts, offsets = [self.decode([token]) for token, _ in tokens], []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts, "token_logprobs": [likely for _, likely in tokens], "top_logprobs": None,
            "text_offset": offsets,
        }  # fmt: skip


class ChatReply(Reply):
    """The answer to messages."""

    kind, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def first_events(self) -> Iterator[bytes]:
        """The role of each answer."""
        for index in range(self.answers):
            delta = {"role": "assistant", "content": ""}
            yield self._event([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, object]:
        content = "".join(piece.text for piece in pieces)
        return {
            "index": index, "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": self._likely(pieces, 0), "finish_reason": pieces[-1].finish,
        }  # fmt: skip

    def _part(self, piece: Piece, offset: int) -> dict[str, object]:
        delta = {"content": piece.text} if piece.text or piece.finish is None else {}
        likely = self._likely([piece], offset) if piece.tokens else None
        return {"index": piece.answer, "delta": delta, "logprobs": likely, "finish_reason": piece.finish}

    def _likely(self, pieces: Sequence[Piece], offset: int) -> dict[str, object] | None:
        if self.decode is None:
            return None
        texts = [(self.decode([token]), likely) for piece in pieces for token, likely in piece.tokens]
        return {
            "content": [
                {"token": text, "logprob": likely, "bytes": [*text.encode()], "top_logprobs": []}
                for text, likely in texts
            ],
            "refusal": None,
        }


def event(body: dict[str, object]) -> bytes:
    """An event of a stream."""
    return f"data: {json.dumps(body, allow_nan=False)}\n\n".encode()
