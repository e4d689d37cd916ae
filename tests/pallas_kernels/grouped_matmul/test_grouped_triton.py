"""The grouped matmul's Triton kernels in Pallas' interpreter against float64; compiled for A100s, H100s, B200s."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.grouped_matmul.grouped64 import Results, arrays, by, expected, worst

ROWS = 75
SIZES = [
    (20, 20, 20, 15), (75, 0, 0, 0), (0, 0, 0, 75), (0, 35, 0, 35), (1, 1, 1, 1), (3, 0, 64, 1), (0, 0, 0, 0),
    (32, 32, 0, 11), (60, 60, 60, 60),
]  # fmt: skip
"""Even, empty, single rows, whole tiles, room that is left, nothing at all, and more than there is room for."""

interpreted = jax.jit(partial(by, "triton", interpret=True))
plain = jax.jit(partial(by, "xla"))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("sides", [(40, 72), (64, 32)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_kernels_are_as_near_to_float64_as_plain_jax(
    sizes: tuple[int, ...], sides: tuple[int, int], dtype: str
) -> None:
    """What lies behind the groups is no number: nothing of it may reach a result."""
    rows, weights, d_out = arrays(ROWS, len(sizes), *sides, dtype)
    rows, d_out = (x.at[sum(sizes) :].set(jnp.nan) for x in (rows, d_out))
    wanted, counts = expected(rows, weights, d_out, sizes), jnp.asarray(sizes)
    found = interpreted(rows, weights, d_out, counts)
    assert {str(x.dtype) for x in found} == {dtype}
    assert worst(found, wanted) <= 2 * worst(plain(rows, weights, d_out, counts), wanted)
    again: Results = interpreted(rows, weights, d_out, counts)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True)), "the same bits every time"


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
