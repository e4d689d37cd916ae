"""The share of its datasheet that a GPU reaches: a dozen numbers per kind, the same for all systems that run on it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, get_type_hints

from jaxpar.cost.tables import NOTHING, Tables
from jaxpar.hardware.catalogue import GPU, gpu_named
from jaxpar.hardware.sources import Source, assumed, cited, measured

PUBLISHED = measured("benchmarks/validation/data/published.csv, fitted once to all sources")
COLLECTIVES = measured("benchmarks/validation/data/collectives.csv: collectives measured alone")
FOR_HOPPER = cited("NVIDIA's table for cuDNN 9: 640 TFLOP/s at 8k")
UNITS = cited("NVIDIA's datasheets")
SPECIAL = cited("16 a clock and multiprocessor at the highest clock rate: NVIDIA's whitepapers")


@dataclass(frozen=True)
class HardwareModel:
    """The speeds that a kind of GPU reaches. Each has its unit, its meaning and its source."""

    matmul_share: Annotated[float, ("of the dense 16-bit peak", "large matmuls reach"), PUBLISHED]
    matmul_ramp: Annotated[
        float, ("of the inner dimension", "a tile's start and end cost as much as this many steps"), PUBLISHED
    ]
    float8_share: Annotated[float, ("of the dense float8 peak", "large float8 matmuls reach"), PUBLISHED]
    attention_share: Annotated[float, ("of the dense 16-bit peak", "matmuls inside FlashAttention-2 reach"), PUBLISHED]
    memory_share: Annotated[float, ("of the peak bandwidth", "elementwise kernels reach"), PUBLISHED]
    node_share: Annotated[float, ("of the link inside a host", "large collectives reach in a host"), COLLECTIVES]
    network_share: Annotated[
        float, ("of the link between hosts", "large collectives reach between two hosts"), COLLECTIVES
    ]
    network_decline: Annotated[float, ("per doubling", "collectives lose with each doubling of two hosts"), COLLECTIVES]
    message_seconds: Annotated[float, ("s", "a collective takes before it sends anything"), COLLECTIVES]
    overlap_slowdown: Annotated[float, ("s per s", "compute loses for each second of a message beside it"), PUBLISHED]
    host_jitter: Annotated[float, ("of the step", "waiting for the slowest, per doubling of hosts"), PUBLISHED]
    attention_native_share: Annotated[
        float, ("of the dense 16-bit peak", "the same in kernels written for Hopper"), FOR_HOPPER
    ] = 0.78
    multiprocessors: Annotated[int, ("", "streaming multiprocessors"), UNITS] = 132
    exponentials: Annotated[float, ("1/s", "exponentials"), SPECIAL] = 3.9e12
    measured: Tables = NOTHING
    """Times that were measured on the machine: near them, shares do not matter."""


AMPERE = HardwareModel(
    matmul_share=0.787, matmul_ramp=131.0, float8_share=0.0, attention_share=0.849, memory_share=0.73, node_share=0.74,
    network_share=0.9, network_decline=0.05, message_seconds=3.4e-5, overlap_slowdown=0.0614, host_jitter=0.00417,
    multiprocessors=108, exponentials=16 * 108 * 1.41e9,
)  # fmt: skip
"""All kinds have its `matmul_ramp` and `memory_share`, and its shares of links and of waiting."""
HOPPER = replace(
    AMPERE, matmul_share=0.584, float8_share=0.486, attention_share=0.514,
    multiprocessors=132, exponentials=16 * 132 * 1.755e9,
)  # fmt: skip
VOLTA = replace(AMPERE, multiprocessors=80, exponentials=16 * 80 * 1.53e9, node_share=0.895)
BLACKWELL = replace(
    HOPPER, matmul_share=0.520, float8_share=0.433, attention_share=0.352, attention_native_share=0.746,
    multiprocessors=148, exponentials=16 * 148 * 1.965e9,
)  # fmt: skip
CPU = replace(
    AMPERE, matmul_share=0.6, matmul_ramp=16.0, attention_share=0.2, memory_share=0.6, node_share=0.5,
    network_share=0.5, network_decline=0.0, message_seconds=2e-4, overlap_slowdown=1.0, host_jitter=0.0,
    multiprocessors=1, exponentials=5e8,
)  # fmt: skip
"""Shares that virtual devices reach of nominal numbers."""


def _units(model: HardwareModel, gpu: str, clock_ghz: float) -> HardwareModel:
    """The shares of `model` with the multiprocessors of `gpu`, at its highest clock rate."""
    count = gpu_named(gpu).multiprocessors
    return replace(model, multiprocessors=count, exponentials=16 * count * clock_ghz * 1e9)


_CARD = replace(AMPERE, float8_share=HOPPER.float8_share)
"""GPUs whose tensor cores are fed from registers, as an A100's are, and multiply in float8 too."""

