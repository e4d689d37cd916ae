"""Answers that a server draws with the weights of a run, checked after each update of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.reading.key_file import read_key
from jaxpar.config.spelling import named
from jaxpar.generation.requests import Continuation
from jaxpar.generation.sampling import Sampling
from jaxpar.mesh.parameters import Weights
from jaxpar.rl.answers import Answer
from jaxpar.rl.prompts import Prompt, PromptRows
from jaxpar.rl.sampling.vllm import Unreachable, VLLMServer
from jaxpar.rl.sampling.weight_files import Version, write_version
from jaxpar.training.run.run import Run

NATS_TOLERANCE = {"float32": 1e-3}
"""By compute dtype, nats by which the log-probabilities of a fixed prompt may be apart, on average over its tokens."""
ROUNDED = 0.05
"""The limit of dtypes of 16 bits."""
TRIES = 4
"""The number of tries of a request whose server is gone each time."""
PAUSE = 1.0
"""Seconds between two tries to reach a server."""
REQUESTS = 64
"""Requests that are under way at the same time, at most; the server has a queue."""


class ServedGenerator:
    """Continues prompts on a server: what `Sampler` asks of a `Generator`.

    In a job of several processes, process 0 alone reaches the server: it calls `update` and `continued`, on any thread.
    All processes make one of these, and call `placed` together.

    Args:
        run: whose weights are served.
        score: the log-probabilities of the tokens of an answer with weights of the run.

    Raises:
        UserError: the server does not answer, on every process.
    """

    def __init__(self, run: Run, score: Any):
        asked = run.config.rl.sampler
        assert asked.url is not None and asked.folder is not None, "checked by the configuration"
        vocab = run.config.model.vocab
        assert vocab is not None, "a run has the vocabulary of its data"
        self._run, self._score, self._seed, self._vocab = run, score, run.config.run.seed, vocab
        self._seconds = asked.seconds
        run_on_process_0(self._connect)
        self._folder = user_path(asked.folder, "rl.sampler.folder").absolute()
        self._current: Version | None = None
        self._lock, self._starts = threading.Lock(), 0
        """The number of times that the server came back with other weights."""
        prompts = run.data.train
        assert isinstance(prompts, PromptRows), "data.source: prompts"
        longest = max(prompts.prompts, key=lambda one: len(one.tokens)).tokens
        first, *rest = longest
        self._fixed = Answer(Prompt((first,), {}), tuple(rest), np.zeros(len(rest)), ended=False)
        if not rest:
            raise UserError("rl.sampler.url: every prompt is one token, which has no log-probability to check")

    def placed(self, weights: Weights) -> Weights:
        """Weights of the run as `update` takes them: written by process 0 to a folder that nothing was in before.

        Raises:
            UserError: the folder cannot be written, or the model has no format that the server reads; on every process.
        """
        scores = self._score([self._fixed], weights)[0]
        version = write_version(self._run, weights, self._folder, scores)
        return {"version": version}  # pyright: ignore

    def update(self, weights: Weights) -> None:
        """Let the server go on with `placed` weights, and check that it does. Raises `UserError`."""
        version: Version = weights["version"]  # pyright: ignore
        if version is not self._current:
            self._current = version
            self._answered(self._load)

    def _connect(self) -> None:
        asked = self._run.config.rl.sampler
        assert asked.url is not None, "checked by the configuration"
        key = None if asked.key_file is None else read_key(asked.key_file, "rl.sampler.key_file")
        self._server = VLLMServer(asked.url, key)

    def _load(self) -> None:
        """Update the server to the current weights, and check that it has them. Raises `UserError`."""
        version = self._current
        assert version is not None, "there are weights"
        self._server.reload(str(version.folder))
        scores = self._server.scores([*self._fixed.prompt.tokens, *self._fixed.tokens])
        apart = float(np.abs(scores - version.scores).mean())
        dtype = self._run.plan.dtypes.compute
        most = NATS_TOLERANCE.get(dtype, ROUNDED)
        if not apart <= most:
            raise UserError(
                f"rl.sampler.url: after an update the server's log-probabilities of a prompt are {apart:.3g} nats a "
                f"token from the run's (at most {most:g}); expected a server of the same model in {dtype}, which reads "
                f"{named(version.folder.parent)}"
            )

    def _answered[T](self, ask: Callable[[], T]) -> T:
        """The server's answer; where it is gone, once it is back and has the weights again. Raises `UserError`."""
        for left in reversed(range(TRIES)):
            starts = self._starts
            try:
                return ask()
            except Unreachable as error:
                if not left:
                    raise
                with self._lock:
                    if starts == self._starts:  # else another thread has waited
                        self._wait(error)
                        self._starts += 1
        raise AssertionError("the last try returns or raises")

    def _wait(self, error: Unreachable) -> None:
        """Wait until the server has the weights of the moment. Raises `UserError`."""
        say = logging.getLogger(__name__).warning
        say("%s; waiting for it, up to %g s (rl.sampler.seconds)", error, self._seconds)
        began = time.monotonic()
        while True:
            try:
                self._server.connect()
                self._load()
            except Unreachable as last:
                if time.monotonic() - began > self._seconds:
                    raise UserError(f"{last}, and did not within {self._seconds:g} s (rl.sampler.seconds)") from None
                time.sleep(PAUSE)
            else:
                say("%s is back after %.0f s, with the weights of the run", self._server.url, time.monotonic() - began)
                return

    def drop_weights(self) -> None:
        """The server keeps its weights."""

    def continued(
        self, prompts: Sequence[Sequence[int]], tokens: int, *, sampling: Sampling, stop: Sequence[int],
        first_number: int = 0, answers: int = 1,
    ) -> list[Continuation]:  # fmt: skip
        """See `Generator.continued`. Draws depend on the seed and the number of the first answer to a prompt."""

        def asked(index: int) -> list[Continuation]:
            seed = np.random.SeedSequence([self._seed, first_number + index * answers]).generate_state(1)[0]
            made = self._answered(lambda: self._server.completions(
                prompts[index], vocab=self._vocab, answers=answers, tokens=tokens,
                temperature=sampling.temperature, seed=int(seed >> 1), stop=stop,
            ))  # fmt: skip
            return [_continuation(one.tokens, one.log_probabilities, one.ended) for one in made]

        with ThreadPoolExecutor(min(REQUESTS, max(1, len(prompts)))) as threads:
            return [one for some in threads.map(asked, range(len(prompts))) for one in some]


def _continuation(tokens: list[int], log_probabilities: np.ndarray, ended: bool) -> Continuation:
    """An answer without its last token where that ended it."""
    drawn = len(tokens) - ended
    ending = float(log_probabilities[-1]) if ended else None
    return Continuation(np.array(tokens[:drawn], np.int32), log_probabilities[:drawn], ended, {}, ending)
