"""Seconds of a training step on any layout, cluster and generation of software, and where they go.

Built from the model's real shapes: every matmul, attention kernel and elementwise pass of a layer (`time_layer`) on a
GPU that reaches a share of its datasheet (`hardware_model`, `time_operations`), every message by the bytes of its verb
(`time_messages`), pipelines by the schedule simulator (`time_pipeline`), put together in `time_step`. What differs
between training systems is which mechanisms they have (`mechanisms`), never a number.
"""

from __future__ import annotations

from functools import lru_cache

from jaxpar.config.schema import ModelConfig
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.hardware_model import HardwareModel
from jaxpar.planner.layout import Layout
from jaxpar.planner.mechanisms import GENERATIONS, Mechanisms
from jaxpar.planner.time_messages import Network
from jaxpar.planner.time_step import Step, Steps, StepTime
from jaxpar.planner.time_update import ADAMW, Update

__all__ = ["Step", "StepTime", "floor_time", "step_parts", "step_time"]

KEPT = 256
"""Models on clusters whose steps are remembered: a search asks for thousands of one of them, or, where hosts are of
several kinds, of each kind and length of its stages."""

_known: dict[tuple[object, ...], tuple[Steps, tuple[object, ...]]] = {}


def step_time(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    mechanisms: Mechanisms = GENERATIONS["jaxpar"],
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
) -> StepTime:
    """Predict one step.

    Args:
        model: the decoder, preset filled in and `vocab` set.
        sequence_length: tokens of a row.
        global_batch: rows of a step.
        layout: how it is spread; its axes multiply to the devices that take part.
        cluster: where it runs; devices are taken in order.
        mechanisms: of the software that runs it.
        hardware: what its GPUs reach; None is what was fitted for them.
        update: the rule of the optimizer (`time_update.update_of`).
        network: what its messages reach, where that was measured (`measured`); None is that of the cluster's links.
    """
    where = _steps(model, sequence_length, global_batch, cluster, mechanisms, hardware, update, network)
    return where.time(layout)


def floor_time(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    mechanisms: Mechanisms = GENERATIONS["jaxpar"],
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
) -> StepTime:
    """As `step_time`, with a pipeline in which no rank waits: below it for every schedule, and simulates nothing."""
    where = _steps(model, sequence_length, global_batch, cluster, mechanisms, hardware, update, None)
    return where.time(layout, waits=False)


def step_parts(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    mechanisms: Mechanisms = GENERATIONS["jaxpar"],
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
) -> Step:
    """What `step_time` is put together from."""
    where = _steps(model, sequence_length, global_batch, cluster, mechanisms, hardware, update, network)
    return where.step(layout)


def _steps(
    model: ModelConfig, sequence: int, batch: int, cluster: Cluster, does: Mechanisms, hardware: HardwareModel | None,
    update: Update, network: Network | None,
) -> Steps:  # fmt: skip
    """The steps of these very objects; they are held with what is remembered, so that no other has their identity."""
    model = _same(model)
    objects = model, cluster, does, hardware, update, network
    key = (sequence, batch, *map(id, objects))
    known = _known.pop(key, None)
    if known is None:
        known = Steps(model, sequence, batch, cluster, does, hardware, update, network), objects
        if len(_known) >= KEPT:
            del _known[next(iter(_known))]
    _known[key] = known  # the one that was used last comes last
    return known[0]


@lru_cache(maxsize=KEPT)
def _same(model: ModelConfig) -> ModelConfig:
    """One object for all that are equal."""
    return model
