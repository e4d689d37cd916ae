"""What ranks may leave out must have no collective permute, however deep it lies."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxpar.mesh.tracing import refuse_permutes
from tests.sentences import refused
from tests.traced import mesh_of

MESH = mesh_of(context=2)


def traced(collective: Any) -> Any:
    """A program in which `collective` stands under a checkpoint, a scan and a branch."""

    def program(x: jax.Array) -> jax.Array:
        deep = jax.checkpoint(lambda x: lax.cond(x[0] > 0, collective, lambda x: x, x))
        return lax.scan(lambda x, _: (deep(x), None), x, jnp.arange(2))[0]

    mapped = jax.shard_map(program, mesh=MESH, in_specs=PartitionSpec("context"), out_specs=PartitionSpec("context"))
    return jax.make_jaxpr(mapped)(jnp.ones(4)).jaxpr


def test_a_permute_is_found_and_named_with_its_axis():
    with refused("pipe_ticks", "branching", "over context", "uniform"):
        refuse_permutes(traced(lambda x: lax.ppermute(x, "context", [(0, 1), (1, 0)])))


def test_group_collectives_are_no_permutes():
    refuse_permutes(traced(lambda x: lax.pcast(lax.psum(x, "context"), "context", to="varying")))
