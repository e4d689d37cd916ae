"""Seconds of the update of the weights: what it reads and writes, and the matmuls of rules that see matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Annotated

from jaxpar.config.kinds import kind_models
from jaxpar.config.reading.options import matrix_dtype
from jaxpar.config.schema import Config, LoraConfig, OptimizerConfig
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.operations import Device
from jaxpar.hardware.sources import derived
from jaxpar.layers.adapters import factors_of
from jaxpar.layers.declaration.adaptation import OFF
from jaxpar.layers.declaration.part import Layer
from jaxpar.layers.declared import declare_layer
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.optimizer import rule_of
from jaxpar.optim.rule import RuleRequest

ALWAYS: Annotated[float, derived("passes of the update, below")] = 20.0
"""Bytes per parameter of every rule: gradient and weight read in float32 (8), the weight written (4), the gradient read
once more for its norm (4), the weight written in 16 bits and read for it (4)."""
MOMENTS: Annotated[float, derived("two of float32")] = 8.0
"""Bytes per parameter of AdamW's two moments in float32."""
EMA: Annotated[float, derived("float32 read and written")] = 8.0
"""Bytes per parameter of a moving average of the weights."""
MASTER: Annotated[float, derived("float32")] = 4.0
"""Bytes of a float32 master weight."""


@dataclass(frozen=True)
class Update:
    """The rule by which weights are updated, as far as its time depends on it."""

    moved: float = ALWAYS + 2 * MOMENTS
    """Bytes per parameter through the memory of the device that holds it."""
    matrices: OptimizerConfig | None = None
    """The optimizer, if its rule multiplies the layers' matrices."""
    matrix_bytes: int = 2
    """Bytes of a number in these matmuls, and in the messages of matrices for them."""
    lora: LoraConfig = OFF
    """The low-rank factors, if these alone are updated."""
    state: float = MASTER + MOMENTS
    """Bytes per parameter of a layer's master weight, moments and average: on the host, what an update fetches and
    writes back."""
    embed_and_head_state: float = MASTER + MOMENTS
    """The same of embedding and head."""

    def link_seconds(self, layers: float, embed_and_head: float, bandwidth: float, quantized: float = 0.0) -> float:
        """Seconds of the host's link in a step, for a device that updates so many parameters of layers, and of
        embedding and head.

        Both directions at once, and so what goes to the device counts: master weights before the forward, twice where
        they become codes of 8 bits (`quantized`), and all of the state in the update (`training.residency.on_host`).
        """
        state = layers * self.state + embed_and_head * self.embed_and_head_state
        return (state + MASTER * (layers + embed_and_head + quantized)) / bandwidth


ADAMW = Update()
"""AdamW with float32 moments: what published runs are taken to use."""


def update_of(config: Config) -> Update:
    """The rule of a configuration."""
    optimizer, model = config.optimizer, config.model
    layers = [declare_layer(one) for one in kind_models(model).values()]
    matrices = [spec for layer in layers for spec in _trained(layer, config.lora)]
    table = ParamSpec((model.embed, model.embed), ("vocab", "embed"), decay=True)
    state_bytes, embed_and_head_bytes = _state_bytes(config, matrices), _state_bytes(config, [table])
    averaged = EMA / 2 * (optimizer.ema is not None)
    multiplies = any(rule_of(RuleRequest(optimizer, spec)).matmuls for spec in matrices)
    return Update(
        ALWAYS + 2 * (state_bytes + averaged), optimizer if multiplies else None,
        4 if matrix_dtype(optimizer) == "float32" else 2, config.lora, MASTER + state_bytes + averaged,
        MASTER + embed_and_head_bytes + averaged,
    )  # fmt: skip


def _trained(layer: Layer, lora: LoraConfig) -> list[ParamSpec]:
    """The trained matrices of a layer, stacked."""
    specs = layer.matrices if lora.rank is None else [spec for part in layer.parts for spec in factors_of(part, lora)]
    return [spec.stacked(1) for spec in specs]


def _state_bytes(config: Config, specs: Sequence[ParamSpec]) -> float:
    """Bytes of the state of weights per parameter."""
    request = RuleRequest(config.optimizer, specs[0], config.precision.moments)
    rules = [(spec, rule_of(request._replace(spec=spec))) for spec in specs]
    state_bytes = sum(array.local_bytes(spec, spec.shape) for spec, rule in rules for array in rule.state.values())
    return state_bytes / sum(spec.size for spec in specs)


@lru_cache(maxsize=10_000)
def matrix_seconds(case: LayerCase, device: Device, optimizer: OptimizerConfig, item: int) -> float:
    """Seconds of the matmuls in the update of a layer's matrices on one device, in numbers of `item` bytes."""
    seconds = 0.0
    for spec in _trained(case.shape.layer, case.shape.lora if case.frozen else OFF):
        matrices = prod(spec.shape[: spec.stack]) // (case.shape.expert if spec.stack > 1 else 1)
        for times, rows, columns, summed in rule_of(RuleRequest(optimizer, spec)).matmuls:
            seconds += matrices * times * device.matmul(rows, columns, summed, 1, item, item)
    return seconds
