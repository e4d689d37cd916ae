"""The mapping `precision.matmul_options`: what runs in `precision.matmul`, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from jaxpar.config.bounds import LAYERS, at_least

OF_TILES = ("fp8_block", "mxfp8")
"""Recipes with scales of tiles."""
WITH_HISTORY = ("fp8_delayed",)
"""Recipes with scales from earlier steps."""


@dataclass(frozen=True)
class MatmulOptions:
    """Exceptions and other options of `precision.matmul`."""

    exclude: tuple[str, ...] = ("head", "router", "attention_out")
    """Groups of matmuls that stay in the compute dtype (`attention_in`, `attention_out`, `mlp_in`, `mlp_out`; of latent
    attention also `attention_down` and `attention_up`; of shared experts `shared_in` and `shared_out`, of routed ones
    `experts_in` and `experts_out`). `head` and `router` may be named, and are excluded in any case."""
    first_layers: Annotated[int, at_least(0, LAYERS)] = 1
    """Layers at the beginning of the model that stay in the compute dtype."""
    last_layers: Annotated[int, at_least(0, LAYERS)] = 1
    """Layers at its end that do."""
    history: Annotated[int, at_least(1, 1024)] = 16
    """Steps of which `fp8_delayed` remembers the largest magnitudes."""
    backend: Literal["auto", "mosaic", "cudnn", "xla"] = "auto"
    """Kernel of products with scales of tiles, and of those of routed experts: `mosaic` is a kernel for Hopper GPUs
    (`fp8_block`; of experts also `fp8_current` and `fp8_delayed`), `cudnn` the units of Blackwell GPUs (`mxfp8`), and
    `xla` multiplies in bfloat16; `auto` takes the first that runs, the kernel on GPUs where it was verified
    (`docs/kernels.md`)."""
