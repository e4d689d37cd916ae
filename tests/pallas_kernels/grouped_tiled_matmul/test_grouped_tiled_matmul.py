"""Grouped products of codes with scales of tiles: plain JAX and the Hopper kernel against float64; which one runs."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.precision.recipe import E4M3, E5M2
from jaxpar.precision.scale import QuantizedTensor, quantize_tiles
from pallas_kernels.grouped_tiled_matmul import REGISTRY, Request, grouped_tiled_matmul
from pallas_kernels.unsupported import Unsupported
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.tiled_matmul.test_tiled_matmul import SHARED


class Case(NamedTuple):
    """Rows, sizes of groups, and sides of their matrices."""

    m: int
    sizes: tuple[int, ...]
    n: int = 128
    k: int = 128
    form: str = E4M3
    """Of the rows."""


CASES = {
    "groups that begin anywhere": Case(90, (3, 0, 70, 1), k=256),
    "more tiles than one": Case(300, (5, 131, 0, 160)),
    "one group, two tiles of two pieces": Case(130, (130,), n=512),
    "room that is left": Case(200, (0, 64, 8, 0), form=E5M2),
    "single rows": Case(12, (1,) * 12, n=256),
    "whole tiles, slots used again": Case(256, (128, 128), k=768),
    "more than there is room for": Case(45, (30, 30)),
}


def operands(case: Case) -> tuple[QuantizedTensor, QuantizedTensor]:
    """Numbers whose rows, matrices and tiles differ in size by powers of ten; no number is behind the groups."""
    draw = np.random.default_rng(0)
    sizes = lambda *shape: 10.0 ** draw.integers(-3, 4, (*shape, case.k // 128)).repeat(128, axis=-1)
    rows = draw.normal(size=(case.m, case.k)) * sizes(case.m)
    rows[sum(case.sizes) :] = np.nan
    groups = len(case.sizes)
    weights = draw.normal(size=(groups, case.n, case.k)) * sizes(groups, case.n // 128).repeat(128, axis=1)
    single = lambda x: jnp.asarray(x, jnp.float32)
    return quantize_tiles(single(rows), (1, 128), case.form), quantize_tiles(single(weights), (128, 128), E4M3)


def error(found: jax.Array, left: QuantizedTensor, right: QuantizedTensor, sizes: tuple[int, ...]) -> float:
    """The largest, as a share of the sum of the products' magnitudes; infinite if a row behind the groups is not 0."""
    values, scales = (np.asarray(x, np.float64) for x in left)
    rows = values * scales.repeat(128, axis=1)
    matrices = [np.asarray(x, np.float64) for x in right]
    worst, begin, have = 0.0, 0, np.asarray(found, np.float64)
    for group, size in enumerate(sizes):
        own = rows[begin : begin + size]
        matrix = matrices[0][group] * np.kron(matrices[1][group], np.ones((128, 128)))
        wanted, magnitudes = own @ matrix.T, np.abs(own) @ np.abs(matrix.T)
        difference = np.abs(have[begin : begin + size] - wanted) / np.maximum(magnitudes, 1e-30)
        worst, begin = max(worst, difference.max(initial=0.0)), begin + len(own)
    return np.inf if have[begin:].any() or np.isnan(worst) else worst


@pytest.mark.matrix(quick=("single rows",), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulated_kernel_is_as_near_to_float64_as_plain_jax_and_without_a_race(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch_tensor_cores(monkeypatch, late_in="products", seconds=0.01)
    left, right = operands(case)
    by = lambda name, **options: grouped_tiled_matmul(
        *left, *right, jnp.array(case.sizes), implementation=name, **options
    )
    plain = error(by("xla", numbers_by="xla"), left, right, case.sizes)
    assert plain < 2.0**-8
    assert error(by("mosaic", interpret=True), left, right, case.sizes) <= 1.5 * plain
    assert REPORTED not in capfd.readouterr().out


COMPILED = {
    "output of DeepSeek-V3's up": (32768, 32, 2048, 7168, E4M3),
    "gradient of Qwen3-30B-A3B's rows": (16384, 16, 2048, 768, E5M2),
}


@pytest.mark.matrix(quick=("gradient of Qwen3-30B-A3B's rows",), ci=1)
@pytest.mark.parametrize("shape", COMPILED.values(), ids=COMPILED)
def test_compiled_kernel_spills_nothing(shape: tuple) -> None:
    [found] = in_child("tests.pallas_kernels.grouped_tiled_matmul.gpu_grouped_tiled:all_of", [list(shape)])
    [kernel] = found["kernels"]
    assert kernel["name"] == "grouped_matmul_of_tiles" and max(found["shared"]) <= SHARED
    machine_code.check_tiled_matmul(kernel)
    m, groups, n, k, _ = shape
    scales = 4 * (m + groups * n) * k // 128
    assert found["temporary"] <= 2 * scales + 2**20, "scales side by side; nothing of the size of the codes"


HOPPER = Request(
    (E4M3, E4M3), 256, 256, 256, 128, groups=4, squares=True, platform="gpu", dtype="bfloat16", compute_capability=9.0,
    gpu="NVIDIA H100 80GB HBM3", processors=132,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"platform": "cpu"}, "NVIDIA GPU"),
        ({"compute_capability": 8.9}, "Hopper"),
        ({"dtype": "float32"}, "bfloat16, not float32"),
        ({"n": 192}, "multiples of 128"),
        ({"tile": 32}, "squares of 128"),
        ({"squares": False}, "squares of 128"),
        ({"m": 2**20, "n": 2**12}, "2\\^31"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused_with_the_reason(given: dict, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        REGISTRY.choose("mosaic", replace(HOPPER, **given))


def test_operands_that_do_not_fit_together_are_refused() -> None:
    left, right = operands(CASES["single rows"])
    sizes = jnp.ones(12, jnp.int32)
    wrong = {
        "as many tiles": (*left, right.values, jnp.ones((12, 1, 2)), sizes),
        "size for each group": (*left, *right, sizes[1:]),
        "float8_e5m2": (left.values.astype(jnp.bfloat16), left.scales, *right, sizes),
        r"rows \[m, k\]": (*left, right.values[0], right.scales[0], sizes),
    }
    for text, arrays in wrong.items():
        with pytest.raises(ValueError, match=text):
            grouped_tiled_matmul(*arrays)
