"""Products of codes with scales of tiles, dense and of groups: plain JAX and the Hopper kernels against float64, and
which one runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from jaxpar.precision.grouped import tile_aligned_places
from jaxpar.precision.recipe import E4M3, E5M2
from jaxpar.precision.scale import QuantizedTensor, quantize_tiles
from pallas_kernels.choice import UNVERIFIED
from pallas_kernels.grouped_matmul.mosaic.kernel import Kernel
from pallas_kernels.tiled_matmul import REGISTRY, Request, tiled_matmul, tiled_weight_gradients
from pallas_kernels.toolchain import versions
from pallas_kernels.verified import Record, digest
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.tiled_matmul.gpu_tiled import Compiled


class Case(NamedTuple):
    """[m, k] times [n, k], or rows of groups times the matrix of each; of weights, the gradients of these, [k, n]."""

    m: int
    n: int = 128
    k: int = 128
    sizes: tuple[int, ...] | None = None
    of: Literal["rows", "weights"] = "rows"
    squares: bool = True
    """Whether the right operand has scales of squares; else of rows."""
    dtype: str = "bfloat16"
    forms: tuple[str, str] = (E4M3, E4M3)


CASES = {
    "one step": Case(128, 256),
    "one piece, rows, float32": Case(128, 384, 384, squares=False, dtype="float32", forms=(E4M3, E5M2)),
    "two pieces, rows": Case(128, 256, 512, squares=False),
    "sections that are not full, slots used again": Case(1152, 512, 384, dtype="float32", forms=(E5M2, E4M3)),
    "groups that begin anywhere": Case(90, k=256, sizes=(3, 0, 70, 1)),
    "more tiles than one": Case(300, sizes=(5, 131, 0, 160)),
    "one group, two tiles of two pieces": Case(130, 512, sizes=(130,)),
    "room that is left": Case(200, sizes=(0, 64, 8, 0), forms=(E5M2, E4M3)),
    "single rows": Case(12, 256, sizes=(1,) * 12),
    "whole tiles, slots used again": Case(256, k=768, sizes=(128, 128)),
    "more than there is room for": Case(45, sizes=(30, 30)),
    "gradients of empty groups and single rows": Case(2, 256, sizes=(1, 0, 1, 0), of="weights"),
    "gradients of tiles that are not full": Case(499, sizes=(70, 0, 300, 129), of="weights", forms=(E4M3, E5M2)),
    "gradients of several tiles of both sides, and room": Case(443, 384, 256, (3, 140), "weights"),
    "gradients of no rows at all": Case(40, sizes=(0, 0), of="weights"),
    "gradients, slots used again": Case(1100, sizes=(1100,), of="weights"),
}
QUICK = "one step", "single rows", "gradients of empty groups and single rows"


def operands(case: Case) -> tuple[QuantizedTensor, QuantizedTensor, jax.Array | None]:
    """Both operands, whose rows, columns and tiles differ in size by powers of ten, and rows of each group; of weights
    with those that fill its last tile. What is behind the groups is no number."""
    draw, sizes = np.random.default_rng(0), None if case.sizes is None else jnp.array(case.sizes)
    magnitudes = lambda *shape: 10.0 ** draw.integers(-3, 4, shape)
    if case.of == "weights":
        assert sizes is not None
        places = tile_aligned_places(sizes, case.m, 128)
        row, used = np.asarray(places.row), int(places.sizes.sum())

        def codes(columns: int, form: str) -> QuantizedTensor:
            of_tiles = magnitudes(len(row) // 128, columns).repeat(128, axis=0)
            values = np.where(row[:, None] >= 0, draw.normal(size=of_tiles.shape) * of_tiles, 0.0)
            values[used:] = np.nan
            return quantize_tiles(jnp.asarray(values, jnp.float32), (128, 1), form)

        return codes(case.k, case.forms[0]), codes(case.n, case.forms[1]), places.sizes
    stack, side = () if case.sizes is None else (len(case.sizes),), 128 if case.squares else 1
    left = draw.normal(size=(case.m, case.k)) * magnitudes(case.m, case.k // 128).repeat(128, axis=1)
    left[case.m if case.sizes is None else sum(case.sizes) :] = np.nan
    of_right = magnitudes(*stack, case.n // side, case.k // 128).repeat(side, axis=-2).repeat(128, axis=-1)
    right = draw.normal(size=(*stack, case.n, case.k)) * of_right
    left, right = (jnp.asarray(x, jnp.float32) for x in (left, right))
    return quantize_tiles(left, (1, 128), case.forms[0]), quantize_tiles(right, (side, 128), case.forms[1]), sizes


def float64(codes: QuantizedTensor) -> np.ndarray:
    values, scales = (np.asarray(x, np.float64) for x in codes)
    for axis in (-2, -1):
        scales = scales.repeat(values.shape[axis] // scales.shape[axis], axis)
    return values * scales


def error(case: Case, name: str, interpret: bool = False) -> float:
    """The largest error of an implementation, as a share of the sum of the products' magnitudes; infinite where it is
    no number, and if a row behind the groups is not 0."""
    left, right, sizes = operands(case)
    options: dict[str, Any] = {"numbers_by": "xla", "implementation": name, "interpret": interpret}
    function = tiled_weight_gradients if case.of == "weights" else tiled_matmul
    found = function(*left, *right, sizes, jnp.dtype(case.dtype), **options)
    assert str(found.dtype) == case.dtype
    a, b, have = float64(left), float64(right), np.asarray(found, np.float64)
    parts, end = [(have, a, b.T)], case.m
    if sizes is not None:
        ends = np.cumsum(sizes)
        rows, end = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)], ends[-1]
        of_rows = lambda group, own: (have[own], a[own], b[group].T)
        of_weights = lambda group, own: (have[group], a[own].T, b[own])
        parts = [(of_rows if case.of == "rows" else of_weights)(*part) for part in enumerate(rows)]
    shares = [np.abs(each - x @ y) / np.maximum(np.abs(x) @ np.abs(y), 1e-30) for each, x, y in parts]
    worst = max(share.max(initial=0.0) for share in shares)
    behind = case.of == "rows" and have[end:].any()
    return np.inf if behind or np.isnan([share.sum() for share in shares]).any() else float(worst)


@pytest.mark.matrix(quick=(*[name for name in CASES if CASES[name].sizes is None], *QUICK[1:]), ci=1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_plain_jax_is_near_to_float64(case: Case) -> None:
    assert error(case, "xla") < {"bfloat16": 2.0**-8, "float32": 2e-6}[case.dtype]


@pytest.mark.matrix(quick=QUICK, ci=2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulated_kernel_is_as_near_to_float64_as_plain_jax_and_without_a_race(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = error(case, "xla")
    watch_tensor_cores(monkeypatch, late_in="products", seconds=0.01)
    assert error(case, "mosaic", interpret=True) <= 1.5 * plain
    assert REPORTED not in capfd.readouterr().out


COMPILED = {
    "output of llama3-8b": Compiled(4096, 14336, 4096),
    "gradient of a weight": Compiled(4096, 4096, 8192, squares=False, dtype="float32", right=E5M2),
    "output of DeepSeek-V3's up": Compiled(32768, 2048, 7168, 32),
    "gradient of Qwen3-30B-A3B's rows": Compiled(16384, 2048, 768, 16, left=E5M2),
    "gradient of DeepSeek-V3's up": Compiled(65536, 2048, 7168, 32, "weights"),
    "gradient of Qwen3-30B-A3B's down": Compiled(16384, 2048, 768, 16, "weights", right=E5M2),
}


@pytest.mark.matrix(
    quick=("output of llama3-8b", "gradient of Qwen3-30B-A3B's rows", "gradient of Qwen3-30B-A3B's down"), ci=1
)
@pytest.mark.parametrize("case", COMPILED.values(), ids=COMPILED)
def test_compiled_kernel_spills_nothing(case: Compiled) -> None:
    found = in_child("tests.pallas_kernels.tiled_matmul.gpu_tiled:kernel", *case)
    [kernel] = found["kernels"]
    assert kernel["name"] == f"tiled_matmul_of_{case.of}" and max(found["shared"]) <= machine_code.SHARED["h100"]
    machine_code.check_tiled_matmul(kernel)
    assert kernel["operands"] == [f"{case.left[7:11]}.{case.right[7:11]}"], kernel
    scales = 4 * (case.m + max(case.groups, 1) * case.n) * case.k // 128
    temporary = case.m * (case.k + case.n) if case.of == "weights" else 2 * scales
    assert found["temporary"] <= temporary + (2**20 if case.groups else 0), (
        "scales side by side, and of gradients codes that are transposed, where they were not made so"
    )


DENSE = Request(
    (E4M3, E4M3), 256, 256, 256, 128, platform="gpu", dtype="bfloat16", compute_capability=9.0,
    gpu="NVIDIA H100 80GB HBM3", processors=132,
)  # fmt: skip
KINDS = {"dense": DENSE, "grouped": replace(DENSE, groups=4)}
KINDS["weights"] = replace(KINDS["grouped"], squares=False, of="weights")


@pytest.mark.parametrize("recorded", ["tiled_matmul/mosaic", "grouped_tiled_matmul/mosaic"])
def test_dense_products_and_those_of_groups_wait_for_records_of_their_own(
    recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(recorded, DENSE.gpu, 132, "2026-11-30", tuple(versions().items()), digest(recorded))
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: (record,))
    for kind, request in KINDS.items():
        chosen = REGISTRY.choose("auto", request)
        if (kind == "dense") == (recorded == "tiled_matmul/mosaic"):
            assert chosen.name == "mosaic"
        else:
            assert chosen.name == "xla" and chosen.rejected["mosaic"] == UNVERIFIED


def test_blackwell_multiplies_small_tiles_by_cudnn() -> None:
    blackwell = replace(DENSE, compute_capability=10.0, gpu="NVIDIA B200", processors=148, tile=32)
    assert REGISTRY.choose("auto", blackwell).name == "cudnn"
    assert "tiles of 32" in REGISTRY.choose("auto", replace(blackwell, tile=128)).rejected["cudnn"]
    assert "one matrix" in REGISTRY.choose("auto", replace(blackwell, groups=4)).rejected["cudnn"]
    assert "Blackwell" in REGISTRY.choose("auto", DENSE).rejected["cudnn"]


def test_operands_that_do_not_fit_together_are_refused() -> None:
    (of_left, of_right, _), (rows, matrices, sizes) = operands(CASES["one step"]), operands(CASES["single rows"])
    left, right, places = operands(CASES[QUICK[2]])
    coarse = of_left.values.astype(jnp.bfloat16), of_left.scales
    wrong: list[tuple[Callable[..., Any], str, tuple[Any, ...]]] = [
        (tiled_matmul, "as many tiles", (*of_left, of_right.values, jnp.ones((1, 2)))),
        (tiled_matmul, "float8_e5m2", (*coarse, *of_right)),
        (tiled_matmul, "squares of it", (*of_left, of_right.values, jnp.ones((4, 1)))),
        (tiled_matmul, r"\[m, k\] and \[n, k\]", (*of_left, of_right.values[:, :64], of_right.scales)),
        (tiled_matmul, "as many tiles", (*rows, matrices.values, jnp.ones((12, 1, 2)), sizes)),
        (tiled_matmul, "size for each group", (*rows, *matrices, sizes[1:])),
        (tiled_matmul, "size for each group", (*rows, matrices.values, matrices.scales[1:], sizes)),
        (tiled_matmul, r"rows \[m, k\]", (*rows, *matrices)),
        (tiled_matmul, r"group sizes \(\)", (*of_left, *of_right, jnp.array(4))),
        (tiled_matmul, r"rows \[m, k\]", (*rows, matrices.values[0], matrices.scales[0], sizes)),
        (tiled_weight_gradients, "as many tiles", (*left, right.values, right.scales[1:], places)),
        (tiled_weight_gradients, "float8_e5m2", (left.values.astype(jnp.bfloat16), left.scales, *right, places)),
        (tiled_weight_gradients, r"rows \[m, k\]", (left.values[1:], left.scales, *right, places)),
    ]  # fmt: skip
    for function, text, arrays in wrong:
        with pytest.raises(ValueError, match=text):
            function(*arrays)


def test_no_program_has_more_tiles_than_an_even_share(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[Kernel] = []

    def kernel(body: Kernel, *, out_type: jax.ShapeDtypeStruct, **_: Any) -> Callable[..., jax.Array]:
        kernels.append(body)
        return lambda *arrays: jnp.zeros(out_type.shape, out_type.dtype)

    monkeypatch.setattr("pallas_kernels.pallas.mosaic_gpu.kernel", kernel)
    shape = lambda form, *sizes: jax.ShapeDtypeStruct(sizes, form)
    given = shape(E4M3, 1152, 256), shape("float32", 1152, 2), shape(E4M3, 6912, 256), shape("float32", 54, 2)
    gpu = AbstractDevice(device_kind=DENSE.gpu, num_cores=DENSE.processors, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=gpu)):
        jax.eval_shape(partial(tiled_matmul, implementation="mosaic"), *given)
    [body] = kernels
    tiles = np.stack(jax.jit(jax.vmap(body.position))(np.arange(body.count * 27))).T
    assert len({*map(tuple, tiles)}) == len(tiles), "each tile once"
    assert max((tiles[program::132, 0] < 9).sum() for program in range(132)) == 2, "of 9 x 27 tiles"
