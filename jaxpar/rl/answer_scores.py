"""Log-probabilities of answers under other weights: those of the penalty's reference, and those before an update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxpar.config import Config
from jaxpar.distributed.devices import Device
from jaxpar.generation.placed_model import place_on
from jaxpar.generation.scorer import Scorer
from jaxpar.interop.sources.open_source import Model
from jaxpar.rl.answers import Answer


def reference_config(config: Config, source: Model) -> Config:
    """The configuration of the reference of a run, in the run's precision."""
    return Config(model=source.model, precision=config.precision, attention=config.attention)


def reference_scorer(config: Config, source: Model, devices: Sequence[Device]) -> Scorer:
    """A scorer with the reference's weights on the devices, beside those that are trained."""
    return Scorer(place_on(reference_config(config, source), source, devices), config.rl.temperature)


def answer_scores(scorer: Scorer, answers: Sequence[Answer]) -> list[Float[np.ndarray, " tokens"]]:
    """The log-probability of each token of each answer."""
    scores = scorer.scored([[*one.prompt.tokens, *one.tokens] for one in answers])
    return [
        score.log_probabilities[-len(one.tokens) :].astype(np.float64)
        for one, score in zip(answers, scores, strict=True)
    ]
