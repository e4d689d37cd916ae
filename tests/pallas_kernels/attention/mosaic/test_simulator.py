"""Races with what tensor cores read, which Mosaic GPU's simulator overlooks by itself, are seen with `simulator`."""

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention.mosaic.matmuls import product
from pallas_kernels.attention.mosaic.memory import tiled
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores

TILES = 2


def squares(x: jax.Array, *, early: bool) -> jax.Array:
    """The sum of `tile @ tile`, where the tile's memory is free for the next before or after its product is over."""

    def kernel(x_ref: Any, out_ref: Any, tile: Any, ready: Any, free: Any) -> None:
        @pl.when(jax.lax.axis_index("warpgroup") == 0)
        def _() -> None:
            plgpu.barrier_arrive(free)
            total = jnp.zeros(out_ref.shape, jnp.float32)
            for _ in range(TILES):
                plgpu.barrier_wait(ready)
                over = lambda: plgpu.barrier_arrive(free)
                total += product(tile, tile, over if early else None)
                pl.when(not early)(over)
            out_ref[...] = total

        @pl.when(jax.lax.axis_index("warpgroup") == 1)
        def _() -> None:
            for i in range(TILES):
                plgpu.barrier_wait(free)
                plgpu.copy_gmem_to_smem(x_ref.at[i], tile, ready)
            plgpu.barrier_wait(free)

    run = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape[1:], jnp.float32),
        scratch_types=[tiled(x.shape[1:], x.dtype), plgpu.Barrier(), plgpu.Barrier()],
        num_threads=2,
        thread_name="warpgroup",
        interpret=plgpu.InterpretGPUParams(detect_races=True),
    )
    return run(x)


@pytest.mark.parametrize("early", [True, False])
def test_what_is_loaded_over_an_operand_of_a_product_that_is_not_over_is_a_race(
    early: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watch_tensor_cores(monkeypatch)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(TILES, 64, 64)), jnp.bfloat16)
    found = squares(x, early=early)
    assert (REPORTED in capfd.readouterr().out) == early
    if not early:
        exact = np.asarray(x, np.float64)
        assert np.allclose(found, (exact @ exact).sum(0), atol=1e-3)


@pytest.mark.parametrize(("left", "freed"), [(1, "first"), (0, "both"), (1, "both")])
def test_a_wait_that_leaves_a_product_under_way_ends_the_reads_of_those_before_alone(
    left: int, freed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two products, whose operands are written when the first was waited for, or both."""
    watch_tensor_cores(monkeypatch)

    def kernel(x_ref: Any, out_ref: Any, one: Any, two: Any, ready: Any) -> None:
        for tile in (one, two):
            plgpu.copy_gmem_to_smem(x_ref, tile, ready)
            plgpu.barrier_wait(ready)

        def compute(first: Any, second: Any) -> jax.Array:
            plgpu.wgmma(first, one, one)
            plgpu.wgmma(second, two, two)
            total = plgpu.wgmma_accumulator_load(first, wait_n=left)
            for tile in (one,) if freed == "first" else (one, two):
                tile[...] = jnp.zeros_like(tile)
            return total + second[...]

        types = [plgpu.WGMMAAccumulatorRef(out_ref.shape, jnp.float32)] * 2
        out_ref[...] = pl.run_scoped(compute, *types)

    x = jnp.ones((64, 64), jnp.bfloat16)
    run = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        scratch_types=[tiled(x.shape, x.dtype)] * 2 + [plgpu.Barrier()],
        interpret=plgpu.InterpretGPUParams(detect_races=True),
    )
    assert (np.asarray(run(x)) == 128).all()
    assert (REPORTED in capfd.readouterr().out) == (left == 1 and freed == "both")
