"""The kinds of cases that JAX's and tokamax' tests of ragged products have, against float64: by Triton's kernels in
Pallas' interpreter, by Mosaic's in its simulator.

JAX's are of `tests/pallas/mgpu_ragged_dot_test.py`, of a hundredth of the rows; tokamax' of
`tokamax/_src/ops/ragged_dot/test_base.py`, as large as there. Each has all three products, of which those tests have
one or two. Left out is what `grouped_matmul` has no argument for: float32 operands, a dtype of the result of its own,
and quantized operands, which `grouped_tiled_matmul` has. Mosaic's sides are rounded up to multiples of 64.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pallas_kernels.attention.mosaic.simulator import REPORTED
from tests.pallas_kernels.grouped_matmul.grouped64 import arrays, by, expected, worst


class Case(NamedTuple):
    """Rows, widths and groups, and how the rows are shared out."""

    rows: int
    k: int
    n: int
    groups: int
    split: str
    dtype: str = "bfloat16"

    def sizes(self) -> np.ndarray:
        draw = np.random.default_rng(1234)
        if self.split == "even":
            return np.full(self.groups, self.rows // self.groups)
        if self.split == "room behind":
            return draw.integers(0, self.rows // self.groups, self.groups)
        assert self.split == "anywhere", self.split
        return np.diff(np.sort(draw.integers(0, self.rows, self.groups - 1)), prepend=0, append=self.rows)


CASES = {
    **{f"jax: {n} groups": Case(164, 64, 164, n, "anywhere", "float16") for n in (1, 3, 16)},
    "tokamax: even": Case(1024, 128, 256, 8, "even"),
    "tokamax: padded": Case(1024, 128, 256, 8, "room behind"),
    "tokamax: narrow": Case(128, 64, 128, 8, "even"),
}

interpreted = jax.jit(partial(by, "triton", interpret=True))
KERNELS = {"triton": (1, interpreted), "mosaic": (64, partial(by, "mosaic", interpret=True))}
"""The multiple to which sides are rounded, and the products."""
plain = jax.jit(partial(by, "xla"))


@pytest.mark.matrix(quick=("triton-tokamax: padded",), ci=2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_case_of_a_public_grid_is_as_near_to_float64_as_plain_jax(
    kernels: str, case: Case, capfd: pytest.CaptureFixture[str]
) -> None:
    sizes, (multiple, products) = case.sizes(), KERNELS[kernels]
    k, n = (-(-side // multiple) * multiple for side in (case.k, case.n))
    given = arrays(case.rows, case.groups, k, n, case.dtype)
    wanted = expected(*given, sizes)
    assert worst(products(*given, sizes), wanted) <= 2 * worst(plain(*given, sizes), wanted)
    assert REPORTED not in capfd.readouterr().out


@pytest.mark.long
def test_any_of_eight_groups_may_be_empty() -> None:
    """All 256 choices of which are, as in tokamax: results are those of the groups that are left."""
    given, sizes = arrays(90, 8, 32, 48), np.array([5, 17, 1, 9, 24, 8, 3, 16])
    for pattern in range(256):
        own = np.where(np.unpackbits(np.uint8(pattern)), sizes, 0)
        wanted = expected(*given, own)
        assert worst(interpreted(*given, jnp.asarray(own)), wanted) < 0.01, own
