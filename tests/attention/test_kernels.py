"""The kernels inside the context strategies: types of a checked `shard_map`, and which kernels a step calls.

Pallas' interpreter does not know varying types, so what the kernels compute is tested outside of maps
(`tests/pallas_kernels`). Here programs are traced, not compiled: what is compiled for GPUs has the kernels alone.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxpar.attention import ContextLayout, RowTokens, attend
from jaxpar.mesh.axes import AXES
from jaxpar.mesh.collectives import gather_context
from pallas_kernels.attention import Settings, mosaic
from pallas_kernels.masks import Mask

PART = PartitionSpec(None, "context")


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
@pytest.mark.parametrize(("strategy", "ulysses", "steps"), [("allgather", 1, 1), ("ring", 1, 3), ("usp", 2, 2)])
def test_strategies_call_the_kernels_on_parts_of_rows(
    backend: str, strategy: str, ulysses: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mosaic, "multiprocessors", lambda: 132)
    mesh = jax.make_mesh((1, 1, 1, 1, 4, 1), AXES, axis_types=(AxisType.Auto,) * 6, devices=jax.devices()[:4])
    function = attend(backend, strategy, ContextLayout("zigzag", ulysses))
    settings = Settings(Mask(segmented=True), 0.125)

    def local(q: jax.Array, k: jax.Array, v: jax.Array, indices: jax.Array, segments: jax.Array):
        row = RowTokens(indices, segments, gather_context(indices), gather_context(segments))
        out, pull = jax.vjp(lambda q, k, v: function(settings, q, k, v, row), q, k, v)
        return out, *pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(PART,) * 5, out_specs=(PART,) * 4)
    q, k = (jax.ShapeDtypeStruct((1, 512, heads, 64), jnp.bfloat16) for heads in (4, 2))
    tokens = jax.ShapeDtypeStruct((1, 512), jnp.int32)
    traced = jax.make_jaxpr(mapped)(q, k, k, tokens, tokens)
    assert [x.dtype for x in traced.out_avals] == [jnp.bfloat16] * 4
    primitive = {"triton": "pallas_call", "mosaic": "run_state"}[backend]
    assert str(traced).count(primitive) >= 3 * steps, "forward, and the gradients of queries and of keys and values"
