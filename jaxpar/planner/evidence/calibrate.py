"""`python -m jaxpar.plan calibrate`: measures what this machine reaches, and writes a profile that later plans use.

It measures what the planner's time model counts: matmuls by shape, attention by length, memory traffic, collectives by
size and number of ranks, and a layer forward and backward. The profile's `model` has the same parameters that were
fitted for GPUs (`hardware_model`); the measurements are stored beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from rich.console import Console

from jaxpar.config import Config, DataConfig, ModelConfig, ParallelConfig, PrecisionConfig, RunConfig
from jaxpar.config.schema import DistributedConfig
from jaxpar.data import batch_rows, open_data
from jaxpar.distributed.devices import find_devices, prepare_devices
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.profile import check_writable, write_profile
from jaxpar.training.step.batches import BatchPlacer
from jaxpar.training.step.train_step import TrainStep
from jaxpar.units import operations, rate, seconds

REPEATS = 5


@dataclass(frozen=True)
class Sizes:
    """Shapes and sizes that are measured."""

    matmuls: tuple[tuple[int, int, int], ...]
    """m, n and k."""
    lengths: tuple[int, ...]
    """Sequence lengths of attention."""
    messages: tuple[int, ...]
    """Message sizes in bytes, ascending."""
    traffic: int
    """Numbers that are read and written to measure memory."""
    width: int
    """Embedding width of a layer."""
    layers: tuple[int, int]
    """Layers of two decoders; the difference of their times is that of the layers."""


FULL = Sizes(
    matmuls=((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 512, 512), (256, 4096, 1024)),
    lengths=(256, 512, 1024), messages=(2**16, 2**20, 2**23), traffic=2**25, width=256, layers=(2, 4),
)  # fmt: skip
QUICK = Sizes(
    FULL.matmuls[:3], FULL.lengths[:2], FULL.messages[:2], traffic=FULL.traffic // 8, width=128, layers=(2, 4)
)


def calibrate(output: Path, devices: int, sizes: Sizes = FULL) -> dict[str, Any]:
    """Measure, print, and write the profile. Raises `UserError` where it cannot be written."""
    check_writable(output)  # fails now rather than after minutes
    prepare_devices(devices, DistributedConfig())
    found = find_devices()
    console = Console(width=120, highlight=False)
    gpu = gpu_of(found[0].device_kind)
    together = len(found) if gpu is None else 1
    matmuls = _matmuls(sizes.matmuls)
    best = max(one["flops_per_s"] for one in matmuls)
    bandwidth = _memory(sizes.traffic)
    attended = _attention(sizes.lengths)
    messages = _collectives(found, sizes.messages)
    layer = _layer(sizes.width, sizes.layers)
    peak = best if gpu is None else gpu.training_peak
    links = _links(messages, len(found))
    model = {
        "matmul_share": median(one["flops_per_s"] for one in matmuls) / peak,
        "attention_share": max(one["flops_per_s"] for one in attended) / peak,
        "message_seconds": links["start"],
    }
    if gpu is None:
        model |= {"memory_share": 1.0, "node_share": 1.0, "network_share": 1.0}
    else:
        model |= {"memory_share": bandwidth / gpu.hbm_bandwidth}
        if links["bandwidth"]:
            model |= {"node_share": links["bandwidth"] / gpu.node.bandwidth}
    profile = {
        "device": found[0].device_kind,
        "devices": len(found),
        "model": model,
        # Devices of one CPU share what one of them alone can have.
        "links": {
            "peak_flops": best / together,
            "memory_bandwidth": bandwidth / together,
            "node_bandwidth": links["bandwidth"] or bandwidth / together,
            "node_latency": links["start"],
        },
        "measured": {"matmuls": matmuls, "attention": attended, "memory_bytes_per_s": bandwidth,
                     "collectives": messages, "layer": layer},
    }  # fmt: skip
    write_profile(output, profile)
    console.print(f"{found[0].device_kind} x {len(found)}: {operations(best)}/s in matmuls, "
                  f"{rate(bandwidth)} of memory; a message takes {seconds(links['start'])} and "
                  f"{rate(links['bandwidth'])}; a layer {seconds(layer['forward_s'])} forward, "
                  f"{seconds(layer['backward_s'])} backward")  # fmt: skip
    console.print(f"Wrote {output}; plan with --profile {output}")
    return profile


def _timed(function: Callable[..., Any], *arguments: Any) -> float:
    """Median seconds of a compiled call."""
    jax.block_until_ready(function(*arguments))
    spans = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        spans.append(time.perf_counter() - start)
    return median(spans)


def _dtype() -> Any:
    return jnp.float32 if jax.devices()[0].platform == "cpu" else jnp.bfloat16


def _matmuls(shapes: tuple[tuple[int, int, int], ...]) -> list[dict[str, float]]:
    """[m, k] x [k, n] on one device."""
    found = []
    for m, n, k in shapes:
        a, b = jnp.ones((m, k), _dtype()), jnp.ones((k, n), _dtype())
        span = _timed(jax.jit(jnp.matmul), a, b)
        found.append({"m": m, "n": n, "k": k, "seconds": span, "flops_per_s": 2.0 * m * n * k / span})
    return found


def _memory(numbers: int) -> float:
    """Bytes per second of reading and writing."""
    array = jnp.ones(numbers, jnp.float32)
    return 8.0 * numbers / _timed(jax.jit(lambda a: a + 1), array)


def _attention(lengths: tuple[int, ...]) -> list[dict[str, float]]:
    """Causal attention of 4 heads of 64, forward: FLOPs of what the mask keeps."""
    found = []
    for length in lengths:
        q = jnp.ones((1, length, 4, 64), _dtype())
        run = jax.jit(partial(jax.nn.dot_product_attention, is_causal=True))
        span = _timed(run, q, q, q)
        flops = 4.0 * 4 * 64 * length * (length + 1) / 2
        found.append({"length": length, "seconds": span, "flops_per_s": flops / span})
    return found


def _collectives(devices: list[Any], sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Gather, scatter and sum over two devices and over all, by the bytes that a device has in the end."""
    found: list[dict[str, Any]] = []
    groups = [ranks for ranks in dict.fromkeys((2, len(devices))) if len(devices) % ranks == 0 and ranks > 1]
    collectives: dict[str, Callable[[jax.Array], jax.Array]] = {
        "all_gather": lambda x: jax.lax.all_gather(x, "ranks", tiled=True),
        "reduce_scatter": lambda x: jax.lax.psum_scatter(x, "ranks", tiled=True),
        "all_reduce": lambda x: jax.lax.psum(x, "ranks"),
    }
    for ranks in groups:
        mesh = jax.make_mesh(
            (len(devices) // ranks, ranks), ("others", "ranks"), devices=devices,
            axis_types=(jax.sharding.AxisType.Auto,) * 2,
        )  # fmt: skip
        both = PartitionSpec(("others", "ranks"))
        for name, collective in collectives.items():
            run = jax.jit(jax.shard_map(collective, mesh=mesh, in_specs=both, out_specs=both, check_vma=False))
            for whole in sizes:
                own = whole // 4 // (ranks if name == "all_gather" else 1)
                span = _timed(run, jnp.ones(own * len(devices), jnp.float32))
                found.append({"collective": name, "ranks": ranks, "bytes": whole, "seconds": span})
    return found


def _links(messages: list[dict[str, Any]], devices: int) -> dict[str, float]:
    """Seconds before anything is sent, and bytes per second, of gathers over all devices: smallest against largest."""
    gathers = [one for one in messages if one["collective"] == "all_gather" and one["ranks"] == devices]
    if not gathers:
        return {"start": 0.0, "bandwidth": 0.0}
    few, many = gathers[0], gathers[-1]
    sent = (devices - 1) / devices * (many["bytes"] - few["bytes"])
    span = max(many["seconds"] - few["seconds"], 1e-9)
    return {"start": few["seconds"], "bandwidth": sent / span}


def _layer(width: int, depths: tuple[int, int]) -> dict[str, float]:
    """Two decoders of so many layers, forward and with the backward: the difference is that of their layers."""
    spans: dict[int, tuple[float, float]] = {}
    flops: dict[int, float] = {}
    for layers in depths:
        model = ModelConfig(layers=layers, embed=width, heads=4, mlp=4 * width, vocab=256)
        data = DataConfig(source="synthetic", sequence_length=128, batch_size=1)
        config = Config(
            run=RunConfig(compile_cache=None), model=model, parallel=ParallelConfig(),
            precision=PrecisionConfig(compute=jnp.dtype(_dtype()).name), data=data,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        config = resolve_config(config, 1)
        plan = make_plan(config, jax.devices()[0])
        step = TrainStep(StepLayout(config, plan), build_mesh(plan.axes, jax.devices()[:1]))
        state, placer = step.residency.initial_state(), BatchPlacer(step.layout, step.mesh)
        source = open_data(config.data, vocab=256, seed=0)
        batch = placer(batch_rows(source.train, 0, 1, placer.rows))
        spans[layers] = (
            _timed(step.evaluate, step.residency.readable(state.master), batch),
            _timed(step.gradients, state, batch),
        )
        flops[layers] = flops_per_step(model, 128, causal_pairs(model, 128, 128), 256)
    few, many = depths
    forward, both = (max(0.0, b - a) / (many - few) for a, b in zip(spans[few], spans[many], strict=True))
    each = (flops[many] - flops[few]) / (many - few)
    return {"forward_s": forward, "backward_s": max(0.0, both - forward), "flops": each}
