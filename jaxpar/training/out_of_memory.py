"""Memory that does not suffice: asked before anything is allocated, and told in a sentence where XLA finds out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

import jax

from jaxpar.config import Config, UserError
from jaxpar.hardware.host import PINNED_VARIABLE, host_memory
from jaxpar.layers.checks import validate
from jaxpar.mesh.devices import devices_per_node
from jaxpar.training.host_memory import check_offload, offloaded_bytes
from jaxpar.training.memory_check import (
    host_limit,
    limit_words,
    mebibytes,
    memory_limit,
    pinned_state_bytes,
    state_bytes,
)
from jaxpar.training.memory_estimate import MemoryEstimate, estimate_memory, estimated_bytes
from jaxpar.training.nearest_fit import MORE_DEVICES, Search, nearest_fit, told
from jaxpar.training.resolve import make_plan
from jaxpar.training.resting_state import check_resting_state, less_on_the_host
from jaxpar.training.step import TrainStep
from jaxpar.training.weights_away import away_gradient_bytes

EXHAUSTED = "RESOURCE_EXHAUSTED"
"""How XLA begins to say that memory did not suffice."""
OF_THE_HOST = re.compile(r"host memory|xla_gpu_host_bfc")
"""What it says where it was the host's memory that it pins for devices."""
ROOM = 0.97
"""Share of the memory that a plan should leave untouched at most, where XLA has run out of it."""


def check_state_fits(step: TrainStep) -> None:
    """Raises `UserError` when weights and moments alone are more than the memory there is."""
    limit, sharing = memory_limit(step)
    needed = (state_bytes(step) - pinned_state_bytes(step) * (sharing == 1 or step.filed is not None)) * sharing
    if needed <= limit:
        return
    where = "each device" if sharing == 1 else f"this machine's {sharing} devices"
    way_out = MORE_DEVICES if sharing > 1 else told(_search(step, limit, None))
    raise UserError(
        f"parallel: weights and optimizer state take {mebibytes(needed)} on {where}, and there are "
        f"{mebibytes(limit)}; {way_out}"
    )


def check_batch_fits(step: TrainStep) -> None:
    """Raises `UserError` when a step's batch, and those prepared ahead, are more than this machine's memory."""
    data = step.config.data
    local = sum(device.process_index == jax.process_index() for device in step.mesh.devices.flat)
    batch = local * sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in step.abstract_batch().values()
    )
    needed = batch * (1 + data.prefetch)
    if needed > host_memory():
        raise UserError(
            f"data.batch_size x sequence_length: {data.batch_size} x {data.sequence_length} take {mebibytes(batch)} "
            f"of this machine for a step, {mebibytes(needed)} with data.prefetch ({data.prefetch}), and there are "
            f"{mebibytes(host_memory())}; expected fewer rows or tokens"
        )


def check_step_fits(step: TrainStep, needed: int | None) -> None:
    """Raises `UserError` when the compiled step needs `needed` bytes per device, and there are less.

    A GPU has memory of its own; virtual CPU devices share the machine's, which would be slow to say that it is full.
    """
    limit, sharing = memory_limit(step)
    if needed is None or needed * sharing <= limit:
        return
    shared = f", {mebibytes(needed * sharing)} for this machine's {sharing} devices" if sharing > 1 else ""
    raise UserError(
        f"parallel: the step needs {mebibytes(needed)} per device{shared}, and there are {mebibytes(limit)}; by "
        f"shapes, {_by_class(estimate_memory(step))}; {told(_search(step, limit // sharing, needed))}"
    )


@contextmanager
def explained(step: TrainStep, needed: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Turns XLA's error that memory did not suffice into a `UserError`; others pass.

    `needed` gives what XLA itself says that the compiled step needs per device, or None where that is not known.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        raise UserError(_explanation(step, str(error), needed())) from error


def _explanation(step: TrainStep, error: str, needed: int | None) -> str:
    asked = re.search(r"allocat\w*\s+(?:of\s+)?(\d+(?:\.\d+)?\s?[KMGT]?i?B?(?:ytes)?(?:\s?bytes)?)", error)
    found = f"for {_readable(asked[1])} more" if asked else "for what it wanted to allocate"
    if OF_THE_HOST.search(error):
        return _host_explanation(step, found)
    limit, sharing = memory_limit(step)
    each = limit // sharing
    total = needed or estimated_bytes(step)
    # What XLA says that it needs can be less than there is: the rest was taken, or in pieces that are too small.
    goal = int(ROOM * min(each, total))
    return (
        f"parallel: XLA found no room {found} on a device; the step needs "
        f"{'' if needed else 'about '}{mebibytes(total)} per device, and there are {mebibytes(each)}; by shapes, "
        f"{_by_class(estimate_memory(step))}; {told(_search(step, goal, needed))}"
    )


def _host_explanation(step: TrainStep, found: str) -> str:
    devices = sum(device.process_index == jax.process_index() for device in step.mesh.devices.flat)
    state = 0 if step.filed is not None else pinned_state_bytes(step)
    activations, gradients = offloaded_bytes(step), away_gradient_bytes(step)
    of_layers = f", {mebibytes(gradients)} of gradients of {step.layers_away} layers" if gradients else ""
    return (
        f"memory: XLA found no room {found} in the host's pinned memory; for each of {devices} devices the step keeps "
        f"there {mebibytes(state)} of master weights and moments{of_layers} and {mebibytes(activations)} of "
        f"activations, {mebibytes((state + gradients + activations) * devices)} in all, and {limit_words(step)} "
        f"{mebibytes(host_limit(step, devices))}; expected a larger {PINNED_VARIABLE} where the machine has more, "
        f"{less_on_the_host(step)}, fewer offloaded activations, or more machines"
    )


def _readable(size: str) -> str:
    """`1048576 bytes` as people read it; other units stay."""
    digits = size.removesuffix("bytes").strip()
    return mebibytes(int(digits)) if digits.isdigit() else size.strip()


def _by_class(estimate: MemoryEstimate) -> str:
    """`2.00 GiB of weights, ...`, largest first."""
    names = {
        "optimizer": "master weights and moments",
        "weights": "weights",
        "gradients": "gradients",
        "saved_activations": "saved activations",
        "temporaries": "temporaries",
    }
    sizes = estimate._asdict()
    largest = sorted(names, key=lambda name: -sizes[name])
    return "about " + ", ".join(f"{mebibytes(sizes[name])} of {names[name]}" for name in largest if sizes[name])


def _search(step: TrainStep, limit: int, needed: int | None) -> Search:
    """Asks no other process, since memory may have run out in this one alone."""
    devices = list(step.mesh.devices.flat)

    def rebuild(config: Config) -> TrainStep:
        validate(config)
        plan = make_plan(config, devices[0], devices_per_node(devices), usable=limit)
        changed = TrainStep(config, plan, step.mesh)
        check_offload(changed)
        check_resting_state(changed)
        return changed

    return nearest_fit(step, limit, rebuild, needed)
