"""Attention on one device, by the implementations of `pallas_kernels`."""

from __future__ import annotations

from jaxpar.attention.request import AttentionRequest
from jaxpar.config.errors import UserError
from jaxpar.config.plan import Choice
from jaxpar.config.spelling import did_you_mean, one_of
from pallas_kernels.attention import Kernels
from pallas_kernels.attention.registry import Implementation, Unsupported, choose, clauses, names
from pallas_kernels.attention.request import Request
from pallas_kernels.masks import Mask

BACKENDS = names()
"""What `attention.backend` may be; `flash` is whichever of our kernels suits."""


def merged(backend: Implementation) -> Kernels:
    """What computes a part of a row, of a backend that a plan chose for a strategy that merges parts."""
    assert backend.kernels is not None, f"{backend.name} attends over whole rows alone"
    return backend.kernels


def kernel_request(request: AttentionRequest) -> Request:
    """What one device is asked for: its queries, over all keys of its rows."""
    return Request(
        platform=request.platform,
        dtype=request.dtype,
        heads=request.heads,
        kv_heads=request.kv_heads,
        width=request.head_dim,
        value_width=request.head_dim,
        mask=Mask(causal=True, window=request.window, segmented=request.packed, prefix=request.prefix),
        batch=request.rows,
        queries=request.sequence // request.context,
        keys=request.sequence,
        softcap=request.softcap,
        whole_rows=request.whole_rows,
        compute_capability=request.compute_capability,
    )


def choose_backend(name: str, request: AttentionRequest) -> Choice:
    """The implementation for `attention.backend: name`.

    Raises:
        UserError: If there is no such backend, or it does not support the request (the reasons are repeated).
    """
    if name not in BACKENDS:
        near = did_you_mean(name, BACKENDS)
        raise UserError(f"attention.backend is {name!r}; expected {one_of(BACKENDS)}{near}")
    try:
        chosen = choose(name, kernel_request(request), named_by="attention.backend names")
    except Unsupported as error:
        reasons = error.refused
        why = clauses(reasons) if len(reasons) > 1 else next(iter(reasons.values()))
        raise UserError(f"attention.backend is {name!r}, which does not support this run: {why}") from None
    return Choice(chosen.name, chosen.reason, chosen.rejected)
