"""`python -m jaxpar.plan calibrate`: measures achieved throughput, and writes tables that later plans use.

It measures the operations of the planner's cost model: the matmuls of a model, its attention, memory, copies to the
host and back, and collectives. All processes of a job measure at the same time, as they would train; process 0
writes.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import jax

from jaxpar.compiler.inspection import check_writable
from jaxpar.compiler.report.screen import print_lines, screen
from jaxpar.config import Config, DataConfig, ModelConfig, PrecisionConfig, RunConfig, UserError, load_config
from jaxpar.config.kinds import kind_models
from jaxpar.config.presets import PRESETS
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.distributed.devices import devices_per_node, find_devices, prepare_devices
from jaxpar.hardware.catalogue import GPU, gpu_of
from jaxpar.hardware.sources import chosen
from jaxpar.pages.units import KIB, MIB, operations, rate, seconds
from jaxpar.planner.calibration import compute
from jaxpar.planner.calibration.collectives import measured_collectives
from jaxpar.planner.calibration.stopwatch import Stopwatch
from jaxpar.planner.machine import cluster_at_hand
from jaxpar.planner.planning import planned_config
from jaxpar.planner.profile import Profile, Sent, write_profile


@dataclass(frozen=True)
class Sizes:
    """Sizes of the shapes to measure."""

    sequences: tuple[float, ...]
    """Microbatch sizes, in sequences of the model's configuration."""
    tensor: tuple[int, ...]
    """Tensor-parallel degrees."""
    lengths: tuple[int, ...]
    """Sequence lengths of attention."""
    memory: int
    """Elements of each array in the test of memory bandwidth."""
    copies: int
    """Bytes of copies to the host and back."""
    messages: tuple[int, ...]
    """Bytes of collectives, ascending."""
    loop_s: float
    """Minimum seconds of a timed loop."""


SIZES = chosen("what is measured")
ON_GPU: Annotated[Sizes, SIZES] = Sizes(
    sequences=(0.25, 1, 4), tensor=(1, 2, 4, 8), lengths=(4096, 8192, 16384, 32768), memory=2**28,
    copies=256 * MIB, messages=tuple(16 * KIB * 4**step for step in range(9)), loop_s=0.05,
)  # fmt: skip
"""The sizes that are measured on GPUs."""
ON_CPU: Annotated[Sizes, SIZES] = Sizes(
    sequences=(0.5, 1, 2), tensor=(1, 2, 4, 8), lengths=(128, 256, 512), memory=2**24, copies=4 * MIB,
    messages=(16 * KIB, 256 * KIB, 4 * MIB), loop_s=0.02,
)  # fmt: skip
"""The sizes that are measured on CPUs."""

DEFAULT_ON_GPU = Config(
    run=RunConfig(name="llama3-8b"),
    model=PRESETS["llama3-8b"],
    data=DataConfig(source="synthetic", sequence_length=8192),
)
"""The model whose shapes are measured on GPUs if --config is not set."""
DEFAULT_ON_CPU = Config(
    run=RunConfig(name="a small decoder"),
    model=ModelConfig(layers=4, embed=128, heads=8, kv_heads=8, mlp=384, vocab=256),
    precision=PrecisionConfig(compute="float32"),
    data=DataConfig(source="synthetic", sequence_length=256),
)
"""The model whose shapes are measured on CPUs if --config is not set."""


@dataclass(frozen=True)
class Calibration:
    """The user's options."""

    output: Path
    """The profile to write."""
    config: Path | None = None
    """The model whose shapes are measured; None for a default."""
    overrides: Sequence[str] = ()
    """`key=value` for the configuration."""
    devices: int = 8
    """Virtual devices of a CPU."""
    sizes: Sizes | None = None
    """Sizes to measure; None for the defaults of the device."""

    def run(self) -> Profile:
        """Measure, print, and write the profile.

        Raises `UserError` if it cannot be written, the GPU is not in the catalogue, or nothing could be measured.
        """
        prepare_devices(self.devices, self._config(DEFAULT_ON_GPU).distributed)
        devices = find_devices()
        if jax.process_index() == 0:
            check_writable(self.output)  # fails now rather than after minutes
        device = jax.local_devices()[0]
        gpu = gpu_of(device.device_kind)
        if gpu is None and device.platform != "cpu":
            raise UserError(
                f"calibrate: {device.device_kind} is not in the catalogue of GPUs, so no cluster can be planned with it"
            )
        config = planned_config(self._config(DEFAULT_ON_CPU if gpu is None else DEFAULT_ON_GPU))
        profile = self._measured(config, devices, gpu)
        if jax.process_index() == 0:
            write_profile(self.output, profile)
            _print(profile, self.output)
        return profile

    def _config(self, usual: Config) -> Config:
        if self.config is None:
            return with_overrides(usual, self.overrides)
        return load_config(self.config, self.overrides)

    def _measured(self, config: Config, devices: list[Any], gpu: GPU | None) -> Profile:
        sizes, device = self.sizes or (ON_CPU if gpu is None else ON_GPU), jax.local_devices()[0]
        watch = Stopwatch(sizes.loop_s)
        watch.measure_launch()
        shapes = compute.matmuls_of(config, cluster_at_hand(devices), sizes.sequences, sizes.tensor)
        unmeasurable_here = unmeasurable(config, devices, device)
        if jax.process_index() == 0:
            lengths, messages = ", ".join(map(str, sizes.lengths)), len(sizes.messages)
            print_lines(
                screen(),
                f"Measuring {len(shapes)} matmuls, attention over {lengths} tokens, memory, copies to the host, and "
                f"collectives of {messages} sizes; on a GPU this takes minutes",
            )
        measured = Profile(
            device=device.device_kind,
            devices=len(devices),
            processes=jax.process_count(),
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            versions={
                "python": platform.python_version(),
                "jax": jax.__version__,
                "jaxlib": version("jaxlib"),
                "platform": " ".join(device.client.platform_version.split()),
            },
            shapes=f"{config.run.name}, rows of {config.data.sequence_length:,} tokens",
            launch_seconds=watch.launch_s,
            matmuls=tuple(compute.measured_products(watch, shapes, config.precision.compute)),
            attention=tuple(compute.measured_attention(watch, config, sizes.lengths)),
            collectives=tuple(measured_collectives(watch, devices, sizes.messages)),
            could_not_measure=tuple(unmeasurable_here),
        )
        moved, copied = compute.memory_rate(watch, sizes.memory), compute.copy_rate(watch, device, sizes.copies)
        measured = replace(measured, refused=tuple(watch.refused))
        if gpu is None:
            model, links = _of_cpu(measured, moved)
        else:
            model, links = {} if moved is None else {"memory_share": moved / gpu.hbm_bandwidth}, {}
        if copied is not None:
            links["host_bandwidth"] = copied / (1 if gpu is not None else len(devices))
        return replace(measured, model=model, links=links)


