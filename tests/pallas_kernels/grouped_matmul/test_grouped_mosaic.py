"""The Hopper kernels of the grouped matmul in the simulator of Mosaic GPU against float64, and compiled for H100s."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from pallas_kernels.attention.mosaic.schedule import CONSUMERS, REGISTERS
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.grouped_matmul.grouped64 import arrays, by, expected, worst

SHARED = machine_code.SHARED["h100"]


class Case(NamedTuple):
    """Rows, widths and sizes of groups."""

    m: int
    k: int
    n: int
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"


CASES = {
    "groups that begin anywhere": Case(90, 128, 64, (3, 0, 70, 1)),
    "more tiles than one": Case(300, 64, 128, (5, 131, 0, 160)),
    "one group": Case(130, 64, 192, (130,)),
    "room that is left": Case(200, 64, 256, (0, 64, 8, 0)),
    "single rows": Case(12, 128, 64, (1,) * 12),
    "whole tiles": Case(256, 64, 64, (128, 128)),
    "float16, not full": Case(77, 192, 128, (70, 7), "float16"),
    "more than there is room for": Case(40, 64, 64, (30, 30)),
    "as in tokamax, 8 equal groups": Case(128, 64, 128, (16,) * 8),
    "as in JAX, 16 groups of any size": Case(
        164, 64, 128, (3, 21, 0, 8, 14, 2, 30, 1, 9, 16, 5, 12, 0, 27, 6, 10), "float16"
    ),
}


@pytest.mark.matrix(quick=("groups that begin anywhere",), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulated_kernels_are_as_near_to_float64_as_plain_jax_and_without_a_race(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What lies beside the groups is no number: nothing of it may reach a result."""
    watch_tensor_cores(monkeypatch, late_in="add", seconds=0.02, in_flight=1)
    rows, weights, d_out = arrays(case.m, len(case.sizes), case.k, case.n, case.dtype)
    behind = sum(case.sizes)
    rows, d_out = (x.at[behind:].set(jnp.nan) for x in (rows, d_out))
    wanted = expected(rows, weights, d_out, case.sizes)
    low = worst(by("xla", rows, weights, d_out, case.sizes), wanted)
    assert worst(by("mosaic", rows, weights, d_out, case.sizes, interpret=True), wanted) <= 2 * low
    assert REPORTED not in capfd.readouterr().out


COMPILED = {
    "DeepSeek-V3": (32768, 32, 7168, 2048),
    "Qwen3-30B-A3B": (16384, 16, 2048, 768),
    "128 and 256 columns": (8192, 8, 2048, 1408),
    "192 and 256 columns, float16": (8192, 4, 2048, 2880, "float16"),
}


@pytest.mark.matrix(quick=("128 and 256 columns",), ci=1)
@pytest.mark.parametrize("shape", COMPILED.values(), ids=COMPILED)
def test_compiled_kernels_spill_nothing_and_have_two_products_in_flight(shape: tuple) -> None:
    [found] = in_child("tests.pallas_kernels.grouped_matmul.gpu_grouped:all_of", [["h100", *shape]])
    of_rows, of_weights = "grouped_matmul_of_rows", "grouped_matmul_of_weights"
    assert sorted(kernel["name"] for kernel in found["kernels"]) == [of_rows, of_rows, of_weights]
    assert max(found["shared"]) <= SHARED
    assert found["temporary"] < 2**20, "nothing of the size of rows or weights"
    for kernel in found["kernels"]:
        machine_code.check(kernel)
        assert kernel["wgmma"] > 0 and kernel["tma"] > 0, kernel
        assert kernel["waits"] == [0, 1], "a product is waited for when the next is under way, and the last at the end"
        assert kernel["setmaxnreg"] == [*REGISTERS], kernel


@pytest.mark.parametrize("processors", [78, 114])
def test_there_is_a_program_for_each_multiprocessor_of_the_gpu(processors: int) -> None:
    """Which an H100 PCIe has 114 of, and an H20 78: all three kernels share their tiles out by that number."""
    shape = lambda *sizes, dtype="bfloat16": jax.ShapeDtypeStruct(sizes, dtype)
    given = shape(65536, 512), shape(16, 512, 512), shape(65536, 512), shape(16, dtype="int32")
    gpu = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=processors, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=gpu)):
        program = str(jax.make_jaxpr(lambda *arrays: by("mosaic", *arrays))(*given))
    divided = re.findall(rf"= div \w+ {processors}:i32\[\]", program)
    assert len(divided) == 3 * (CONSUMERS + 1) - 3, "by consumers, which run one program, and by the producer"
