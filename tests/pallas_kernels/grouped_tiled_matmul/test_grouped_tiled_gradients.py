"""Gradients of groups' matrices, of codes with scales of tiles: plain JAX and the Hopper kernel against float64."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.precision.grouped import tile_aligned_places
from jaxpar.precision.recipe import E4M3, E5M2
from jaxpar.precision.scale import QuantizedTensor, quantize_tiles
from pallas_kernels.grouped_tiled_matmul import REGISTRY, Request, grouped_tiled_weight_gradients
from pallas_kernels.unsupported import Unsupported
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.tiled_matmul.test_tiled_matmul import SHARED


class Case(NamedTuple):
    """Sizes of groups, and sides of their matrices."""

    sizes: tuple[int, ...]
    k: int = 128
    n: int = 128
    form: str = E4M3
    """Of the gradients."""
    room: int = 0
    """Rows behind the last group."""


CASES = {
    "empty groups and single rows": Case((1, 0, 1, 0), n=256),
    "tiles that are not full": Case((70, 0, 300, 129), form=E5M2),
    "several tiles of both sides, and room": Case((3, 140), k=256, n=384, room=300),
    "no rows at all": Case((0, 0), room=40),
    "slots used again": Case((1100,)),
}


def operands(case: Case) -> tuple[QuantizedTensor, QuantizedTensor, jax.Array]:
    """(rows, gradients, rows of each group with those that fill its last tile). Tiles and columns differ in size by
    powers of ten; what is behind the groups is no number."""
    draw, m = np.random.default_rng(1), sum(case.sizes) + case.room
    places = tile_aligned_places(jnp.array(case.sizes), m, 128)
    row, used = np.asarray(places.row), int(places.sizes.sum())

    def codes(columns: int, form: str) -> QuantizedTensor:
        sizes = 10.0 ** draw.integers(-3, 4, (len(row) // 128, columns)).repeat(128, axis=0)
        values = np.where(row[:, None] >= 0, draw.normal(size=(len(row), columns)) * sizes, 0.0)
        values[used:] = np.nan
        return quantize_tiles(jnp.asarray(values, jnp.float32), (128, 1), form)

    return codes(case.k, E4M3), codes(case.n, case.form), places.sizes


def error(found: jax.Array, left: QuantizedTensor, right: QuantizedTensor, sizes: jax.Array) -> float:
    """The largest, as a share of the sum of the products' magnitudes; infinite where an empty group has not zeros."""
    rows, d_out = (
        np.asarray(each.values, np.float64) * np.asarray(each.scales, np.float64).repeat(128, axis=0)
        for each in (left, right)
    )
    worst, have = 0.0, np.asarray(found, np.float64)
    for group, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        own, d_own = rows[end - size : end], d_out[end - size : end]
        difference, magnitudes = np.abs(have[group] - own.T @ d_own), np.abs(own).T @ np.abs(d_own)
        worst = max(worst, (difference / np.maximum(magnitudes, 1e-30)).max())
    return np.inf if np.isnan(worst) else worst


@pytest.mark.matrix(quick=("empty groups and single rows",), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulated_kernel_is_as_near_to_float64_as_plain_jax_and_without_a_race(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch_tensor_cores(monkeypatch, late_in="products", seconds=0.01)
    left, right, sizes = operands(case)
    by = lambda name, **options: grouped_tiled_weight_gradients(*left, *right, sizes, implementation=name, **options)
    plain = error(by("xla", numbers_by="xla"), left, right, sizes)
    assert plain < 2.0**-8
    assert error(by("mosaic", interpret=True), left, right, sizes) <= 1.5 * plain
    assert REPORTED not in capfd.readouterr().out


COMPILED = {"DeepSeek-V3's up": (65536, 32, 7168, 2048, E4M3), "Qwen3-30B-A3B's down": (16384, 16, 768, 2048, E5M2)}


@pytest.mark.matrix(quick=("Qwen3-30B-A3B's down",), ci=1)
@pytest.mark.parametrize("shape", COMPILED.values(), ids=COMPILED)
def test_compiled_kernel_spills_nothing(shape: tuple) -> None:
    [found] = in_child("tests.pallas_kernels.grouped_tiled_matmul.gpu_grouped_tiled:gradients", [list(shape)])
    [kernel] = found["kernels"]
    assert kernel["name"] == "grouped_matmul_of_weight_tiles" and max(found["shared"]) <= SHARED
    machine_code.check_tiled_matmul(kernel)
    m, _, k, n, form = shape
    assert kernel["operands"] == [f"e4m3.{form[7:11]}"], kernel
    assert found["temporary"] <= m * (k + n) + 2**20, "codes that are transposed, where they were not made so"


HOPPER = Request(
    (E4M3, E4M3), 256, 256, 256, 128, groups=4, squares=False, of="weights", platform="gpu", dtype="bfloat16",
    compute_capability=9.0, gpu="NVIDIA H100 80GB HBM3", processors=132,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [({"dtype": "float32"}, "bfloat16, not float32"), ({"k": 192}, "multiples of 128"), ({"tile": 32}, "tiles of 128")],
)
def test_what_the_kernel_does_not_compute_is_refused_with_the_reason(given: dict, why: str) -> None:
    assert REGISTRY.choose("auto", HOPPER).name == "xla" and REGISTRY.choose("mosaic", HOPPER).name == "mosaic"
    with pytest.raises(Unsupported, match=why):
        REGISTRY.choose("mosaic", replace(HOPPER, **given))


def test_operands_that_do_not_fit_together_are_refused() -> None:
    left, right, sizes = operands(CASES["empty groups and single rows"])
    wrong = {
        "as many tiles": (*left, right.values, right.scales[1:], sizes),
        "float8_e5m2": (left.values.astype(jnp.bfloat16), left.scales, *right, sizes),
        r"rows \[m, k\]": (left.values[1:], left.scales, *right, sizes),
    }
    for text, arrays in wrong.items():
        with pytest.raises(ValueError, match=text):
            grouped_tiled_weight_gradients(*arrays)