def unmeasurable(config: Config, devices: list[Any], device: Any) -> list[str]:
    """Parameters that this machine, or `calibrate` itself, cannot measure, each with the reason."""
    notes = []
    if len(devices) == 1:
        notes.append("messages between devices: there is one device")
    elif devices_per_node(devices) == len(devices):
        notes.append("messages between hosts: all devices are in one host; start a process on each of several hosts")
    if (why := compute.why_no_copies(device)) is not None:
        notes.append(f"host copies: {why}")
    if config.precision.matmul is not None:
        notes.append(f"matmuls in FP8 ({config.precision.matmul}): the planner uses its default efficiency")
    if any(model.experts is not None for model in kind_models(config.model).values()):
        notes.append("grouped matmuls of experts: the planner uses its default efficiency")
    return notes


def _of_cpu(measured: Profile, moved: float | None) -> tuple[dict[str, float], dict[str, float]]:
    """`Profile.model` and `links` where no datasheet has peaks and links, and memory moves so many bytes a second.
    Rates are divided by the number of virtual devices, which share one CPU. Raises `UserError` if nothing was
    measured."""
    rates = [2.0 * one.m * one.n * one.k / one.seconds for one in measured.matmuls]
    if not rates or moved is None:
        raise UserError(f"calibrate: nothing could be measured on this machine ({measured.refused[0]})")
    devices, peak = measured.devices, max(rates)
    attended = [4.0 * one.width * one.heads * one.length * one.keys / one.forward for one in measured.attention]
    latency, sent = _gathers([one for one in measured.collectives if one.ranks == devices])
    model = {
        "matmul_share": median(rates) / peak,
        "message_seconds": latency,
        "memory_share": 1.0,
        "node_share": 1.0,
        "network_share": 1.0,
    }
    if attended:
        model["attention_share"] = max(attended) / peak
    return model, {
        "peak_flops": peak / devices,
        "memory_bandwidth": moved / devices,
        "node_bandwidth": sent or moved / devices,
        "node_latency": 0.0,  # `message_seconds` is the time of the smallest gather, hops included
    }


def _gathers(messages: Sequence[Sent]) -> tuple[float, float]:
    """Latency (the seconds of the smallest all-gather) and bytes a second of all-gathers, from the smallest and the
    largest; zeros if there are fewer than two."""
    gathers = [one for one in messages if one.collective == "all_gather"]
    if len(gathers) < 2:
        return 0.0, 0.0
    smallest, largest = gathers[0], gathers[-1]
    sent = (largest.ranks - 1) / largest.ranks * (largest.bytes - smallest.bytes)
    return smallest.seconds, sent / max(largest.seconds - smallest.seconds, 1e-9)


def _print(profile: Profile, output: Path) -> None:
    rates = [2.0 * one.m * one.n * one.k / one.seconds for one in profile.matmuls]
    fastest = f", up to {operations(max(rates))}/s" if rates else ""
    backends = sorted({one.backend for one in profile.attention})
    attended = [f"attention by {' and '.join(backends)} at {len(profile.attention)} lengths"] if backends else []
    copied = profile.links.get("host_bandwidth")
    parts = [
        f"{len(profile.matmuls)} matmuls of {profile.shapes}{fastest}", *attended,
        *([f"host copies at {rate(copied)} for a device"] if copied else []),
        f"{len(profile.collectives)} collectives",
    ]  # fmt: skip
    print_lines(
        screen(), f"{profile.title}: {'; '.join(parts)}; the smallest kernel takes {seconds(profile.launch_seconds)}"
    )
    if profile.refused:
        print_lines(screen(), f"Discarded {len(profile.refused)} measurements, the first: {profile.refused[0]}")
    for line in profile.could_not_measure:
        print_lines(screen(), f"Could not measure {line}")
    print_lines(screen(), f"Wrote {output}; plan with --profile {output}")
