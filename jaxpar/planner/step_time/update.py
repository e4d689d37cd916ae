"""Seconds of the update of the weights: what it reads and writes, and the matmuls of Muon."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from jaxpar.config.schema import Config, LoraConfig
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.operations import Device
from jaxpar.layers.lora import OFF, factors_of

ALWAYS = 20.0
"""Bytes per parameter of every rule: gradient and weight read in float32 (8), the weight written (4), the gradient read
once more for its norm (4), the weight written in 16 bits and read for it (4)."""
MOMENTS = {"adamw": 2, "muon": 1, "lion": 1, "adafactor": 0}
"""Arrays as large as the weight that a rule keeps; Muon's are those of its matrices. Adafactor's means of rows and
columns are small."""
MOMENT_BYTES = {"float32": 8.0, "bfloat16": 4.0, "int8": 2.0}
"""Of a moment's element, read and written."""
EMA = 8.0
"""Of a moving average of the weights."""
MASTER = 4.0
"""Bytes of a float32 master weight."""
ENDS = {"int8": "bfloat16"}
"""How embedding and head store moments, where that is another form than that of the layers' matrices
(`optim.moments.form_of`)."""


@dataclass(frozen=True)
class Update:
    """The rule by which weights are updated, as far as its time depends on it."""

    moved: float = ALWAYS + 2 * MOMENT_BYTES["float32"]
    """Bytes per parameter through the memory of the device that holds it."""
    iterations: int = 0
    """Newton-Schulz iterations of a layer's matrices."""
    iteration_bytes: int = 2
    """Bytes of a number in these, and in the messages of matrices for them."""
    lora: LoraConfig = OFF
    """The low-rank factors, if these alone are updated."""
    state: float = MASTER + MOMENT_BYTES["float32"]
    """Bytes per parameter of a layer's master weight, moments and average: on the host, what an update fetches and
    writes back."""
    ends_state: float = MASTER + MOMENT_BYTES["float32"]
    """The same of embedding and head."""
    resident: int = 0
    """Bytes of state that stay on a device whose other state is on the host: `memory.optimizer_resident`."""

    def link_seconds(self, layers: float, ends: float, bandwidth: float, coded: float = 0.0) -> float:
        """Seconds of the host's link in a step, for a device that updates so many parameters of layers and of ends.

        Both directions at once, and so what goes to the device counts: master weights before the forward, twice where
        they become codes of 8 bits (`coded`), and all of the state in the update (`training.residency.on_host`).
        """
        state = layers * self.state + ends * self.ends_state
        moved = max(0.0, state - self.resident)
        return (moved + MASTER * (layers + ends + coded) * moved / max(1.0, state)) / bandwidth


ADAMW = Update()
"""AdamW with float32 moments: what published runs are taken to use."""


def update_of(config: Config) -> Update:
    """The rule of a configuration."""
    rule = config.optimizer
    moments, averaged = config.precision.moments, rule.ema is not None
    moved = ALWAYS + MOMENTS[rule.name] * MOMENT_BYTES[moments] + EMA * averaged
    stored = lambda form, arrays: MASTER + arrays * MOMENT_BYTES[form] / 2 + EMA / 2 * averaged
    of_ends = MOMENTS["adamw"] if rule.name == "muon" else MOMENTS[rule.name]  # Muon's ends have AdamW's moments
    return Update(
        moved, rule.muon_iterations if rule.name == "muon" else 0, 4 if rule.muon_dtype == "float32" else 2,
        config.lora, stored(moments, MOMENTS[rule.name]), stored(ENDS.get(moments, moments), of_ends),
        config.memory.optimizer_resident,
    )  # fmt: skip


@lru_cache(maxsize=10_000)
def orthogonal_seconds(case: LayerCase, device: Device, iterations: int, item: int) -> float:
    """Seconds of making the matrices of a layer orthogonal on one device, in numbers of `item` bytes.

    An iteration of a matrix, with s its smaller dim and l the larger: [s, l] x [l, s], [s, s] x [s, s] and
    [s, s] x [s, l].
    """
    seconds = 0.0
    layer, lora = case.shape.layer, case.shape.lora
    matrices = [spec for part in layer.parts for spec in factors_of(part, lora)] if case.frozen else layer.matrices
    for spec in matrices:
        shape = spec.shape[spec.stack :]
        small, large = sorted((prod(shape[: spec.inputs]), prod(shape[spec.inputs :])))
        seconds += (prod(spec.shape[: spec.stack]) // (case.shape.expert if spec.stack else 1)) * (
            device.matmul(small, small, large, 1, item, item)
            + device.matmul(small, small, small, 1, item, item)
            + device.matmul(small, large, small, 1, item, item)
        )
    return iterations * seconds
