"""Cross-entropy of masked tokens (BERT, arXiv:1810.04805), whose rows are of `jaxpar.data.masked`."""

from __future__ import annotations

from jaxpar.config.schema import Config
from jaxpar.objectives.tokens import CrossEntropy


class MaskedTokens(CrossEntropy):
    """The negative log-likelihood of each token that is drawn, at its position."""

    def __init__(self, config: Config):
        super().__init__(config)
        loss = config.loss
        self.description = f"{loss.rate:.0%} of the tokens, of which four fifths are token {loss.mask_token}"
