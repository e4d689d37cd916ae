"""Norms of heads before the rotary embedding cost what they move."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.layer import LayerTime, layer_time
from jaxpar.cost.layer_case import layer_case
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.units import MIB

HOST = parse_cluster("h100:1x8")
HARDWARE = hardware_of(HOST.gpu)
DEVICE = device_of(HOST.gpu, HARDWARE)
LLAMA = PRESETS["llama3-8b"]


def time(qk_norm: Any) -> LayerTime:
    model = replace(LLAMA, qk_norm=qk_norm)
    case = layer_case(model, 8192, 1, 1, 1, "allgather", "bfloat16", attention="mosaic")
    return layer_time(case, DEVICE, network_of(HOST, HARDWARE))


def mebibytes(seconds: float) -> float:
    """Bytes that memory-bound work moves in so many seconds."""
    return seconds / DEVICE.bytes_seconds(1.0) / MIB


def test_norms_of_queries_move_what_their_passes_do():
    """Passes of the compiled program, queries 64 MiB and keys 16 MiB. Forward 64 + 128 + 132 + 64. Backward 846,
    without the half of the rounding of attention's gradient that XLA reads, 64. Without norms, 4 passes of each."""
    normed, plain = time(True), time(False)
    forward, backward = (
        64 / 80 * mebibytes(getattr(normed, way).other - getattr(plain, way).other) for way in ("forward", "backward")
    )
    assert 256 + forward == pytest.approx(388, rel=0.02)
    assert 256 + backward == pytest.approx(846 - 64, rel=0.20)
