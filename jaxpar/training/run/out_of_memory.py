"""Out of memory: checked before anything is allocated, and reported in a sentence where XLA runs out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

import jax
from jax.sharding import Mesh

from jaxpar.config import Config, UserError
from jaxpar.distributed.devices import devices_per_node
from jaxpar.hardware.host import PINNED_VARIABLE, host_memory
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.make_plan import make_plan
from jaxpar.layout.memory.device import host_limit, limit_words, memory_limit, separate_memory
from jaxpar.layout.memory.estimate import estimate_memory, estimated_bytes, host_bytes, offloaded_bytes
from jaxpar.layout.memory.host import check_offload
from jaxpar.layout.memory.nearest_fit import MORE_DEVICES, Search, describe_fit, nearest_fit
from jaxpar.layout.memory.state_bytes import (
    host_gradient_bytes,
    host_layers,
    offloaded_state_bytes,
    state_bytes,
)
from jaxpar.layout.memory.state_storage import check_offloaded_state, host_memory_savings
from jaxpar.layout.step_layout import StepLayout
from jaxpar.pages.units import plural, size

EXHAUSTED = "RESOURCE_EXHAUSTED"
"""Beginning of XLA's out-of-memory message."""
OF_THE_HOST = re.compile(r"host memory|xla_gpu_host_bfc")
"""Words of the error where pinned host memory ran out."""
ESTIMATE_TOO_HIGH = 1.25
"""The largest ratio of an estimate to what XLA allocates: a step is refused by its estimate only beyond that
(docs/memory-model.md has its errors)."""
ROOM = 0.97
"""Share of the memory that a suggested plan may use where XLA has run out of it."""


def check_state_fits(layout: StepLayout, mesh: Mesh) -> None:
    """Raises `UserError` when weights and moments alone exceed the memory."""
    limit, sharing = memory_limit(mesh)
    needed = (
        state_bytes(layout)
        - offloaded_state_bytes(layout) * (separate_memory(mesh) or layout.plan.optimizer_offload == "file")
    ) * sharing
    if needed <= limit:
        return
    where = "each device" if sharing == 1 else f"this machine's {sharing} devices"
    way_out = MORE_DEVICES if sharing > 1 else describe_fit(_search(layout, mesh, limit, None))
    raise UserError(
        f"parallel: weights and optimizer state take {size(needed, 2)} on {where}, and there are "
        f"{size(limit, 2)}; {way_out}"
    )


def check_batch_fits(layout: StepLayout, mesh: Mesh) -> None:
    """Raises `UserError` when a step's batch, and those prefetched, exceed this machine's memory."""
    data = layout.config.data
    local = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
    batch = local * sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in layout.abstract_batch().values()
    )
    needed = batch * (1 + data.prefetch)
    if needed > host_memory():
        raise UserError(
            f"data.batch_size x sequence_length: {data.batch_size} x {data.sequence_length} take {size(batch, 2)} "
            f"of this machine for a step, {size(needed, 2)} with data.prefetch ({data.prefetch}), and there are "
            f"{size(host_memory(), 2)}; expected fewer rows or tokens"
        )


def check_estimate_fits(layout: StepLayout, mesh: Mesh) -> None:
    """Raises `UserError` when a step on CPU devices cannot fit by its estimate: before it is compiled.

    GPUs are not refused by an estimate: XLA recomputes by itself where their memory is short.
    """
    limit, sharing = memory_limit(mesh)
    if separate_memory(mesh):
        return
    estimated = estimated_bytes(layout.config, layout.plan, separate_memory=False)
    if estimated * sharing > ESTIMATE_TOO_HIGH * limit:
        raise UserError(_too_large(layout, mesh, estimated, None))


def check_step_fits(layout: StepLayout, mesh: Mesh, needed: int | None) -> None:
    """Raises `UserError` when the compiled step needs `needed` bytes per device, and there are fewer.

    A GPU has memory of its own; virtual CPU devices share the machine's, which fills up slowly before it fails.
    """
    limit, sharing = memory_limit(mesh)
    if needed is None or needed * sharing <= limit:
        return
    raise UserError(_too_large(layout, mesh, needed, needed))


