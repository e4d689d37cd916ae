"""Kernels refuse what they do not compute, with the reason; a registry then takes plain XLA."""

from dataclasses import replace
from typing import Any

import pytest

from pallas_kernels.attention.registry import REGISTRY as ATTENTION
from pallas_kernels.attention.request import Request
from pallas_kernels.choice import Registry, Unsupported
from pallas_kernels.choice import Request as AnyRequest
from pallas_kernels.grouped_matmul.registry import REGISTRY as GROUPED
from pallas_kernels.grouped_matmul.request import Request as GroupedRequest
from pallas_kernels.linear_attention.registry import REGISTRY as LINEAR
from pallas_kernels.linear_attention.request import Request as LinearRequest
from pallas_kernels.masks import Mask
from pallas_kernels.tiled_matmul.registry import REGISTRY as TILED
from pallas_kernels.tiled_matmul.request import Request as TiledRequest
from tests.sentences import refused

GPU: dict[str, Any] = {
    "platform": "gpu", "dtype": "bfloat16", "compute_capability": 9.0, "gpu": "NVIDIA H200", "processors": 132,
}  # fmt: skip
E4M3 = "float8_e4m3fn"
WIDE = Request(8, 2, 128, 128, Mask(segmented=True), batch=1, queries=4096, keys=4096, **GPU)
PACKED = replace(WIDE, queries=8192, keys=8192, runs=True, compares=True)
ROWS = GroupedRequest(4096, 16, 2048, 1408, **GPU)
CHUNKS = LinearRequest(64, 16, 64, 128, 128, True, **GPU)
DENSE = TiledRequest((E4M3, E4M3), 256, 256, 256, 128, **GPU)
OF_GROUPS = replace(DENSE, groups=4)
OF_WEIGHTS = replace(OF_GROUPS, squares=False, of="weights")

CPU = {"platform": "cpu", "compute_capability": None}, "it needs an NVIDIA GPU, and the platform is cpu"
AMPERE = {"compute_capability": 8.0}, "it needs compute capability 9.0 (Hopper), and the GPU has 8.0"
TURING = {"compute_capability": 7.5}, "it needs compute capability 8.0 (Ampere), and the GPU has 7.5"
FLOAT32 = {"dtype": "float32"}, "it computes in bfloat16 or float16, not float32"
NOT_FLOAT32 = {"dtype": "float32"}, "it computes in bfloat16, not float32"
COUNTED = "2^31 - 1"

REFUSED: dict[str, tuple[Registry[Any], AnyRequest, list[tuple[dict[str, Any], str]]]] = {
    "mosaic attention": (ATTENTION, WIDE, [
        CPU, AMPERE, FLOAT32,
        ({"width": 80, "value_width": 80}, "width of 64, 96, 128, 192/128, 256, not 80/80"),
        ({"scale": -1.0}, "scale of the scores above 0, not -1"),
        ({"queries": 2**22}, "2^31 - 1 elements"),
    ]),
    "triton attention": (ATTENTION, WIDE, [
        TURING, FLOAT32,
        ({"width": 100, "value_width": 100}, "64, 96, 128, 192/128, 256, not 100/100"),
        ({"batch": 64, "queries": 2**16}, "at most 2^31 - 1 elements, not 4,294,967,296"),
    ]),
    "cudnn packed": (ATTENTION, PACKED, [
        ({"compute_capability": 8.0}, "Hopper"),
        ({"runs": False}, "neighbours"),
        ({"lse": True}, "log-sum-exp"),
        ({"full_rows": False}, "parts of a row"),
        ({"mask": Mask(causal=False, segmented=True)}, "causal"),
        ({"queries": 2**18, "keys": 2**18}, "it needs 4"),
        ({"queries": 2**22, "keys": 2**22}, "32-bit"),
        ({"softcap": 30.0}, "soft-cap"),
        *(({"scale": scale}, f"a scale of the scores above 0 alone, not {scale:g}") for scale in (0.0, -0.5)),
    ]),
    "mosaic grouped": (GROUPED, ROWS, [
        CPU, FLOAT32,
        *(({"compute_capability": old}, f"9.0 (Hopper) or 10.0 (Blackwell), and the GPU has {old}")
          for old in (8.0, 12.0)),
        ({"k": 2056}, "multiples of 64, not 2056 x 1408"),
        ({"m": 2**22}, COUNTED),
    ]),
    "triton grouped": (GROUPED, ROWS, [CPU, TURING, FLOAT32, ({"m": 2**22}, COUNTED)]),
    "mosaic linear": (LINEAR, CHUNKS, [
        CPU, AMPERE, NOT_FLOAT32,
        ({"key": 96}, "64, 128, 192 or 256 dims, not 96"),
        ({"value": 96}, "a multiple of 64 dims, not 96"),
        ({"size": 32}, "64 tokens, not 32"),
        ({"chunks": 2**17}, COUNTED),
    ]),
    "mosaic dense tiles": (TILED, DENSE, [
        CPU, AMPERE,
        ({"dtype": "float16"}, "bfloat16 or float32, not float16"),
        ({"m": 192}, "multiples of 128"),
        ({"n": 192}, "multiples of 128"),
        ({"tile": 32}, "tiles of 128"),
        ({"m": 2**20, "n": 2**12}, COUNTED),
    ]),
    "mosaic tiles of groups": (TILED, OF_GROUPS, [
        CPU, AMPERE, NOT_FLOAT32,
        ({"n": 192}, "multiples of 128"),
        ({"tile": 32}, "squares of 128"),
        ({"squares": False}, "squares of 128"),
        ({"m": 2**20, "n": 2**12}, COUNTED),
    ]),
    "mosaic tiles of weights": (TILED, OF_WEIGHTS, [
        NOT_FLOAT32, ({"k": 192}, "multiples of 128"), ({"tile": 32}, "tiles of 128"),
    ]),
}  # fmt: skip
"""By the implementation's name and what it does: its registry, a request that it supports, and changes of it."""
SUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("mosaic attention", {"width": 192}),
    ("mosaic grouped", {"compute_capability": 10.0, "gpu": "NVIDIA B200", "processors": 148}),
    ("triton grouped", {"compute_capability": 8.0, "k": 2056}),
]


@pytest.mark.parametrize(
    ("name", "change", "reason"), [(name, *row) for name, (_, _, rows) in REFUSED.items() for row in rows]
)
def test_what_a_kernel_does_not_compute_is_refused_with_the_reason(
    name: str, change: dict[str, Any], reason: str
) -> None:
    (registry, request, _), implementation = REFUSED[name], name.split()[0]
    assert registry[implementation].supports(request) is None
    asked = replace(request, **change)
    with refused(f"'{implementation}'", reason, error=Unsupported):
        registry.choose(implementation, asked)
    chosen = registry.choose("auto", asked)
    assert chosen.name == "xla" and chosen.rejected[implementation] == registry[implementation].supports(asked)


@pytest.mark.parametrize(("name", "change"), SUPPORTED)
def test_what_a_kernel_computes_besides(name: str, change: dict[str, Any]) -> None:
    registry, request, _ = REFUSED[name]
    assert registry.choose(name.split()[0], replace(request, **change)).name == name.split()[0]
