"""Where master weights and moments rest: whether there is room for them, and what their way to the device costs."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax

from jaxpar.config import UserError
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.training.host_memory import PINNED, offloaded_bytes
from jaxpar.training.memory_check import host_limit, limit_words, mebibytes, pinned_state_bytes, state_bytes
from jaxpar.training.step import TrainStep
from jaxpar.training.weights_away import away_gradient_bytes, layer_bytes


def streamed_bytes(step: TrainStep) -> tuple[int, int]:
    """(to the device, from the device) of master weights, moments and gradients, for one device and step.

    All that does not stay there goes there and comes back. From host memory the master weights go a second time, at
    the beginning of a step, which makes the weights of the forward from them; from files those are made by the update.
    Layers that rest in host memory come for each forward and each backward instead. Their gradients go after each
    backward; with several microbatches they come in each (what comes in the first is not used, for one program runs in
    all), and always for the norm and for the update.
    """
    state = pinned_state_bytes(step)
    if step.plan.optimizer_offload == "none":
        return 0, 0
    there = state + (pinned_state_bytes(step, master_alone=True) if step.filed is None else 0)
    times, gradients = step.plan.microbatches, away_gradient_bytes(step)
    masters = step.layers_away * layer_bytes(step).master if step.layers_away else 0
    return there + (2 * times - 1) * masters + (gradient_fetches(times) + 2) * gradients, state + times * gradients


def gradient_fetches(microbatches: int) -> int:
    """How often in a step the gradients of a layer come from host memory to be added to."""
    return microbatches if microbatches > 1 else 0


def check_resting_state(step: TrainStep, limit: int | None = None) -> None:
    """Raises `UserError` where master weights and moments are to rest where there is no place for them.

    Args:
        step: the step.
        limit: bytes of host memory, or free on the disk; by default, what there is. Other processes on the machine are
            not counted.
    """
    kind = step.plan.optimizer_offload
    if kind == "none":
        return
    local = [device for device in step.mesh.devices.flat if device.process_index == jax.process_index()]
    needed = (pinned_state_bytes(step) + away_gradient_bytes(step)) * len(local)
    if step.filed is not None:
        folder = step.filed.folder
        free = shutil.disk_usage(_existing(folder)).free if limit is None else limit
        if needed > free:
            raise UserError(
                f"memory.optimizer_offload: file takes {mebibytes(needed)} on disk for {len(local)} devices, and "
                f"{folder} has {mebibytes(free)} free; expected memory.offload_dir on a larger disk, or a smaller model"
            )
        return
    memories = [memory.kind for memory in local[0].addressable_memories()]
    require_pinned_state(local[0].device_kind, memories)
    limit = host_limit(step, len(local)) if limit is None else limit
    activations = offloaded_bytes(step) * len(local)
    if needed + activations > limit:
        devices = f"{len(local)} devices"
        beside = f" with gradients of {step.layers_away} layers" if step.layers_away else ""
        beside += f", and offloaded activations {mebibytes(activations)}" if activations else ""
        raise UserError(
            f"memory.optimizer_offload: host takes {mebibytes(needed)} of host memory for {devices}{beside}, and "
            f"{limit_words(step)} {mebibytes(limit)}; expected {less_on_the_host(step)}, or more machines"
        )


def less_on_the_host(step: TrainStep) -> str:
    """Settings with which a state leaves room in the host's memory, as far as they go with the others of `step`."""
    if not step.layers_away:
        return "memory.optimizer_offload: file"
    return "a larger memory.weights_resident, or memory.weights_offload: none"


def require_pinned_state(device: str, memories: list[str]) -> None:
    """Raises `UserError` where a kind of device has no pinned host memory for the state."""
    if PINNED not in memories:
        raise UserError(
            f"memory.optimizer_offload: host needs {PINNED} memory, and {device} has only {', '.join(memories)}; "
            "expected none or file"
        )


def resting_rows(step: TrainStep) -> list[tuple[str, str, str]]:
    """Row of the plan's table: where the state rests and what that costs; nothing where it is on the device."""
    if step.plan.optimizer_offload == "none":
        return []
    there, back = streamed_bytes(step)
    where = "pinned host memory" if step.filed is None else f"files in {step.filed.folder}"
    moved = f"a step moves {mebibytes(there)} to the device and {mebibytes(back)} back"
    gpu = gpu_of(step.mesh.devices.flat[0].device_kind)
    cost = ""
    if gpu is not None:
        cost = f", {max(there, back) / gpu.pcie.bandwidth:.2f} s at the least over {gpu.pcie.name}"
    stays = state_bytes(step) - pinned_state_bytes(step)
    beside = f", and {mebibytes(stays)} stay on the device" if step.resident else ""
    value = mebibytes(pinned_state_bytes(step))
    rows = [("optimizer offload", value, f"per device, in {where}{beside}; {moved}{cost}")]
    if step.plan.weights_offload == "none":
        return rows
    away, layers = step.layers_away, step.order.layers_per_chunk
    first = (
        f"weights of layers 0-{away - 1} come with each use, and their gradients rest in" if away else "none rest in"
    )
    stay = f"layers {away}-{layers - 1} stay" if away < layers else "no layer stays"
    rows.append(("weights offload", mebibytes(away_gradient_bytes(step)), f"per device, {first} {where}; {stay}"))
    return rows


def _existing(folder: Path) -> Path:
    """The folder itself, or what there is above it."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
