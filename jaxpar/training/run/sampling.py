"""The sample at the end of a run."""

from __future__ import annotations

import numpy as np

from jaxpar.data import prompt
from jaxpar.generation.sampling import Sampling
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.training.run.continuing import generator_of
from jaxpar.training.run.run import Run

TEMPERATURE = 0.7
"""Temperature of the sample at the end of a run."""


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


def sample_heldout(trainer: Run) -> tuple[str, str]:
    """The beginning of a held-out document and the model's continuation, as text; token ids where there is no text."""
    assert trainer.data.heldout is not None, "a sample continues a held-out document"
    evaluation = trainer.config.evaluation
    start = prompt(trainer.data.heldout.stream, trainer.config.data.sequence_length // 2)
    more = continue_tokens(trainer, start, evaluation.sample_tokens, TEMPERATURE)
    decode = trainer.data.decode or (lambda tokens: " ".join(str(token) for token in tokens))
    return decode(start), decode(more)
