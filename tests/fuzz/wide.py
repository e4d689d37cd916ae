"""Steps in 64-bit numbers: where two layouts differ in float32, they tell rounding from another result."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp

from jaxpar.config.plan import Plan
from jaxpar.layers import dropout
from pallas_kernels.grouped_matmul import api
from tests import small_run

SETTING = "jax_explicit_x64_dtypes"
"""Its `allow` leaves default dtypes and those of indices at 32 bits, unlike `jax_enable_x64`."""
DRAWS = ("normal", "uniform", "gumbel")


@contextmanager
def wide_numbers() -> Iterator[None]:
    """Steps that are built inside have float64 where plans and layers say float32; what they draw has equal values."""
    before, float32, make_plan = getattr(jax.config, SETTING), jnp.float32, small_run.make_plan

    def widened(draw: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        narrow = lambda dtype: float32 if dtype == jnp.float64 else dtype
        return lambda key, shape=(), dtype=float32, *more: draw(key, shape, narrow(dtype), *more).astype(jnp.float64)

    def wide_plan(*arguments: Any) -> Plan:
        plan = make_plan(*arguments)
        names = ("compute", "storage", "master", "gradient")
        wide: Any = {name: "float64" for name in names if getattr(plan.dtypes, name) == "float32"}
        return replace(plan, dtypes=replace(plan.dtypes, **wide))

    drawing = SimpleNamespace(**vars(jnp) | {"float32": float32})  # distributions that are named in tables
    with ExitStack() as stack:
        stack.callback(jax.clear_caches)
        stack.callback(jax.config.update, SETTING, before)
        jax.config.update(SETTING, "allow")
        jax.clear_caches()  # they do not know of `jnp.float32`
        stack.enter_context(patch.multiple(jax.random, **{name: widened(getattr(jax.random, name)) for name in DRAWS}))
        stack.enter_context(patch.object(dropout, "jnp", drawing))
        stack.enter_context(patch.object(jnp, "float32", jnp.float64))
        stack.enter_context(patch.object(api, "_DTYPES", ("float64",)))
        stack.enter_context(patch.object(small_run, "make_plan", wide_plan))
        yield
