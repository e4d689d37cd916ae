"""What layers report in addition to their output."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

type Report = Mapping[str, Float[Array, ""]]
"""By name: this rank's part of a sum over the tokens of a microbatch that do not pad a row, whatever the loss mask. The
step adds it up over layers, microbatches and all ranks, and divides by the number of these tokens in the batch. Of a
value that tensor ranks have in common each must report its share, or it is counted once per rank."""

type Output = tuple[jax.Array, Report]
"""The output of a layer: the residual stream, and its report."""
