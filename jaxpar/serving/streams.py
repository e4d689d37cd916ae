"""Answers that are sent in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse

from jaxpar.serving.refusals import Refusal
from jaxpar.serving.replies import Reply, event
from jaxpar.serving.worker import Piece


class Gone(Exception):
    """The client is gone."""


class Stream(StreamingResponse):
    """Events; `ended` is called also where the client was gone before the first."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]):
        super().__init__(events, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._ended()


async def events(reply: Reply, coming: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
    """The events of a stream."""
    try:
        for one in reply.first_events():
            yield one
        async for piece in coming:
            if piece.text or piece.finish or reply.decode is not None:
                yield reply.event(piece)
            else:
                reply.usage.new += len(piece.tokens)
        for one in reply.last_events():
            yield one
    except Refusal as refusal:
        yield event(refusal.body())
    except Gone:
        return
    finally:
        await coming.aclose()  # pyright: ignore[reportAttributeAccessIssue]
