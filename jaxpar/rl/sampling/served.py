"""Answers that a server draws with the weights of a run, checked after each update of them."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import jax
import numpy as np

from jaxpar.config import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.paths import user_path
from jaxpar.config.reading.key_file import read_key
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named
from jaxpar.generation.requests import Continuation
from jaxpar.generation.sampling import Sampling
from jaxpar.interop.config_json import family_for
from jaxpar.interop.conversion.export import DTYPE_NAMES, Export
from jaxpar.interop.conversion.tokenizer_files import TokenizerFiles
from jaxpar.interop.mapping.family import tensors_of
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX
from jaxpar.interop.sources.full_matrices import full_matrix_model
from jaxpar.interop.sources.open_source import origin_of
from jaxpar.mesh.parameters import Weights
from jaxpar.rl.answers import Answer
from jaxpar.rl.prompts import Prompt, PromptRows
from jaxpar.rl.sampling.vllm import Unreachable, VLLMServer
from jaxpar.training.named_weights import NamedWeights
from jaxpar.training.run.run import Run

SHARD_BYTES = 5 * 10**9
"""Bytes of a file of weights, at most."""
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


@dataclass(frozen=True, eq=False)
class Version:
    """Weights on disk, for as long as anything may ask for them."""

    folder: Path
    scores: np.ndarray
    """Log-probabilities of the fixed prompt."""

    def __post_init__(self) -> None:
        finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class ServedGenerator:
    """Continues prompts on a server: what `Sampler` asks of a `Generator`.

    Args:
        run: whose weights are served.
        score: the log-probabilities of the tokens of an answer with weights of the run.

    Raises:
        UserError: the server does not answer, the folder cannot be written, the model has no format that the server
            reads, or the job has several processes.
    """

    def __init__(self, run: Run, score: Any):
        asked = run.config.rl.sampler
        assert asked.url is not None and asked.folder is not None, "checked by the configuration"
        if jax.process_count() > 1:
            raise UserError("rl.sampler.url: expected a job of one process")
        vocab = run.config.model.vocab
        assert vocab is not None, "a run has the vocabulary of its data"
        self._run, self._score, self._seed, self._vocab = run, score, run.config.run.seed, vocab
        key = None if asked.key_file is None else read_key(asked.key_file, "rl.sampler.key_file")
        self._server, self._seconds = VLLMServer(asked.url, key), asked.seconds
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
        """Weights of the run as `update` takes them: written to a folder that nothing was in before."""
        scores = self._score([self._fixed], weights)[0]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            version = Version(Path(tempfile.mkdtemp(dir=self._folder, prefix=f"{self._run.config.run.name}-")), scores)
            version.folder.chmod(self._folder.stat().st_mode & 0o755)  # the server may be another user
            _export(self._run, weights).write_weights(version.folder, SHARD_BYTES)
        except OSError as error:
            raise UserError(
                f"rl.sampler.folder: {named(self._folder)} cannot be written ({error.strerror or error})"
            ) from error
        return {"version": version}  # pyright: ignore

    def update(self, weights: Weights) -> None:
        """Let the server go on with `placed` weights, and check that it does. Raises `UserError`."""
        version: Version = weights["version"]  # pyright: ignore
        if version is not self._current:
            self._current = version
            self._answered(self._load)

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


class RunWeights:
    """Weights of a run, read by name as `WeightSource` has them; the host keeps one copy in float32."""

    def __init__(self, run: Run, weights: Weights):
        self.model: ModelConfig = run.config.model
        self._weights = NamedWeights(weights, run.layout)
        self._read: dict[str, np.ndarray] = {}

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        """See `WeightSource`."""
        if layers is None:
            return self._named(weight)[region]
        kinds = layer_kinds(self.model)
        rows = [(kinds[layer], kinds[:layer].count(kinds[layer])) for layer in layers]
        of_kind = lambda kind: self._named(f"{LAYER_PREFIX}{kind}.{weight.removeprefix(LAYER_PREFIX)}")
        return np.stack([of_kind(kind)[row][region] for kind, row in rows])

    def _named(self, name: str) -> np.ndarray:
        if name not in self._read:
            self._read[name] = self._weights[name]
        return self._read[name]


def _export(run: Run, weights: Weights) -> Export:
    """The files of weights, in the compute dtype of the run. Raises `UserError` for a model without a format."""
    model, dtype = full_matrix_model(run.config.model), DTYPE_NAMES[run.plan.dtypes.compute]
    origin = None if run.models.first is None else origin_of(run.models.first, lambda _: None)
    family = family_for(model) if origin is None else origin.family
    tensors = tensors_of(family, model)
    source: Any = RunWeights(run, weights)
    dtypes = {one.name: dtype for one in tensors}
    return Export(source, family, tensors, dtypes, {}, None, TokenizerFiles(None, None))


def _continuation(tokens: list[int], log_probabilities: np.ndarray, ended: bool) -> Continuation:
    """An answer without its last token where that ended it."""
    drawn = len(tokens) - ended
    ending = float(log_probabilities[-1]) if ended else None
    return Continuation(np.array(tokens[:drawn], np.int32), log_probabilities[:drawn], ended, {}, ending)
