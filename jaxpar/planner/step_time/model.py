"""Seconds of a training step on any layout, cluster and generation of software, and where they go.

Built from the model's real shapes: every matmul, attention kernel and elementwise pass of a layer (`cost.layer`) on a
GPU that reaches a share of its datasheet (`cost.hardware_model`, `cost.operations`), every message by the bytes of its
collective (`cost.messages`), pipelines by the schedule simulator (`pipeline`), put together in `step`, and in `once`
for what comes once a step. What differs between training systems is which mechanisms they have (`mechanisms`), never a
number.
"""

from __future__ import annotations

from functools import lru_cache

from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.mechanisms import JAXPAR, Mechanisms
from jaxpar.cost.messages import Network
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.exposed import Change
from jaxpar.planner.step_time.steps import Steps, StepTime
from jaxpar.planner.step_time.update import ADAMW, Update

__all__ = ["StepTime", "step_time", "steps_of"]

KEPT = 256
"""How many (model, cluster) pairs have their steps cached: a search needs thousands of steps of one pair, or, where
hosts are of several kinds, of one pair for each kind and stage length."""

_known: dict[tuple[object, ...], tuple[Steps, tuple[object, ...]]] = {}


def step_time(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    mechanisms: Mechanisms = JAXPAR,
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
) -> StepTime:
    """Predict one step.

    Args:
        model: the decoder, preset filled in and `vocab` set.
        sequence_length: tokens of a row.
        global_batch: rows of a step.
        layout: how it is spread; the product of its axes is the number of devices.
        cluster: where it runs; devices are taken in order.
        mechanisms: of the software that runs it.
        hardware: parameters of its GPUs; None means those fitted for them.
        update: the rule of the optimizer (`update.update_of`).
        network: measured bandwidths (`measured`); None means the cluster's links.
    """
    steps = steps_of(model, sequence_length, global_batch, cluster, mechanisms, hardware, update, network)
    return steps.time(layout)


def steps_of(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    cluster: Cluster,
    mechanisms: Mechanisms = JAXPAR,
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
    change: Change | None = None,
) -> Steps:
    """The steps of a model on a cluster, by layout; the arguments are those of `step_time`, and `change` is made to the
    shares of messages that compiled programs wait for.

    Cached by the identity of these objects; the cache holds the objects, so that their ids stay unique.
    """
    model = _same(model)
    objects = model, cluster, mechanisms, hardware, update, network
    key = (sequence_length, global_batch, change, *map(id, objects))
    known = _known.pop(key, None)
    if known is None:
        steps = Steps(model, sequence_length, global_batch, cluster, mechanisms, hardware, update, network, change)
        known = steps, objects
        if len(_known) >= KEPT:
            del _known[next(iter(_known))]
    _known[key] = known  # most recently used last
    return known[0]


@lru_cache(maxsize=KEPT)
def _same(model: ModelConfig) -> ModelConfig:
    """One object for all that are equal."""
    return model
