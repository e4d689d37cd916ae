"""The mapping `rl.sampler`: devices and layout of the model that draws answers, or the server that draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, RANKS, at_least


@dataclass(frozen=True)
class SamplerConfig:
    """The mesh on which answers are drawn. Without any of these it is that of the training step, in turns with it."""

    devices: Annotated[int, at_least(1, RANKS)] | None = None
    """So many devices, the last ones, draw answers and do nothing else; `parallel` lays out the others. Under
    `rl.mode: one_step_off` and `async` both work at the same time. Null takes turns on the devices of `parallel`."""
    fsdp: Annotated[int, at_least(1, RANKS)] | None = None
    """Devices with rows of their own and all weights of their tensor rank; null takes those that the others leave."""
    expert: Annotated[int, at_least(1, RANKS)] = 1
    """Devices that split the experts, and rows."""
    context: Annotated[int, at_least(1, RANKS)] = 1
    """Devices that split the tokens of a row."""
    tensor: Annotated[int, at_least(1, RANKS)] = 1
    """Devices that split matrices and heads."""
    url: str | None = None
    """Address of a server that draws the answers, `python -m jaxpar.serve` or vLLM, as in `http://127.0.0.1:8000`; it
    takes none of the devices above. Null draws here."""
    folder: str | None = None
    """Folder that this machine and the server of `url` have at the same path: weights go there as
    `model.safetensors`, and the server reads them."""
    key_file: str | None = None
    """File with the key that the server of `url` asks for."""
    seconds: Annotated[float, POSITIVE] = 600.0
    """Seconds to wait for a server of `url` that does not answer. One that comes back gets the weights
    of the moment, and draws again what it had not answered."""
