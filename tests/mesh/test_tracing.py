"""Programs that are traced once."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpar.mesh.tracing import TracedOnce, equations, traced


def test_a_function_is_traced_once_for_each_combination_of_types():
    calls: Counter[str] = Counter()

    def double(x: jax.Array) -> jax.Array:
        calls[str(jax.typeof(x))] += 1
        return 2 * x

    once = TracedOnce(double)
    for x in (jnp.ones(3), jnp.zeros(3), jnp.ones(2), jnp.ones(2, jnp.int32), jnp.ones(3)):
        assert (once(x) == 2 * x).all()
    assert calls == {"float32[3]": 1, "float32[2]": 1, "int32[2]": 1}


def test_what_it_was_traced_in_does_not_stay_in_it():
    """Called in two loops, whose arrays belong to different traces; and named as where it was traced."""

    def scaled(tree: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        with jax.named_scope("scaling"):
            return tree["a"] * x, tree

    once = TracedOnce(scaled)

    def both(x: jax.Array) -> jax.Array:
        step = lambda carry, _: (once({"a": carry}, x)[0], None)
        return lax.scan(step, lax.scan(step, x, length=2)[0], length=1)[0]

    program = jax.make_jaxpr(both)(jnp.float32(3))
    names = [str(e.source_info.name_stack) for e in equations(program.jaxpr) if e.primitive.name == "mul"]
    lines = {e.source_info.traceback.frames[0].line_num for e in equations(program.jaxpr) if e.primitive.name == "mul"}
    assert names == ["scaling"] * 2 and len(lines) == 1
    assert jax.jit(both)(jnp.float32(3)) == 3.0**4


def test_arrays_of_an_enclosing_trace_are_refused():
    def outer(x: jax.Array) -> jax.Array:
        return TracedOnce(lambda y: x * y)(x)

    with pytest.raises(AssertionError, match="other than its arguments"):
        jax.make_jaxpr(outer)(jnp.float32(1))


def test_a_program_may_read_them():
    def outer(x: jax.Array) -> jax.Array:
        program = traced(lambda y: (x * y, y), x)
        assert program.like[0].shape == (2,)
        return program(x)[0]

    assert (jax.jit(outer)(jnp.arange(2.0)) == jnp.array([0.0, 1.0])).all()