_MODELS = {
    "v100-32": VOLTA, "a100-40": AMPERE, "a100-80": AMPERE, "a800": AMPERE, "h100": HOPPER, "h800": HOPPER,
    "h200": HOPPER, "b200": BLACKWELL, "cpu": CPU,
    "gh200": HOPPER, "h20": _units(HOPPER, "h20", 1.98), "gb200": _units(BLACKWELL, "gb200", 2.062),
    "a10g": _units(AMPERE, "a10g", 1.71), "l4": _units(_CARD, "l4", 2.04), "l40s": _units(_CARD, "l40s", 2.52),
    "rtx4090": _units(_CARD, "rtx4090", 2.52), "rtx5090": _units(_CARD, "rtx5090", 2.407),
}  # fmt: skip

_UNFITTED = {
    "v100-32": "an A100 reaches, and node_share from all-reduces on V100",
    **dict.fromkeys(("h200", "gh200", "h20"), "an H100 reaches"),
    **dict.fromkeys(("b200", "gb200"), "such GPUs reach in FP8, in 16 bits as much below an H100"),
    "a10g": "an A100 reaches",
    **dict.fromkeys(("l4", "l40s", "rtx4090", "rtx5090"), "an A100 reaches, and an H100 in float8"),
}
"""GPUs that no run in 16 bits was at hand for, and whose shares they use."""
_OF_ONE_GPU = ("matmul_share", "float8_share", "attention_share")
"""Shares that were fitted for each kind of GPU alone."""
_FLASH_4 = cited(
    "Together AI, March 2026: FlashAttention-4's 1,605 TFLOP/s on a B200 are up to 1.3 times those of cuDNN 9.13 and "
    "2.7 times those of Triton, at heads of 128; exponentials apart"
)
_OF_BLACKWELL = {
    "float8_share": measured("benchmarks/validation/data/blackwell.csv: five runs of Megatron Bridge 25.11"),
    "attention_share": _FLASH_4, "attention_native_share": _FLASH_4,
}  # fmt: skip


def hardware_of(gpu: GPU) -> HardwareModel:
    """The model of a GPU of the catalogue, or of a virtual device."""
    return _MODELS[gpu.short]


def borrowed(gpu: GPU) -> str | None:
    """Note on the GPU whose fitted efficiencies `gpu` uses; None if `gpu` has fitted ones."""
    if gpu.short not in _UNFITTED:
        return None
    name = re.sub(r"-SXM.*|-\d+GB$", "", gpu.name).replace("-", " ")
    article = "an" if name[0] in "AHLR" else "a"
    kind = "run in 16 bits" if gpu.compute_capability == (10, 0) else "run"
    return f"no {kind} on {article} {name} was at hand: what {_UNFITTED[gpu.short]}"


def described(model: HardwareModel, gpu: GPU) -> list[tuple[str, float, str, str, Source]]:
    """(name, value, unit, meaning, source) of every parameter of a model of `gpu`, which `calibrate` may have
    measured."""
    hints = get_type_hints(HardwareModel, include_extras=True)
    fitted = hardware_of(gpu)
    others = _OF_BLACKWELL if fitted.matmul_share == BLACKWELL.matmul_share else {}

    def source(name: str, usual: Source) -> Source:
        if getattr(model, name) != getattr(fitted, name):
            return measured("calibrate, on this machine (--profile)")
        if gpu.short == "cpu":
            return assumed("nominal numbers of virtual devices; calibrate measures them")
        why = borrowed(gpu) if name in _OF_ONE_GPU else None
        return others.get(name, usual if why is None else assumed(why))

    return [
        (name, getattr(model, name), *hint.__metadata__[0], source(name, hint.__metadata__[1]))
        for name, hint in hints.items()
        if name != "measured"
    ]
