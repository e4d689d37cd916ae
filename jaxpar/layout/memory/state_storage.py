"""Storage of master weights and moments: whether they fit there, and what their transfers cost."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
from jax.sharding import Mesh

from jaxpar.config import UserError
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.hardware.host import PINNED, require_pinned
from jaxpar.layout.choices.matmul import quantizes_once
from jaxpar.layout.memory.device import host_limit, limit_words
from jaxpar.layout.memory.estimate import offloaded_bytes
from jaxpar.layout.memory.state_bytes import (
    bytes_of,
    host_gradient_bytes,
    host_layers,
    layer_bytes,
    offloaded_state_bytes,
    state_bytes,
)
from jaxpar.layout.once_quantized import once_quantized_matrices
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.disk_array import offload_folder
from jaxpar.pages.units import plural, seconds, size


def streamed_bytes(layout: StepLayout) -> tuple[int, int]:
    """(to the device, from the device) of master weights, moments and gradients, for one device and step.

    All offloaded state is fetched and written back. From host memory the master weights are fetched a second time, at
    the beginning of a step, to make the weights of the forward; with files the update makes those. Matrices that become
    codes of 8 bits are fetched once more for their largest magnitudes.
    Layers in host memory are fetched for each forward and each backward instead. Their gradients are written back after
    each backward; they are fetched in each of several microbatches (in the first without being used, since all run one
    program), and always for the norm and for the update.
    """
    state = offloaded_state_bytes(layout)
    if layout.plan.optimizer_offload == "none":
        return 0, 0
    there = state
    if layout.plan.optimizer_offload != "file":
        there += offloaded_state_bytes(layout, master_alone=True)
        there += _coded_bytes(layout)
    times, gradients = layout.plan.microbatches, host_gradient_bytes(layout)
    masters = host_layers(layout) * layer_bytes(layout).master
    return there + (2 * times - 1) * masters + (gradient_fetches(times) + 2) * gradients, state + times * gradients


def _coded_bytes(layout: StepLayout) -> int:
    """Offloaded master weights of matrices that are quantized once per step."""
    if not quantizes_once(layout.plan):
        return 0
    names = {".".join(matrix.path) for matrix in once_quantized_matrices(*layout.carried_request)}
    each = zip(layout.weight_names, jax.tree.leaves(layout.abstract_state().master), strict=True)
    return bytes_of([leaf for name, leaf in each if name in names and leaf.sharding.memory_kind == PINNED])


def gradient_fetches(microbatches: int) -> int:
    """The number of times in a step that the gradients of a layer are fetched from host memory to be added to."""
    return microbatches if microbatches > 1 else 0


def check_offloaded_state(layout: StepLayout, mesh: Mesh, limit: int | None = None) -> None:
    """Raises `UserError` if there is no room for master weights and moments where they are to be stored.

    Args:
        layout: of the step.
        mesh: the devices.
        limit: bytes of host memory, or free on the disk; by default, those available. Other processes on the machine
            are not counted.
    """
    if layout.plan.optimizer_offload == "none" and not layout.outer_on_host:
        return
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    needed = (offloaded_state_bytes(layout) + host_gradient_bytes(layout)) * len(local)
    if layout.plan.optimizer_offload == "file":
        folder = offload_folder(layout.config)
        free = shutil.disk_usage(_existing(folder)).free if limit is None else limit
        if needed > free:
            raise UserError(
                f"memory.optimizer_offload: file takes {size(needed, 2)} on disk for {plural(len(local), 'device')}, "
                "and "
                f"{folder} has {size(free, 2)} free; expected memory.offload_dir on a larger disk, or a smaller model"
            )
        return
    setting = "islands.offload: host" if layout.outer_on_host else "memory.optimizer_offload: host"
    require_pinned(local[0], setting, "none" if layout.outer_on_host else "none or file")
    limit = host_limit(layout.config, len(local)) if limit is None else limit
    activations = offloaded_bytes(layout.config, layout.plan) * len(local)
    if needed + activations > limit:
        devices = plural(len(local), "device")
        layers = host_layers(layout)
        beside = f" with gradients of {plural(layers, 'layer')}" if layers else ""
        beside += f", and offloaded activations {size(activations, 2)}" if activations else ""
        raise UserError(
            f"{setting} takes {size(needed, 2)} of host memory for {devices}{beside}, and "
            f"{limit_words(layout.config)} {size(limit, 2)}; expected {host_memory_savings(layout)}, or more machines"
        )


def host_memory_savings(layout: StepLayout) -> str:
    """Settings that free host memory from the state, as far as they are compatible with the others of `layout`."""
    if layout.outer_on_host:
        return "islands.offload: none"
    return "memory.weights_offload: none" if host_layers(layout) else "memory.optimizer_offload: file"


def offload_rows(layout: StepLayout, device_kind: str) -> list[tuple[str, str, str]]:
    """Row of the plan's table: where the state is stored and what that costs; nothing if it is on the device."""
    if layout.outer_on_host:
        what = "global weights and their momentum, per device, in pinned host memory; fetched in exchanges"
        return [("outer state offload", size(offloaded_state_bytes(layout)), what)]
    if layout.plan.optimizer_offload == "none":
        return []
    there, back = streamed_bytes(layout)
    where = (
        "pinned host memory" if layout.plan.optimizer_offload != "file" else f"files in {offload_folder(layout.config)}"
    )
    moved = f"a step moves {size(there)} to the device and {size(back)} back"
    gpu = gpu_of(device_kind)
    cost = ""
    if gpu is not None:
        cost = f", {seconds(max(there, back) / gpu.host.bandwidth)} at the least over {gpu.host.name}"
    offloaded = offloaded_state_bytes(layout)
    stays = f", and {size(state_bytes(layout) - offloaded)} on the device" if layout.plan.resident_weights else ""
    rows = [("optimizer offload", size(offloaded), f"per device, in {where}{stays}; {moved}{cost}")]
    if host_layers(layout):
        what = f"weights of layers are fetched for each use, and their gradients are in {where}"
        rows.append(("weights offload", size(host_gradient_bytes(layout)), f"per device, {what}"))
    return rows


def _existing(folder: Path) -> Path:
    """The folder itself, or its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
