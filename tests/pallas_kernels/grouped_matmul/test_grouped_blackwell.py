"""The Blackwell kernels of the grouped matmul in the simulator of Mosaic GPU against float64, and compiled for B200s.

The simulator watches what tcgen05 reads and writes; of pairs of multiprocessors it simulates nothing.
"""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from pallas_kernels.choice import BLACKWELL
from pallas_kernels.grouped_matmul import mosaic
from pallas_kernels.grouped_matmul.mosaic.blackwell import TensorMemoryKernel
from pallas_kernels.grouped_matmul.registry import REGISTRY, Request
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED
from tests.pallas_kernels.grouped_matmul.grouped64 import arrays, by, expected, worst
from tests.pallas_kernels.grouped_matmul.test_grouped_mosaic import CASES, COMPILED, SHARED, Case


def simulated(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Errors of the kernels and of plain JAX. What lies beside the groups is no number."""
    monkeypatch.setattr(mosaic, "kind", lambda: TensorMemoryKernel)
    rows, weights, d_out = arrays(case.m, len(case.sizes), case.k, case.n, case.dtype)
    behind = sum(case.sizes)
    rows, d_out = (x.at[behind:].set(jnp.nan) for x in (rows, d_out))
    wanted = expected(rows, weights, d_out, case.sizes)
    plain = worst(by("xla", rows, weights, d_out, case.sizes), wanted)
    return worst(by("mosaic", rows, weights, d_out, case.sizes, interpret=True), wanted), plain


@pytest.mark.matrix(quick=("groups that begin anywhere",), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulated_kernels_are_as_near_to_float64_as_plain_jax_and_without_a_race(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    have, plain = simulated(case, monkeypatch)
    assert have <= 2 * plain
    assert REPORTED not in capfd.readouterr().out


@pytest.mark.long
def test_a_race_is_seen_where_products_do_not_wait_for_zeros(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    multiply = TensorMemoryKernel.multiply_tile
    early = lambda self, arrays, memory, at: multiply(self, arrays, memory._replace(hidden=None), at)
    monkeypatch.setattr(TensorMemoryKernel, "multiply_tile", early)
    simulated(Case(140, 64, 64, (3, 0, 131, 1)), monkeypatch)
    assert REPORTED in capfd.readouterr().out


@pytest.mark.matrix(quick=("128 and 256 columns",), ci=1)
@pytest.mark.parametrize("shape", COMPILED.values(), ids=COMPILED)
def test_compiled_kernels_spill_nothing_and_multiply_by_tcgen05(shape: tuple) -> None:
    [found] = in_child("tests.pallas_kernels.grouped_matmul.gpu_grouped:all_of", [["b200", *shape]])
    of_rows, of_weights = "grouped_matmul_of_rows", "grouped_matmul_of_weights"
    assert sorted(kernel["name"] for kernel in found["kernels"]) == [of_rows, of_rows, of_weights]
    assert max(found["shared"]) <= SHARED
    assert found["temporary"] < 2**20, "nothing of the size of rows or weights"
    for kernel in found["kernels"]:
        machine_code.check(kernel)
        assert kernel["tcgen05"] == 4 and kernel["wgmma"] == 0 and kernel["tma"] > 0, kernel
        assert kernel["registers"] <= 128, "four warpgroups share 65,536"


def test_kernels_say_which_gpus_they_are_for() -> None:
    request = Request(
        1024, 8, 256, 256, dtype="bfloat16", platform="gpu", compute_capability=BLACKWELL, gpu="NVIDIA B200",
        processors=148,
    )  # fmt: skip
    assert REGISTRY["mosaic"].supports(request) is None
    assert REGISTRY.choose("auto", request).name == "xla", "until it is recorded as right"
    refused = "it needs compute capability 9.0 (Hopper) or 10.0 (Blackwell), and the GPU has 12.0"
    assert REGISTRY["mosaic"].supports(replace(request, compute_capability=12.0)) == refused
