"""What each kernel spills, compiled for GPUs that are not here; child only (see `tests.gpu_compile.in_child`)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.pallas_kernels.attention.mosaic import gpu_mosaic
from tests.pallas_kernels.attention.triton import gpu_attention
from tests.pallas_kernels.grouped_matmul import gpu_grouped
from tests.pallas_kernels.linear_attention import gpu_linear_attention
from tests.pallas_kernels.tiled_matmul import gpu_tiled


def _tiles(*case: Any) -> Any:
    return gpu_tiled.kernel(*gpu_tiled.Compiled(*case))["kernels"]


type Compiled = Callable[[], Iterable[Mapping[str, Any]]]
MANY: Mapping[str, Compiled] = {
    "attention by mosaic": lambda: gpu_mosaic.kernels(128, 128, "causal")["kernels"],
    "attention by mosaic, width 256, soft-cap": lambda: gpu_mosaic.kernels(256, 256, "packed-window", 30.0, exact=True)[
        "kernels"
    ],
    "attention by mosaic_deterministic": lambda: gpu_mosaic.kernels(128, 128, "causal", deterministic=True)["kernels"],
    "attention by triton, A100": lambda: gpu_attention.of_form("a100-80", 128, 128, "packed").values(),
    "attention by triton, H100": lambda: gpu_attention.of_form("h100", 128, 128, "packed").values(),
    "grouped by mosaic, H100": lambda: gpu_grouped.kernels("h100", 8192, 8, 2048, 1408)["kernels"],
    "grouped by triton, A100": lambda: dict(gpu_grouped.triton("a100-80", 8192, 8, 2048, 768)).values(),
    "FP8 tiles": lambda: _tiles(4096, 4096, 4096),
    "grouped FP8 tiles": lambda: _tiles(16384, 2048, 768, 16),
    "gradients of grouped FP8 tiles": lambda: _tiles(16384, 2048, 768, 16, "weights"),
    "linear attention": lambda: gpu_linear_attention.kernels(4096, 16, 128, 128, True, False)["kernels"],
}
BLACKWELL: Mapping[str, Compiled] = {
    "grouped by mosaic, B200": lambda: gpu_grouped.kernels("b200", 8192, 8, 2048, 1408)["kernels"]
}
"""In a process of their own: Mosaic compiles for the architecture of its first kernel."""


def spills(blackwell: bool) -> dict[str, int | str]:
    """By kernel, the bytes that it stores for want of registers; the error, where it does not compile."""
    spilled: dict[str, int | str] = {}
    for name, compiled in (BLACKWELL if blackwell else MANY).items():
        try:
            spilled[name] = sum(kernel["spilled"] for kernel in compiled())
        except Exception as error:
            spilled[name] = f"{type(error).__name__}: {error}"[:300]
    return spilled
