"""The gated feed-forward of groups: results and gradients against float64, the kernel simulated and compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped_matmul import Matrices, grouped_feed_forward
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.sentences import refused

ROWS, GROUPS, WIDE = 90, 4, 64


def arrays(dtype: str) -> tuple[jax.Array, Matrices, jax.Array, jax.Array]:
    """Rows, matrices, factors and the gradient of the result."""
    draw = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(draw.normal(size=shape) / 4, dtype)
    matrices = Matrices(*(normal(GROUPS, WIDE, WIDE) for _ in range(3)))
    return normal(ROWS, WIDE), matrices, jnp.asarray(draw.random(ROWS), jnp.float32), normal(ROWS, WIDE)


def expected(rows: Any, w: Matrices, factors: Any, dy: Any, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """In float64: the result, and the gradients of rows, up, gate, down and factors."""
    rows, up, gate, down, factors, dy = (np.asarray(x, np.float64) for x in (rows, *w, factors, dy))
    found = [np.zeros_like(x) for x in (dy, rows, up, gate, down, factors)]
    first = 0
    for group, size in enumerate(sizes):
        own, first = slice(first, first + size), first + size
        x, f, d = rows[own], factors[own, None], dy[own]
        a, g = x @ up[group], x @ gate[group]
        s = 1 / (1 + np.exp(-g))
        hidden, d_hidden = g * s * a, d @ down[group].T
        d_up, d_gate = d_hidden * f * g * s, d_hidden * f * a * s * (1 + g * (1 - s))
        found[0][own], found[1][own] = (hidden * f) @ down[group], d_up @ up[group].T + d_gate @ gate[group].T
        found[2][group], found[3][group], found[4][group] = x.T @ d_up, x.T @ d_gate, (hidden * f).T @ d
        found[5][own] = (d_hidden * hidden).sum(1)
    return found


def by(name: str, rows: Any, w: Matrices, factors: Any, dy: Any, sizes: Any, interpret: bool = False) -> list[Any]:
    run = partial(grouped_feed_forward, implementation=name, interpret=interpret)
    out, pull = jax.vjp(lambda x, w, f: run(x, w, jnp.asarray(sizes, jnp.int32), f), rows, w, factors)
    d_rows, d_w, d_factors = pull(dy)
    return [out, d_rows, *d_w, d_factors]


def worst(have: list[Any], wanted: list[np.ndarray]) -> float:
    """The largest error of a result, relative to its largest number; infinite where something is not finite."""
    errors = [np.abs(np.asarray(a, np.float64) - b).max() / np.abs(b).max() for a, b in zip(have, wanted, strict=True)]
    return max(error if np.isfinite(error) else np.inf for error in errors)


@pytest.mark.parametrize("sizes", [(20, 40, 0, 30), (1, 0, 70, 3)], ids=str)
def test_results_and_gradients_are_those_of_float64(sizes: tuple[int, ...]) -> None:
    given = arrays("float32")
    assert worst(by("xla", *given, sizes), expected(*given, sizes)) < 1e-5


@pytest.mark.parametrize("sizes", [(20, 40, 0, 30), (1, 0, 70, 3)], ids=str)
def test_the_interpreted_kernel_is_as_near_to_float64_as_plain_jax(sizes: tuple[int, ...]) -> None:
    rows, w, factors, dy = arrays("bfloat16")
    rows, factors, dy = (x.at[sum(sizes) :].set(jnp.nan) for x in (rows, factors, dy))
    wanted = expected(rows, w, factors, dy, sizes)
    low = worst(by("xla", rows, w, factors, dy, sizes), wanted)
    assert worst(by("triton", rows, w, factors, dy, sizes, interpret=True), wanted) <= 2 * low


@pytest.mark.long
def test_the_simulated_kernel_is_as_near_to_float64_as_plain_jax_and_without_a_race(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tiles that are not full, a whole half, an empty group; what lies behind the groups is no number."""
    watch_tensor_cores(monkeypatch, late_in="add", seconds=0.02, in_flight=1)
    sizes = (3, 0, 70, 1)
    rows, w, factors, dy = arrays("bfloat16")
    rows, factors, dy = (x.at[sum(sizes) :].set(jnp.nan) for x in (rows, factors, dy))
    wanted = expected(rows, w, factors, dy, sizes)
    low = worst(by("xla", rows, w, factors, dy, sizes), wanted)
    assert worst(by("mosaic", rows, w, factors, dy, sizes, interpret=True), wanted) <= 2 * low
    assert REPORTED not in capfd.readouterr().out


@pytest.mark.long
def test_both_products_are_one_kernel_that_spills_nothing() -> None:
    """At DeepSeek-V3's width; beside the kernels there are temporaries for the gradients of up and gate, or hidden."""
    found = in_child("tests.pallas_kernels.grouped_matmul.gpu_grouped:feed_forward", 8192, 4, 7168, 2048)
    kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
    assert sorted(kernel["name"].removeprefix("grouped_matmul_") for kernel in found["kernels"]) == [
        "gated", *["of_rows"] * 4, *["of_weights"] * 3
    ]  # fmt: skip
    gated = kernels["grouped_matmul_gated"]
    for kernel in found["kernels"]:
        machine_code.check(kernel)
    assert gated["wgmma"] == 8
    assert gated["waits"] == [0, 0, 2], "two products are waited for when the next two are under way"
    assert max(found["shared"]) <= machine_code.SHARED["h100"]
    assert found["temporary"] < 3 * 8192 * 2048 * 2 + 2**24


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"down": (4, 64, 32)}, ("up (4, 64, 64)", "down (4, 64, 32)")),
        ({"factors": (91,)}, ("90 rows", "(91,)")),
        ({"gate": (4, 32, 64)}, ("(90, 64)", "(4, 32, 64)")),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict[str, tuple[int, ...]], parts: tuple[str, ...]) -> None:
    rows, w, factors, _ = arrays("float32")
    w = w._replace(**{name: jnp.zeros(shape) for name, shape in change.items() if name in Matrices._fields})
    factors = jnp.zeros(change.get("factors", factors.shape))
    with refused(*parts, error=ValueError):
        grouped_feed_forward(rows, w, jnp.zeros((4,), jnp.int32), factors)
