"""`jaxpar.train` with a mixer that forgets: gated DeltaNet, each of whose tokens is a document by itself.

    python -m benchmarks.hybrid.forgetful --config configs/quickstart_hybrid.yaml \
        --set 'model.kinds={state: {mixer: forgetful}, full: {}}'

Its state and its convolutions begin anew with each token, so no token sees another one, and it has the weights and the
work of gated DeltaNet. What a hybrid learns beyond this, it learns from what its states remember.
"""

from __future__ import annotations

import sys

import jax

from jaxpar import train
from jaxpar.config.parts import MIXERS
from jaxpar.layers.block import Context
from jaxpar.layers.linear_attention.gated_deltanet import GatedDeltaNet
from jaxpar.layers.ops.plain import Ops
from jaxpar.runtime.passes import Output

NAME, ENTRY = "forgetful", "benchmarks.hybrid.forgetful:Forgetful"


class Forgetful(GatedDeltaNet):
    """Gated DeltaNet without a past; it does not generate."""

    def __call__(self, x: jax.Array, context: Context, ops: Ops) -> Output:
        tokens = context.tokens
        alone = tokens._replace(segments=tokens.indices + 1, row_segments=tokens.row_indices + 1)
        return super().__call__(x, context._replace(tokens=alone), ops)


if __name__ == "__main__":
    MIXERS[NAME] = ENTRY
    sys.exit(train.main())
