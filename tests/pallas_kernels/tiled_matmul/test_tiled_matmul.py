"""Products of codes with scales of tiles: plain JAX and the Hopper kernel against float64, and which one runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from jaxpar.precision.recipe import E4M3, E5M2
from jaxpar.precision.scale import QuantizedTensor, quantize_tiles
from pallas_kernels.grouped_matmul.mosaic.kernel import Kernel
from pallas_kernels.tiled_matmul import REGISTRY, Request, tiled_matmul
from pallas_kernels.unsupported import Unsupported
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores

SHARED = machine_code.SHARED["h100"]


class Case(NamedTuple):
    """[m, k] times [n, k], the right one with scales of squares or of rows."""

    m: int
    n: int
    k: int
    squares: bool = True
    dtype: str = "bfloat16"
    forms: tuple[str, str] = (E4M3, E4M3)


CASES = {
    "one step": Case(128, 256, 128),
    "one piece, rows, float32": Case(128, 384, 384, squares=False, dtype="float32", forms=(E4M3, E5M2)),
    "two pieces, rows": Case(128, 256, 512, squares=False),
    "sections that are not full, slots used again": Case(1152, 512, 384, dtype="float32", forms=(E5M2, E4M3)),
}


def operands(case: Case) -> tuple[QuantizedTensor, QuantizedTensor]:
    """Numbers whose rows and tiles differ in size by powers of ten."""
    draw = np.random.default_rng(0)
    sizes = lambda rows: 10.0 ** draw.integers(-3, 4, (rows, case.k // 128)).repeat(128, axis=1)
    numbers = lambda rows: draw.normal(size=(rows, case.k)) * sizes(rows)
    left, right = (jnp.asarray(numbers(rows), jnp.float32) for rows in (case.m, case.n))
    of_right = (128, 128) if case.squares else (1, 128)
    return quantize_tiles(left, (1, 128), case.forms[0]), quantize_tiles(right, of_right, case.forms[1])


def float64(codes: QuantizedTensor) -> np.ndarray:
    values, scales = (np.asarray(x, np.float64) for x in codes)
    return values * scales.repeat(values.shape[0] // scales.shape[0], axis=0).repeat(128, axis=1)


def error(found: jax.Array, left: QuantizedTensor, right: QuantizedTensor) -> float:
    """The largest, as a share of the sum of the products' magnitudes."""
    a, b = float64(left), float64(right)
    magnitudes = np.maximum(np.abs(a) @ np.abs(b.T), 1e-30)  # where all codes of a row are 0
    return float((np.abs(np.asarray(found, np.float64) - a @ b.T) / magnitudes).max())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_plain_jax_is_near_to_float64(case: Case) -> None:
    left, right = operands(case)
    found = tiled_matmul(*left, *right, jnp.dtype(case.dtype), implementation="xla")
    assert str(found.dtype) == case.dtype
    assert error(found, left, right) < {"bfloat16": 2.0**-8, "float32": 2e-6}[case.dtype]


@pytest.mark.matrix(quick=("one step",), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulated_kernel_is_as_near_to_float64_as_plain_jax_and_without_a_race(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch_tensor_cores(monkeypatch, late_in="products", seconds=0.01)
    left, right = operands(case)
    by = lambda name, **options: tiled_matmul(*left, *right, jnp.dtype(case.dtype), implementation=name, **options)
    assert error(by("mosaic", interpret=True), left, right) <= 1.5 * error(by("xla"), left, right)
    assert REPORTED not in capfd.readouterr().out


COMPILED = {
    "output of llama3-8b": (4096, 14336, 4096, True, "bfloat16", E4M3, E4M3),
    "gradient of a weight": (4096, 4096, 8192, False, "float32", E4M3, E5M2),
}


@pytest.mark.matrix(quick=("output of llama3-8b",), ci=1)
@pytest.mark.parametrize("shape", COMPILED.values(), ids=COMPILED)
def test_compiled_kernel_spills_nothing(shape: tuple) -> None:
    [found] = in_child("tests.pallas_kernels.tiled_matmul.gpu_tiled:all_of", [list(shape)])
    [kernel] = found["kernels"]
    assert kernel["name"] == "tiled_matmul" and max(found["shared"]) <= SHARED
    machine_code.check_tiled_matmul(kernel)
    scales = 4 * (shape[0] + shape[1]) * shape[2] // 128
    assert found["temporary"] <= 2 * scales, "scales side by side; nothing of the size of the codes"


HOPPER = Request(
    (E4M3, E4M3), 256, 256, 256, 128, platform="gpu", dtype="bfloat16", compute_capability=9.0,
    gpu="NVIDIA H100 80GB HBM3", processors=132,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"platform": "cpu"}, "NVIDIA GPU"),
        ({"compute_capability": 8.9}, "Hopper"),
        ({"dtype": "float16"}, "bfloat16 or float32, not float16"),
        ({"m": 192}, "multiples of 128"),
        ({"tile": 32}, "tiles of 128"),
        ({"m": 2**20, "n": 2**12}, "2\\^31"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused_with_the_reason(given: dict, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        REGISTRY.choose("mosaic", replace(HOPPER, **given))


def test_blackwell_multiplies_small_tiles_by_cudnn() -> None:
    blackwell = replace(HOPPER, compute_capability=10.0, gpu="NVIDIA B200", processors=148, tile=32)
    assert REGISTRY.choose("auto", blackwell).name == "cudnn"
    assert "tiles of 32" in REGISTRY.choose("auto", replace(blackwell, tile=128)).rejected["cudnn"]
    assert "Blackwell" in REGISTRY.choose("auto", HOPPER).rejected["cudnn"]


def test_operands_that_do_not_fit_together_are_refused() -> None:
    left, right = operands(CASES["one step"])
    wrong = {
        "as many tiles": (*left, right.values, jnp.ones((1, 2))),
        "float8_e5m2": (left.values.astype(jnp.bfloat16), left.scales, *right),
        "squares of it": (*left, right.values, jnp.ones((4, 1))),
        r"\[m, k\] and \[n, k\]": (*left, right.values[:, :64], right.scales),
    }
    for text, arrays in wrong.items():
        with pytest.raises(ValueError, match=text):
            tiled_matmul(*arrays)


def test_no_program_has_more_tiles_than_an_even_share(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[Kernel] = []

    def kernel(body: Kernel, *, out_type: jax.ShapeDtypeStruct, **_: Any) -> Callable[..., jax.Array]:
        kernels.append(body)
        return lambda *arrays: jnp.zeros(out_type.shape, out_type.dtype)

    monkeypatch.setattr("pallas_kernels.pallas.mosaic_gpu.kernel", kernel)
    shape = lambda form, *sizes: jax.ShapeDtypeStruct(sizes, form)
    given = shape(E4M3, 1152, 256), shape("float32", 1152, 2), shape(E4M3, 6912, 256), shape("float32", 54, 2)
    gpu = AbstractDevice(device_kind=HOPPER.gpu, num_cores=HOPPER.processors, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=gpu)):
        jax.eval_shape(partial(tiled_matmul, implementation="mosaic"), *given)
    [body] = kernels
    tiles = np.stack(jax.jit(jax.vmap(body.position))(np.arange(body.count * 27))).T
    assert len({*map(tuple, tiles)}) == len(tiles), "each tile once"
    assert max((tiles[program::132, 0] < 9).sum() for program in range(132)) == 2, "of 9 x 27 tiles"
