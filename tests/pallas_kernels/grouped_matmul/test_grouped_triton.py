"""The grouped matmul's Triton kernels in Pallas' interpreter against float64; compiled for A100s, H100s, B200s."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.grouped_matmul.grouped64 import PUBLIC, Case, arrays, compiled, errors, expected, worst

ROWS = 75
SIZES = [
    (20, 20, 20, 15), (75, 0, 0, 0), (0, 0, 0, 75), (0, 35, 0, 35), (1, 1, 1, 1), (3, 0, 64, 1), (0, 0, 0, 0),
    (32, 32, 0, 11), (60, 60, 60, 60),
]  # fmt: skip
"""Even, empty, single rows, whole tiles, room that is left, nothing at all, and more than there is room for."""

GRID = {f"{dtype}-{sides}-{sizes}": Case(ROWS, *sides, sizes, dtype)
        for dtype in ("bfloat16", "float16") for sides in ((40, 72), (64, 32)) for sizes in SIZES}  # fmt: skip


@pytest.mark.parametrize("case", GRID.values(), ids=GRID)
def test_kernels_are_as_near_to_float64_as_plain_jax(case: Case) -> None:
    found, plain = errors("triton", case)
    assert found <= 2 * plain


@pytest.mark.matrix(quick=("tokamax: padded",), ci=2)
@pytest.mark.parametrize("case", PUBLIC.values(), ids=PUBLIC)
def test_so_are_they_in_the_cases_of_public_grids(case: Case) -> None:
    found, plain = errors("triton", case)
    assert found <= 2 * plain


@pytest.mark.long
def test_any_of_eight_groups_may_be_empty() -> None:
    """All 256 choices of which are, as in tokamax: results are those of the groups that are left."""
    given, sizes = arrays(90, 8, 32, 48), np.array([5, 17, 1, 9, 24, 8, 3, 16])
    for pattern in range(256):
        own = np.where(np.unpackbits(np.uint8(pattern)), sizes, 0)
        found = compiled("triton", *given, jnp.asarray(own, jnp.int32), interpret=True)
        assert worst(found, expected(*given, own)) < 0.01, own


INSTRUCTION = {"a100-80": "mma", "h100": "wgmma", "b200": "tcgen05"}
SHAPES = {
    "DeepSeek-V3": (32768, 32, 7168, 2048),
    "Qwen3-30B-A3B": (16384, 16, 2048, 768),
    "no whole tiles": (8192, 8, 2880, 1408, "float16"),
}


@pytest.mark.matrix(quick=("h100-DeepSeek-V3",), ci=1)
@pytest.mark.parametrize(("gpu", "shape"), [(gpu, shape) for gpu in machine_code.SHARED for shape in SHAPES])
def test_compiled_kernels_use_tensor_cores_and_spill_nothing(gpu: str, shape: str) -> None:
    found = in_child("tests.pallas_kernels.grouped_matmul.gpu_grouped:triton", gpu, *SHAPES[shape])
    assert {name.split("__")[0].removeprefix("grouped_matmul_") for name, _ in found} == {"of_rows", "of_weights"}
    for name, resources in found:
        machine_code.check(resources)
        assert resources[INSTRUCTION[gpu]] > 0, (name, resources)
        if gpu == "h100":
            assert resources["waits"] == [0, 1], "a step is waited for in the next"
        assert resources["shared"] <= machine_code.SHARED[gpu], (name, resources)
