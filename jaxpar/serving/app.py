"""The HTTP interface: `/v1/models`, `/v1/completions` and `/v1/chat/completions`, as OpenAI's clients know them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jaxpar.config.errors import UserError
from jaxpar.generation.requests import Request
from jaxpar.generation.text import Stop
from jaxpar.serving.adapters import Adapters
from jaxpar.serving.fields import CHAT, COMPLETION, Setting, fields_of
from jaxpar.serving.hosts import is_local
from jaxpar.serving.refusals import Refusal
from jaxpar.serving.replies import ChatReply, Reply, Usage
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.streams import Gone, Stream, events
from jaxpar.serving.updates import Updates
from jaxpar.serving.worker import Job, Piece, Worker

type Score = Callable[[Sequence[int], int], Float[np.ndarray, " tokens"]]
type Prompts = list[tuple[Request, list[Stop]]]


@dataclass
class Server:
    """Answers requests with the rows of an engine."""

    model: ServedModel
    worker: Worker
    key: str | None
    """The API key that clients must send."""
    seconds: float
    """A request may take so long, its wait for a slot included."""
    body_bytes: int
    """A body may have so many bytes."""
    score: Score | None = None
    """The log-probabilities of a row's tokens but the first, with an adapter, in the worker's thread."""
    updates: Updates | None = None
    """New weights of a trainer, if it may bring some."""
    adapters: Adapters | None = None
    """Adapters that clients bring, if they may."""

    def app(self) -> Starlette:
        """Returns the Starlette application."""
        routes = [
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._model)),
            Route("/v1/completions", self._guarded(self._completions), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
        ]
        answers: dict[str, Callable[[HttpRequest, bytes], Awaitable[Any]]] = {}
        if self.updates is not None:
            answers |= {
                "/pause": self.updates.pause, "/collective_rpc": self.updates.load, "/resume": self.updates.resume,
            }  # fmt: skip
        if self.adapters is not None:
            answers |= {
                "/v1/load_lora_adapter": self.adapters.load, "/v1/unload_lora_adapter": self.adapters.unload,
            }  # fmt: skip
        routes += [Route(path, self._guarded(self._control(one)), methods=["POST"]) for path, one in answers.items()]
        return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})

    def _control(self, act: Callable[[HttpRequest, bytes], Awaitable[Any]]) -> Callable[[HttpRequest], Any]:
        """An endpoint of `updates` or of `adapters`."""

        async def answer(http: HttpRequest) -> Response:
            made = await act(http, await self._body(http))
            return made if isinstance(made, Response) else JSONResponse(made)

        return answer

    def _guarded(self, answer: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
        """An endpoint that checks the key, and answers refusals."""

        async def endpoint(http: HttpRequest) -> Response:
            try:
                self._check_key(http)
                return await answer(http)
            except Refusal as refusal:
                return _refused(refusal)
            except UserError as error:  # as where the process that renders a chat template ended
                return _refused(Refusal(500, str(error)))
            except (Gone, ClientDisconnect):
                return Response(status_code=499)  # nobody reads it

        return endpoint

    def _check_key(self, http: HttpRequest) -> None:
        if self.key is None:
            # A page in a browser may give this machine a name of its choice, and read what the server answers it.
            if not is_local(http.url.hostname or ""):
                raise Refusal(403, f"host: got {http.url.hostname!r}; expected localhost, for there is no API key")
            return
        kind, _, key = http.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secrets.compare_digest(key.strip().encode(), self.key.encode()):
            raise Refusal(401, "authorization: the API key is missing or wrong; expected the header Bearer KEY")

    async def _models(self, http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._about(name) for name in self.model.names]})

    async def _model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        self.model.adapter(name)
        return JSONResponse(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        adapted = {} if name == self.model.name else {"parent": self.model.name}
        return {"id": name, "object": "model", "created": 0, "owned_by": "jaxpar"} | adapted

    async def _completions(self, http: HttpRequest) -> Response:
        return await self._answer(http, COMPLETION, self.model.completions, Reply)

    async def _chat(self, http: HttpRequest) -> Response:
        return await self._answer(http, CHAT, self.model.chat_completion, ChatReply)

    async def _answer(
        self, http: HttpRequest, known: dict[str, Setting], prompts_of: Callable[[dict[str, Any]], Prompts],
        kind: type[Reply],
    ) -> Response:  # fmt: skip
        until = asyncio.get_running_loop().time() + self.seconds
        values = fields_of(await self._body(http), known)
        if values["stream_options"] is not None and not values["stream"]:
            raise Refusal(400, "stream_options: it is for streams; expected stream: true with it", "stream_options")
        self.model.adapter(values["model"])
        prompts = await asyncio.to_thread(prompts_of, values)
        answers = sum(request.answers for request, _ in prompts)
        usage = Usage(sum(len(request.prompt) for request, _ in prompts))
        asked = lambda name: values.get(name) is not None and values[name] is not False  # 0 asks too
        more = [name for name in ("return_token_ids", "prompt_logprobs") if asked(name)]
        if more and values["stream"]:
            raise Refusal(400, f"{more[0]}: a stream has none; expected stream: false with it", more[0])
        with_usage = bool((values["stream_options"] or {}).get("include_usage"))
        decode, with_ids = self.model.text.decode if asked("logprobs") else None, "return_token_ids" in more
        reply = kind(values["model"], answers, usage, decode, with_usage, with_ids)
        pieces, jobs = asyncio.Queue[Piece](), list[Job]()
        loop = asyncio.get_running_loop()

        def send(piece: Piece) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody reads
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        # Adapters change in this thread, and not between here and the use of one.
        with ExitStack() as use:
            adapter = self.model.adapter(values["model"])
            if self.adapters is not None:
                use.enter_context(self.adapters.used(adapter))
            for request, stops in prompts:
                request.adapter = adapter
                jobs.append(Job(request, stops, sum(len(job.stops) for job in jobs), send))
            self.worker.submit(jobs)
            coming = self._coming(http, pieces, jobs, answers, until)
            if values["stream"]:
                use = use.pop_all()
                use.callback(self.worker.drop, jobs)
                return Stream(events(reply, coming), use.close)
            async for piece in coming:
                reply.add(piece)
            scores = await self._scored(jobs, until) if "prompt_logprobs" in more else []
        body = reply.body() | ({} if self.updates is None else {"system_fingerprint": jobs[0].version})
        choices: Any = body["choices"]
        for choice, of_prompt in zip(choices, scores, strict=False):
            choice["prompt_logprobs"] = of_prompt
        return JSONResponse(body)

    async def _scored(self, jobs: Sequence[Job], until: float) -> list[list[dict[str, Any] | None]]:
        """For each answer, the log-probability of each token of its prompt, by its id; None for the first.

        Raises `Refusal` when time is up, and where other weights drew an answer.
        """
        scored, versions = list[list[dict[str, Any] | None]](), {job.version for job in jobs}
        try:
            async with asyncio.timeout_at(until):
                for job in jobs:
                    version, scores = await asyncio.wrap_future(self.worker.call(partial(self._scores, job.request)))
                    versions.add(version)
                    scored += [scores] * job.request.answers
        except TimeoutError:
            raise self._late() from None
        if len(versions) > 1:
            raise Refusal(409, "prompt_logprobs: there are new weights since the answer began; expected a later try")
        return scored

    def _scores(self, request: Request) -> tuple[str | None, list[dict[str, Any] | None]]:
        """The version of the weights, and the scores of a prompt with them; in the worker's thread."""
        assert self.score is not None, "a server scores"
        prompt = request.prompt
        scores = self.score(prompt, request.adapter) if len(prompt) > 1 else []
        likely = ({str(token): {"logprob": float(one)}} for token, one in zip(prompt[1:], scores, strict=True))
        return self.worker.version, [None, *likely]

    def _late(self) -> Refusal:
        return Refusal(504, f"the answer took longer than {self.seconds:g} s; expected fewer tokens")

    async def _body(self, http: HttpRequest) -> bytes:
        """The body. Raises `Refusal`."""
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other kinds reach a server on localhost from any page in a browser
            raise Refusal(415, f"content-type: got {kind!r}; expected application/json")
        body, limit = bytearray(), self.body_bytes
        try:
            async with asyncio.timeout(self.seconds):
                async for part in http.stream():
                    body += part
                    if len(body) > limit:
                        raise Refusal(413, f"body: it is longer than {limit} bytes; expected a shorter one")
        except TimeoutError:
            raise Refusal(408, f"body: it did not come within {self.seconds:g} s; expected it sooner") from None
        return bytes(body)

    async def _coming(
        self, http: HttpRequest, pieces: asyncio.Queue[Piece], jobs: Sequence[Job], answers: int, until: float
    ) -> AsyncIterator[Piece]:
        """The pieces of all answers. Raises `Refusal` when time is up or an answer fails, `Gone` without a client."""
        gone = asyncio.ensure_future(_disconnected(http))
        try:
            while answers:
                piece = asyncio.ensure_future(pieces.get())
                left = max(0.0, until - asyncio.get_running_loop().time())
                await asyncio.wait({piece, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    piece.cancel()
                    if gone.done():
                        raise Gone
                    raise self._late()
                made = piece.result()
                if made.error is not None:
                    raise made.error
                answers -= made.finish is not None
                yield made
        finally:
            gone.cancel()
            self.worker.drop(jobs)


async def _disconnected(http: HttpRequest) -> None:
    """Returns when the client is gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _refused(refusal: Refusal) -> Response:
    headers = {"Retry-After": "1"} if refusal.status == 429 else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(refusal.body(), refusal.status, headers)


async def _no_route(http: HttpRequest, error: Exception) -> Response:
    """Paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    return _refused(
        Refusal(
            error.status_code,
            f"{http.method} {http.url.path}: {error.detail}; expected GET /v1/models, POST /v1/completions or POST "
            "/v1/chat/completions",
        )
    )
