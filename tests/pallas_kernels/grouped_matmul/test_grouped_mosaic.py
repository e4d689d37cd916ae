"""The Hopper and Blackwell kernels of the grouped matmul in the simulator of Mosaic GPU against float64, and compiled.

The simulator watches what tcgen05 reads and writes; of pairs of multiprocessors it simulates nothing.
"""

import re
from typing import Any

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from pallas_kernels.attention.mosaic.schedule import CONSUMERS, REGISTERS
from pallas_kernels.grouped_matmul import mosaic
from pallas_kernels.grouped_matmul.mosaic.blackwell import TensorMemoryKernel
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.grouped_matmul.grouped64 import PUBLIC, Case, by, errors

CASES = {
    "groups that begin anywhere": Case(90, 128, 64, (3, 0, 70, 1)),
    "more tiles than one": Case(300, 64, 128, (5, 131, 0, 160)),
    "one group": Case(130, 64, 192, (130,)),
    "room that is left": Case(200, 64, 256, (0, 64, 8, 0)),
    "single rows": Case(12, 128, 64, (1,) * 12),
    "whole tiles": Case(256, 64, 64, (128, 128)),
    "float16, not full": Case(77, 192, 128, (70, 7), "float16"),
    "more than there is room for": Case(40, 64, 64, (30, 30)),
    **{name: case._replace(n=-(-case.n // 64) * 64) for name, case in PUBLIC.items()},
}
FIRST = "groups that begin anywhere"


def watch(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate the kernel of such a GPU, and what its tensor cores read."""
    if kernel == "b200":
        monkeypatch.setattr(mosaic, "kind", lambda: TensorMemoryKernel)
    else:
        watch_tensor_cores(monkeypatch, late_in="add", seconds=0.02, in_flight=1)


@pytest.mark.matrix(quick=(f"h100-{FIRST}", f"b200-{FIRST}"), ci=2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kernel", ["h100", "b200"])
def test_simulated_kernels_are_as_near_to_float64_as_plain_jax_and_without_a_race(
    kernel: str, case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch(kernel, monkeypatch)
    found, plain = errors("mosaic", case)
    assert found <= 2 * plain
    assert REPORTED not in capfd.readouterr().out


@pytest.mark.long
def test_a_race_is_seen_where_products_do_not_wait_for_zeros(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch("b200", monkeypatch)
    multiply = TensorMemoryKernel.multiply_tile
    early = lambda self, arrays, memory, at: multiply(self, arrays, memory._replace(hidden=None), at)
    monkeypatch.setattr(TensorMemoryKernel, "multiply_tile", early)
    errors("mosaic", Case(140, 64, 64, (3, 0, 131, 1)))
    assert REPORTED in capfd.readouterr().out


COMPILED = {
    "DeepSeek-V3": (32768, 32, 7168, 2048),
    "Qwen3-30B-A3B": (16384, 16, 2048, 768),
    "128 and 256 columns": (8192, 8, 2048, 1408),
    "192 and 256 columns, float16": (8192, 4, 2048, 2880, "float16"),
}


@pytest.mark.matrix(quick=("h100-128 and 256 columns", "b200-128 and 256 columns"), ci=2)
@pytest.mark.parametrize("shape", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("gpu", ["h100", "b200"])
def test_compiled_kernels_spill_nothing_and_have_two_products_in_flight(gpu: str, shape: tuple[Any, ...]) -> None:
    found = in_child("tests.pallas_kernels.grouped_matmul.gpu_grouped:kernels", gpu, *shape)
    of_rows, of_weights = "grouped_matmul_of_rows", "grouped_matmul_of_weights"
    assert sorted(kernel["name"] for kernel in found["kernels"]) == [of_rows, of_rows, of_weights]
    assert max(found["shared"]) <= machine_code.SHARED[gpu]
    assert found["temporary"] < 2**20, "nothing of the size of rows or weights"
    for kernel in found["kernels"]:
        machine_code.check(kernel)
        assert kernel["tma"] > 0, kernel
        if gpu == "b200":
            assert kernel["tcgen05"] == 4 and kernel["wgmma"] == 0, kernel
            assert kernel["registers"] <= 128, "four warpgroups share 65,536"
        else:
            assert kernel["wgmma"] > 0 and kernel["setmaxnreg"] == [*REGISTERS], kernel
            assert kernel["waits"] == [0, 1], "a product is waited for when the next is under way, the last at the end"


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
