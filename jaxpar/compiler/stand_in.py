"""The attention kernel that is compiled in place of cuDNN's, where cuDNN is not installed.

Ours are compiled, and not the plain form in JAX: that one computes all pairs of queries and keys and writes scores to
memory, so neither its time nor its temporaries are those of a fused kernel.
"""

from __future__ import annotations

from dataclasses import replace

from jaxpar.attention.backends import kernel_request
from jaxpar.compiler.wheels import has_cudnn
from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.distributed.devices import Device
from jaxpar.layout.choices.attention import attention_requests
from pallas_kernels.attention.registry import REGISTRY

STAND_INS = ("mosaic", "triton", "xla")
"""In order of preference: one launch for all gradients, as cuDNN has; two; and for every request."""


def compilable(config: Config, plan: Plan, device: Device, release: str) -> tuple[Plan, tuple[str, ...]]:
    """The plan that can be compiled here, and notes on how it differs from the plan of the run.

    Args:
        config: with everything filled in.
        plan: of the run.
        device: a GPU of the cluster.
        release: of CUDA, as in `has_cudnn`.
    """
    if all(choice.name != "cudnn" for choice in plan.attention.values()) or has_cudnn(release):
        return plan, ()
    requests = attention_requests(config, device, plan.runs)
    substitutes = {
        kind: next(name for name in STAND_INS if REGISTRY[name].supports(kernel_request(requests[kind])) is None)
        for kind, choice in plan.attention.items()
        if choice.name == "cudnn"
    }
    notes = tuple(_note(name, release) for name in dict.fromkeys(substitutes.values()))
    changed = {kind: replace(old, name=substitutes.get(kind, old.name)) for kind, old in plan.attention.items()}
    return replace(plan, attention=changed), notes


def _note(name: str, release: str) -> str:
    why = f"because cuDNN is not installed (pip install nvidia-cudnn-cu{release})"
    if name == "xla":
        return (
            f"attention: the run uses cudnn, and plain XLA operations are compiled here, {why}; what is kept for the "
            "backward is the same; the time and the temporaries of attention are those of XLA's operations, which are "
            "greater"
        )
    return (
        f"attention: the run uses cudnn, and the {name} kernel is compiled here, {why}; what is kept for the backward "
        "is the same, and attention's time is that of a fused kernel with cuDNN's matrix products"
    )


def attention_of(plan: Plan) -> str | None:
    """The implementation of all attention of a run, which another may replace in the program; None where kinds of
    layers differ."""
    names = {choice.name for choice in plan.attention.values()}
    return names.pop() if len(names) == 1 else None
