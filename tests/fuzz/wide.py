"""Steps in 64-bit numbers: where two layouts differ in float32, they tell rounding from another result."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.config.plan import Plan
from pallas_kernels.grouped_matmul import api
from tests import small_run


@contextmanager
def wide_numbers() -> Iterator[None]:
    """Steps that are built inside have float64 where plans and layers say float32."""
    make_plan = small_run.make_plan

    def wide_plan(*arguments: Any) -> Plan:
        plan = make_plan(*arguments)
        names = ("compute", "storage", "master", "gradient")
        wide: Any = {name: "float64" for name in names if getattr(plan.dtypes, name) == "float32"}
        return replace(plan, dtypes=replace(plan.dtypes, **wide))

    narrow = lambda one: one if isinstance(one, int) else one.astype(jnp.int32)
    alike = lambda start: [jnp.int32(one) for one in start]  # Python's numbers have 64 bits, beside arrays of 32
    slice_of, updated, loop = lax.dynamic_slice, lax.dynamic_update_slice, lax.fori_loop
    of_indices = {
        "dynamic_slice": lambda x, start, sizes: slice_of(x, alike(start), sizes),
        "dynamic_update_slice": lambda x, y, start: updated(x, y, alike(start)),
        "fori_loop": lambda first, stop, *rest: loop(narrow(first), narrow(stop), *rest),
    }
    with ExitStack() as stack:
        stack.callback(jax.clear_caches)
        jax.clear_caches()  # they do not know of `jnp.float32`
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(patch.object(jnp, "float32", jnp.float64))
        stack.enter_context(patch.multiple(lax, **of_indices))
        stack.enter_context(patch.object(small_run, "make_plan", wide_plan))
        stack.enter_context(patch.object(api, "_DTYPES", ("float64",)))
        yield
