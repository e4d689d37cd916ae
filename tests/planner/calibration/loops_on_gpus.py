"""Loops of the stopwatch, compiled for H100s in a child process."""

from functools import partial
from typing import Any

from tests.gpu_compile import compile_for_gpu, h100s


def bodies() -> dict[str, str]:
    """The body of each kind of loop, as text."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding

    from jaxpar.planner.calibration.collectives import EVERYWHERE, arrays, on_mesh, steps
    from jaxpar.planner.calibration.compute import added, mean, multiplied
    from jaxpar.planner.calibration.stopwatch import repeated

    one = SingleDeviceSharding(h100s("1x1x1")[0])
    devices = np.array(h100s("1x1x8")).reshape(1, 8, 1)
    mesh = Mesh(devices, ("outer", "ranks", "inner"), axis_types=(AxisType.Auto,) * 3)
    half, single = (lambda *shape: (shape, jnp.bfloat16)), (lambda *shape: (shape, jnp.float32))

    def body(function: Any, sharding: Any, *arrays: Any) -> str:
        shapes = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in arrays]
        text = compile_for_gpu(jax.jit(function), *shapes).as_text()
        assert 'known_trip_count":{"n":"7"}' in text, "a loop of unknown length would wait for the host in each turn"
        (name,) = {line.partition("body=")[2].split(",")[0] for line in text.splitlines() if " while(" in line}
        return text.partition(f"\n{name} (")[2].partition("\n}")[0]

    times = partial(repeated, multiplied(None), 7)
    found = {
        "matmul": body(times, one, half(1024, 512), half(1024, 256), half(256, 512)),
        "added matmul": body(
            partial(repeated, added(None), 7), one, single(1024, 512), half(256, 1024), half(256, 512)
        ),
        "fusion": body(partial(repeated, mean, 7), one, single(2**20), single(2**20)),
    }
    for name, step in steps(8):
        sizes = [single(8 * size) for size in arrays(name, 2**18, 8)]
        found[name] = body(on_mesh(mesh, partial(repeated, step, 7)), NamedSharding(mesh, EVERYWHERE), *sizes)
    return found
