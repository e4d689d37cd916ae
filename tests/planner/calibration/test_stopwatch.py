"""The stopwatch: what it times is all there, on the device, and what is bound by launches is refused."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from jaxpar.planner.calibration.stopwatch import Stopwatch, Unmeasurable
from tests.gpu_compile import in_child

OPERATIONS = {
    "matmul": "__cublas", "added matmul": "__cublas", "fusion": "kind=kLoop", "all_gather": "all-gather-start(",
    "reduce_scatter": "reduce-scatter-start(", "all_reduce": "all-reduce-start(", "all_to_all": "all-to-all-start(",
    "permute": "collective-permute-start(",
}  # fmt: skip


@pytest.mark.long
def test_on_gpus_a_turn_of_a_loop_is_the_operation_and_nothing_else():
    """Nothing is moved out of the loop, copied, or merged with another: the counter is the only other kernel."""
    bodies = in_child("tests.planner.calibration.loops_on_gpus:bodies")
    assert bodies.keys() == OPERATIONS.keys()
    for name, body in bodies.items():
        kernels = [
            line for line in body.splitlines() if re.search(r" (fusion|custom-call|copy|[\w-]+-start)\(", line)
            and not re.search(r"= s32\[\] fusion\(", line)
        ]  # fmt: skip
        assert len(kernels) == 1 and OPERATIONS[name] in kernels[0], f"{name}: {kernels}"


def test_an_operation_takes_its_share_of_a_longer_loop():
    """A step of four dependent products takes about four times as long as one of one."""
    watch = Stopwatch(loop_s=0.02)
    square = jnp.ones((192, 192)) / 192

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    def four(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w @ w @ w @ w

    ratios = [watch.loop(four, square, square) / watch.loop(product, square, square) for _ in range(3)]
    assert 2 < sorted(ratios)[1] < 8


def test_what_is_bound_by_launches_or_cannot_be_measured_is_refused_with_the_reason():
    watch = Stopwatch(loop_s=0.02, launch_s=3e-6)

    def fails(error: Exception) -> float:
        raise error

    assert watch.record_seconds("long", lambda: 31e-6) == 31e-6
    assert watch.record_seconds("short", lambda: 29e-6) is None
    assert watch.record_seconds("no longer", lambda: fails(Unmeasurable("a longer loop took no more time"))) is None
    assert (
        watch.record_seconds("too large", lambda: fails(JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))) is None
    )
    assert watch.refused == [
        "short: 29.0 us are bound by launches: less than 10 times the 3.00 us of the smallest kernel",
        "no longer: a longer loop took no more time",
        "too large: it does not fit the device's memory",
    ]
    with pytest.raises(JaxRuntimeError):
        watch.record_seconds("broken", lambda: fails(JaxRuntimeError("INTERNAL: a bug")))
