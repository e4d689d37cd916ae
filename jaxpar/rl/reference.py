"""The model from which a penalty keeps the trained one near."""

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


class ReferenceModel:
    """The reference's weights on the devices, beside those that are trained, in the precision of the run."""

    def __init__(self, config: Config, source: Model, devices: Sequence[Device]):
        alone = Config(model=source.model, precision=config.precision, attention=config.attention)
        self._scorer = Scorer(place_on(alone, source, devices))

    def log_probabilities(self, answers: Sequence[Answer]) -> list[Float[np.ndarray, " tokens"]]:
        """The log-probability of each token of each answer."""
        scores = self._scorer.scored([[*one.prompt.tokens, *one.tokens] for one in answers])
        return [
            score.log_probabilities[-len(one.tokens) :].astype(np.float64)
            for one, score in zip(answers, scores, strict=True)
        ]