def _too_large(layout: StepLayout, mesh: Mesh, bytes_each: int, compiled: int | None) -> str:
    """The sentence about a step that takes `bytes_each` per device; `compiled` is XLA's number, if there is one."""
    limit, sharing = memory_limit(mesh)
    shared = f", {size(bytes_each * sharing, 2)} for this machine's {sharing} devices" if sharing > 1 else ""
    way_out = describe_fit(_search(layout, mesh, limit // sharing, compiled))
    return (
        f"parallel: the step needs {'' if compiled else 'about '}{size(bytes_each, 2)} per device{shared}, and there "
        f"are {size(limit, 2)}; by shapes, {_bytes_by_class(layout, mesh)}; {way_out}"
    )


@contextmanager
def explained(layout: StepLayout, mesh: Mesh, needed: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Turns XLA's out-of-memory error into a `UserError`; others pass.

    `needed` returns the bytes per device that XLA reports for the compiled step, or None where that is not known.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        raise UserError(_explanation(layout, mesh, str(error), needed())) from error


def _explanation(layout: StepLayout, mesh: Mesh, error: str, needed: int | None) -> str:
    asked = re.search(r"allocat\w*\s+(?:of\s+)?(\d+(?:\.\d+)?\s?[KMGT]?i?B?(?:ytes)?(?:\s?bytes)?)", error)
    purpose = f"for {_readable(asked[1])} more" if asked else "for what it wanted to allocate"
    if OF_THE_HOST.search(error):
        return _host_explanation(layout, mesh, purpose)
    limit, sharing = memory_limit(mesh)
    each = limit // sharing
    total = needed or estimated_bytes(layout.config, layout.plan, separate_memory=separate_memory(mesh))
    # The need that XLA reports can be less than the memory: the rest was taken, or fragmented.
    goal = int(ROOM * min(each, total))
    return (
        f"parallel: XLA found no room {purpose} on a device; the step needs "
        f"{'' if needed else 'about '}{size(total, 2)} per device, and there are {size(each, 2)}; by shapes, "
        f"{_bytes_by_class(layout, mesh)}; {describe_fit(_search(layout, mesh, goal, needed))}"
    )


def _host_explanation(layout: StepLayout, mesh: Mesh, purpose: str) -> str:
    devices = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
    state = 0 if layout.plan.optimizer_offload == "file" else offloaded_state_bytes(layout)
    activations, gradients = offloaded_bytes(layout.config, layout.plan), host_gradient_bytes(layout)
    of_layers = f", {size(gradients, 2)} of gradients of {plural(host_layers(layout), 'layer')}" if gradients else ""
    return (
        f"memory: XLA found no room {purpose} in the host's pinned memory; for each of {plural(devices, 'device')} the "
        f"step keeps there {size(state, 2)} of master weights and moments{of_layers} and {size(activations, 2)} of "
        f"activations, {size((state + gradients + activations) * devices, 2)} in all, and "
        f"{limit_words(layout.config)} {size(host_limit(layout.config, devices), 2)}; expected a larger "
        f"{PINNED_VARIABLE} where the machine has more, {host_memory_savings(layout)}, fewer offloaded activations, or "
        "more machines"
    )


def _readable(asked: str) -> str:
    """`1048576 bytes` in a readable unit; other units stay."""
    digits = asked.removesuffix("bytes").strip()
    return size(int(digits), 2) if digits.isdigit() else asked.strip()


def _bytes_by_class(layout: StepLayout, mesh: Mesh) -> str:
    """`2.00 GiB of weights, ...`, largest first; what is offloaded only where its memory is the devices' own."""
    names = {
        "optimizer": "master weights and moments",
        "weights": "weights",
        "gradients": "gradients",
        "saved_activations": "saved activations",
        "temporaries": "temporaries",
        "host": "what is offloaded to the same memory",
    }
    sizes = estimate_memory(layout.config, layout.plan)._asdict()
    sizes["host"] = 0 if separate_memory(mesh) else host_bytes(layout.config, layout.plan)
    largest = sorted(names, key=lambda name: -sizes[name])
    return "about " + ", ".join(f"{size(sizes[name], 2)} of {names[name]}" for name in largest if sizes[name])


def _search(layout: StepLayout, mesh: Mesh, limit: int, needed: int | None) -> Search:
    """Communicates with no other process, since memory may have run out in this one alone."""
    devices = list(mesh.devices.flat)

    def rebuild(config: Config) -> StepLayout:
        validate(config)
        plan = make_plan(config, devices[0], devices_per_node(devices), usable=limit)
        changed = StepLayout(config, plan)
        check_offload(changed, mesh)
        check_offloaded_state(changed, mesh)
        return changed

    return nearest_fit(layout, limit, rebuild, needed, separate_memory=separate_memory(mesh))
