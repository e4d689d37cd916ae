"""Text from a run as it is now: prompts continued with its weights, on its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from jaxpar.config import Config, ParallelConfig, UserError
from jaxpar.config.spelling import quoted
from jaxpar.data import prompt as validation_prompt
from jaxpar.generation.generator import SLOTS, Generator
from jaxpar.generation.joined_stages import ZERO, joined_mesh, joined_weights
from jaxpar.generation.requests import Continuation
from jaxpar.generation.sampling import Sampling
from jaxpar.generation.text import Stop
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.mesh.parameters import Weights
from jaxpar.training.run.run import Run

type Prompt = str | Sequence[int]
TEMPERATURE = 0.7
"""Temperature of the sample at the end of a run."""


@dataclass(frozen=True)
class Generated:
    """Text that a model adds to a prompt."""

    text: str | None
    """Without the prompt; None where the data has no text."""
    tokens: Int[np.ndarray, " tokens"]
    """Without the prompt, and without the token that ended it."""
    log_probabilities: np.ndarray
    """Log-probabilities of `tokens`, in nats, by the model itself: without filters, at temperature 1 or, under
    `Sampling.tempered`, at that of the draws."""
    ended: bool
    """Whether the end of a document or a stop string ended it; else the limit of tokens did."""


def encoded(run: Run, prompts: Prompt | Sequence[Prompt], special_tokens: bool) -> list[list[int]]:
    """Prompts as tokens; one alone is a list of one.

    Raises `UserError` for a text where the data has none, and where there is no prompt.
    """
    alone = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | np.integer))
    every: Sequence[Prompt] = [prompts] if alone else prompts  # pyright: ignore[reportAssignmentType]
    if not every:
        raise UserError("prompts: there is none; expected a text, token ids, or a list of them")
    token_lists = []
    for prompt in every:
        if not isinstance(prompt, str):
            token_lists.append([int(token) for token in prompt])
        elif run.data.encode_start is None:
            raise UserError(
                f"prompts: got a text, and data.source={run.config.data.source} has none; expected token ids"
            )
        else:
            token_lists.append(run.data.encode_start(prompt, special_tokens=special_tokens))
    return token_lists


def generator_of(run: Run, seed: int, slots: int = SLOTS) -> Generator:
    """A generator with the weights of a run, on its mesh; for `slots` see `Generator`.

    A pipeline generates on a mesh of the same devices whose fsdp axis takes those of the pipe axis too: no device or
    host gathers more than a matrix of a layer at a time.
    """
    config, weights = generated_with(run, run.evaluated_weights())
    if run.plan.axes.pipe == 1:
        return Generator(config, run.mesh, weights, zero=config.parallel.zero, seed=seed, slots=slots)
    return Generator(config, joined_mesh(run.mesh), weights, zero=ZERO, seed=seed, slots=slots)


def generated_with(run: Run, weights: Weights) -> tuple[Config, Weights]:
    """The configuration of a run's generator, and weights of the run as it takes them."""
    config = config_of_generator(run)
    return config, weights if run.plan.axes.pipe == 1 else joined_weights(weights, run.layout, run.mesh, config)


def config_of_generator(run: Run) -> Config:
    """The configuration of a run's generator."""
    if run.plan.axes.pipe == 1:
        return run.config
    return replace(run.config, parallel=without_stages(run.config.parallel, dict(joined_mesh(run.mesh).shape)))


def without_stages(parallel: ParallelConfig, axes: Mapping[str, int]) -> ParallelConfig:
    """A layout with other axes, of which pipe is 1."""
    return replace(
        parallel, **axes, schedule="auto", virtual_stages=None, stage_layers=None, pipe_ends="last",
    )  # fmt: skip


def check_stop(run: Run, stop: Sequence[str]) -> None:
    """Raise `UserError` for stop strings where the data has no text, or one in place of a list of them."""
    if isinstance(stop, str):
        raise UserError(f"stop: expected a list of texts, got {quoted(stop, 80)}")
    if stop and run.data.decode is None:
        raise UserError(f"stop: expected none, since data.source={run.config.data.source} has no text")


def continued(
    run: Run, prompts: list[list[int]], tokens: int, sampling: Sampling, seed: int, stop: Sequence[str]
) -> list[Generated]:
    """Prompts continued; the end of a document ends a text, as each of `stop` does."""
    decode = run.data.decode
    end_tokens = [] if run.data.separator is None else [run.data.separator]
    stops = [Stop(decode or _no_text, stop) for _ in prompts]
    on_token: Callable[[int, int], bool] | None = None
    if stop:
        on_token = lambda row, token: stops[row].add_token(token)
    generator = generator_of(run, seed)
    continuations = generator.continued(prompts, tokens, sampling=sampling, stop=end_tokens, on_token=on_token)

    def result(one: Continuation, text: Stop) -> Generated:
        words = None if decode is None else text.text if stop else decode(one.tokens)
        return Generated(words, one.tokens, one.log_probabilities, one.ended)

    return [result(one, text) for one, text in zip(continuations, stops, strict=True)]


def _no_text(_: Sequence[int]) -> str:
    raise AssertionError("stop strings are refused where there is no text")


def continue_tokens(trainer: Run, start: np.ndarray, tokens: int, temperature: float) -> np.ndarray:
    """Up to `tokens` tokens after `start`, [tokens]; ends early at the end of the document.

    No token sees more than the model's sequence length before it. Temperature 0 takes the likeliest token; otherwise
    the draw is seeded by `run.seed`, and is the same on all processes.
    """
    refuse_without_batches(trainer.config.model, "a sample")
    length = trainer.config.data.sequence_length
    stop = [] if trainer.data.separator is None else [trainer.data.separator]
    generator = generator_of(trainer, trainer.config.run.seed)
    sampling = Sampling(temperature=temperature)
    text, ended = [int(token) for token in start], False
    while not ended and len(text) < len(start) + tokens:
        # A row that is full goes on from its second half.
        window = text if len(text) < length else text[-max(1, length // 2) :]
        room = min(length - len(window), len(start) + tokens - len(text))
        (more,) = generator.continued([window], room, sampling=sampling, stop=stop, first_number=len(text))
        text, ended = [*text, *more.tokens.tolist()], more.ended
    return np.array(text[len(start) :], np.int32)


def sample_validation(trainer: Run) -> tuple[str, str]:
    """The beginning of a validation document and the model's continuation: text, or token ids if there is no text."""
    assert trainer.data.validation is not None, "a sample continues a validation document"
    evaluation = trainer.config.evaluation
    start = validation_prompt(trainer.data.validation.stream, trainer.config.data.sequence_length // 2)
    more = continue_tokens(trainer, start, evaluation.sample_tokens, TEMPERATURE)
    decode = trainer.data.decode or (lambda tokens: " ".join(str(token) for token in tokens))
    return decode(start), decode(more)
