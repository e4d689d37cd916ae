"""The training step and the engine with 64-bit numbers, in a child process: only rounding differs from float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def widen(devices: int) -> None:
    """Make the code's float32 float64; before anything of jaxpar is imported, with so many devices."""
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64
    # Indices that are written in Python would have 64 bits beside those of 32.
    narrow = lambda start: [jnp.int32(index) for index in start]
    cut, put = lax.dynamic_slice, lax.dynamic_update_slice
    lax.dynamic_slice = lambda x, start, sizes: cut(x, narrow(start), sizes)
    lax.dynamic_update_slice = lambda x, new, start: put(x, new, narrow(start))
    from jaxpar.layout import make_plan
    from pallas_kernels.grouped_matmul import api

    api._DTYPES = (*api._DTYPES, "float64")
    wide: Any = ["float64"] * 5
    make_plan._dtypes = lambda config, device: make_plan.Dtypes(*wide)


def step_gaps(layout: str, name: str) -> list[float]:
    """How far the loss of a step under a preset and its gradients are from those by hand, by the largest of each."""
    widen(8)
    from jaxpar.layout.step_layout import shardings
    from tests.given_weights import state_with
    from tests.rl.test_policy import case_of
    from tests.small_run import worst_difference

    case = case_of(layout, name)
    step, put = case.run.step, lambda leaf, sharding: jax.device_put(np.asarray(leaf, np.float64), sharding)
    master = jax.tree.map(put, case.weights, shardings(step.mesh, step.layout.master))
    loss, found = step.gradients(state_with(step, case.weights)._replace(master=master), case.run.place(case.batch))
    worst, _ = worst_difference(case.run.by_layer(found), case.gradients)
    return [abs(float(loss) - case.loss) / abs(case.loss), float(worst)]
