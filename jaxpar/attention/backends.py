"""Attention on one device, by the implementations of `pallas_kernels`."""

from __future__ import annotations

import jax

from jaxpar.attention.choosing import choose_kernel
from jaxpar.attention.request import AttentionRequest
from jaxpar.attention.sinks import with_sinks
from jaxpar.config.kinds import ALL
from jaxpar.config.plan import Choice
from pallas_kernels.attention import ForwardBackward, MaskInputs, Settings, cudnn, packed_room
from pallas_kernels.attention.registry import REGISTRY, Implementation
from pallas_kernels.attention.request import Request
from pallas_kernels.choice import Unsupported
from pallas_kernels.masks import Mask

BACKENDS = REGISTRY.names
"""Values of `attention.backend`; `flash` is any of our kernels that supports the run."""


def merged(backend: Implementation) -> ForwardBackward:
    """The kernels of a backend that compute a part of a row, for a strategy that merges parts."""
    assert backend.kernels is not None, f"{backend.name} supports full rows only"
    return backend.kernels


def attend_alone(
    backend: Implementation, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs,
    sinks: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """Attention over all keys of the queries, which this device has."""
    if sinks is None:
        return backend.attend(settings, q, k, v, tokens)
    return with_sinks(*merged(backend).attend(settings, q, k, v, tokens), sinks)


def kernel_request(request: AttentionRequest) -> Request:
    """The attention of one device: its queries, over all keys of its rows; where it has whole rows of a sequence that
    is split, those of its share of the heads."""
    ranks = request.context if request.full_rows else 1
    return Request(
        platform=request.platform,
        dtype=request.dtype,
        heads=max(1, request.heads // ranks),
        kv_heads=max(1, request.kv_heads // ranks),
        width=request.head_dim,
        value_width=request.value_width,
        mask=Mask(request.causal, request.window, segmented=request.packed, prefix=request.prefix),
        batch=request.rows,
        queries=request.sequence // (request.context // ranks),
        keys=request.sequence,
        softcap=request.softcap,
        lse=request.sinks,
        full_rows=request.full_rows,
        runs=True,
        compares=True,
        deterministic=request.deterministic,
        compute_capability=request.compute_capability,
        gpu=request.gpu,
        processors=request.processors,
    )


def choose_backend(name: str, request: AttentionRequest, key: str = "attention.backend", kind: str = ALL) -> Choice:
    """The implementation called `name`, as the value of `key`, in the layers of a kind.

    Raises:
        UserError: If there is no such backend, or it does not support the request (the reasons are repeated).
    """
    return choose_kernel(REGISTRY, name, kernel_request(request), key, kind)


def backend_of(name: str, request: AttentionRequest) -> str | None:
    """The implementation that `attention.backend: name` becomes for this request; None where it does not support it."""
    try:
        return REGISTRY.choose(name, kernel_request(request)).name
    except Unsupported:
        return None


def takes_cudnn(backend: str, request: AttentionRequest) -> bool:
    """Whether `attention.backend: backend` becomes cuDNN's for this request."""
    asked = kernel_request(request)
    return (
        backend in ("auto", "cudnn")
        and cudnn.supports(asked) is None
        and REGISTRY.choose(backend, asked).name == "cudnn"
    )


def scratch_bytes(backend: str, request: AttentionRequest) -> int:
    """Scratch memory of a layer's attention by `attention.backend: backend`: that of cuDNN for packed documents."""
    if not request.packed or not takes_cudnn(backend, request):
        return 0
    return packed_room.scratch_bytes(packed_room.Shape.of(kernel_request(request)))
