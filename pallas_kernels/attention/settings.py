"""The arguments of every implementation of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels.masks import Mask


@dataclass(frozen=True)
class Settings:
    """Static arguments of attention under jit."""

    mask: Mask
    scale: float
    softcap: float | None = None
    query_block: int = 512
    """Queries that the plain JAX form holds at a time; kernels have tiles of their own."""
    kv_block: int = 512
    """Keys that the plain JAX form holds at a time."""
    run: int | None = None
    """Length of the runs of neighbouring indices that queries and keys are made of; None where they are one run."""
    neighbours: bool = False
    """Queries are one run of neighbouring indices, and so are keys: indices grow by one from token to token. What a
    tile visits is then an interval of blocks: Triton's kernels make no list of them, Mosaic's one without sorting."""
    results: Literal["float32", "inputs"] = "float32"
    """Dtype of output and gradients: what parts are merged and summed in, or that of the inputs. The former is allowed
    where the latter is asked for."""
    interpret: bool = False
    """Run kernels in Pallas' interpreter: slow, on any platform, for tests."""

    def result_dtype(self, x: jax.Array) -> jnp.dtype:
        """The dtype of a result of attention over arrays like `x`."""
        return jnp.dtype(jnp.float32) if self.results == "float32" else x.dtype


class MaskInputs(NamedTuple):
    """The arrays that decide the mask (see `pallas_kernels.masks`)."""

    q_indices: Int[Array, "batch queries"]
    kv_indices: Int[Array, "batch keys"]
    q_segments: Int[Array, "batch queries"] | None = None
    kv_segments: Int[Array, "batch keys"] | None = None
    prefix_lengths: Int[Array, " batch"] | None = None
