"""Makes the configuration of a layout, and the `Plan` that the trainer would make of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.plan import LayerRun, Plan
from jaxpar.config.schema import MemoryConfig, ParallelConfig
from jaxpar.config.schema.layout import fixed_for_planner
from jaxpar.cost.layout import Layout, Remat, RematRuns
from jaxpar.hardware.cluster import Cluster
from jaxpar.memory.remat import LAYERS, PRESET, TREATMENTS, Treatment, layer_runs, nearest_preset
from jaxpar.planner.machine import CPU, is_cpu

ONE_STAGE = "one-stage"

type Runs = tuple[LayerRun, ...]


def config_of(config: Config, layout: Layout) -> Config:
    """`config` with everything that `layout` decides written out; `auto` stays only where it does not change the time.

    Args:
        config: its model, data, precision, optimizer and sizes of tiles are kept.
        layout: of all devices.
    """
    pipelined = layout.pipe > 1
    fixed = fixed_for_planner(config.parallel)
    fixed["overlap"] = replace(fixed["overlap"], shard_state_over_replicas=layout.shard_state)
    fixed["experts"] = replace(fixed["experts"], slices=layout.expert_slices, own_rows=layout.expert_own_rows)
    parallel = ParallelConfig(
        pipe=layout.pipe,
        replica=layout.replica,
        fsdp=layout.fsdp,
        expert=layout.expert,
        context=layout.context,
        **fixed,
        tensor=layout.tensor,
        zero=layout.zero,  # pyright: ignore[reportArgumentType]
        microbatches=layout.microbatches(config.data.batch_size),
        schedule=layout.schedule if pipelined else "auto",
        virtual_stages=layout.virtual_stages if pipelined else None,
        stage_layers=layout.stage_layers if pipelined else None,
        pipe_ends="shared" if layout.shared_embed_and_head else "last",
        context_strategy=layout.context_strategy if layout.context > 1 else "auto",  # pyright: ignore
    )
    return replace(config, parallel=parallel, memory=_memory_of(config.memory, layout))


def _memory_of(memory: MemoryConfig, layout: Layout) -> MemoryConfig:
    return replace(
        memory,
        remat=written(layout.remat) if not isinstance(layout.remat, str) else layout.remat,
        offload_fraction=layout.offload_fraction,
        optimizer_offload="host" if layout.optimizer_offload else "none",
        offload_dir=None,
    )  # pyright: ignore[reportArgumentType]


def written(remat: Sequence[tuple[int, Sequence[tuple[str, str]]]]) -> dict[str, str | int] | tuple:
    """Runs of layers in the form of `memory.remat`: each is the nearest preset and what differs from it."""
    entries, first = [], 0
    for layers, treatments in remat:
        base, changed = nearest_preset(dict(treatments))
        last = first + layers - 1
        entries.append({LAYERS: f"{first}-{last}" if layers > 1 else str(first), PRESET: base, **changed})
        first = last + 1
    if len(entries) > 1:
        return tuple(entries)
    return {name: value for name, value in entries[0].items() if name != LAYERS}


def runs_of(remat: Remat, layers: int, names: Sequence[str]) -> Runs:
    """Remat of the layers of a chunk, by the names of a model's activations."""
    if isinstance(remat, str):
        return layer_runs(remat, names, layers)
    return tuple(LayerRun(layers, of_all_names(dict(treatments), names)) for layers, treatments in remat)


def of_all_names(treatments: Mapping[str, str], names: Sequence[str]) -> dict[str, Treatment]:
    """Treatments with names that `treatments` leaves out."""
    return {name: TREATMENTS[treatments.get(name, "recompute")] for name in names}


def as_remat(runs: Sequence[LayerRun], activations: Sequence[str]) -> RematRuns:
    """Runs in the form of `Layout.remat`, with the activations of the model's layers."""
    return tuple((run.layers, tuple((name, run.activations[name]) for name in activations)) for run in runs)


def plan_on(config: Config, cluster: Cluster, usable: int | None = None) -> tuple[Config, Plan]:
    """`config` with everything filled in and the trainer's own layout of it on `cluster`, checked as a run would be.

    `usable` is what a program may take of a device, in bytes; by default what the cluster's GPUs leave it.

    Raises:
        UserError: jaxpar would not run it.
    """
    return plan_for(
        config, cluster, SimpleNamespace(device_kind=CPU, platform=CPU) if is_cpu(cluster) else None, usable
    )
