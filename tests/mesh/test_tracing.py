"""Programs inside programs, and functions that are traced once and repeated."""

from collections import Counter

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.mesh.tracing import equations


def test_a_function_that_is_inlined_is_traced_once_and_named_as_where_it_was_traced():
    """Called in two loops, whose arrays belong to different traces; the pipeline's ticks are repeated so."""
    calls: Counter[str] = Counter()

    def scaled(tree: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        calls[str(jax.typeof(x))] += 1
        with jax.named_scope("scaling"):
            return tree["a"] * x, tree

    once = jax.jit(scaled, inline=True)

    def both(x: jax.Array) -> jax.Array:
        step = lambda carry, _: (once({"a": carry}, x)[0], None)
        return lax.scan(step, lax.scan(step, x, length=2)[0], length=1)[0]

    program = jax.make_jaxpr(both)(jnp.float32(3))
    found = [e.source_info for e in equations(program.jaxpr) if e.primitive.name == "mul"]
    assert [str(own.name_stack) for own in found] == ["scaling"] * 2
    assert len({own.traceback.frames[0].line_num for own in found if own.traceback is not None}) == 1
    assert calls == {"float32[]": 1}
    assert "call @" not in jax.jit(both).lower(jnp.float32(3)).as_text()
    assert jax.jit(both)(jnp.float32(3)) == 3.0**4
