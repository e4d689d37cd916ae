"""PyTorch's attention, where torch is installed and sees the GPU: flash and cuDNN; documents by varlen, and documents
and windows by FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from benchmarks.gpu.attention_cases import Case
from benchmarks.gpu.journal import Journal

_reported: set[str] = set()


def programs(case: Case, journal: Journal) -> dict[str, dict[str, Callable[[], Any]]]:
    """By backend, then `forward` and `backward`: calls that return when the GPU is done."""
    torch = _torch(journal)
    if torch is None:
        return {}
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    if case.packed is not None:
        varlen = _varlen(case, journal, torch)
        found |= {} if varlen is None else {"torch varlen": varlen}
    if case.packed is not None or case.window is not None:  # of which its fused backends have neither
        flex = _flex(case, journal, torch)
        return found if flex is None else found | {"torch flex": flex}
    attention: Any = import_module("torch.nn.attention")
    attend_by, backends = torch.nn.functional.scaled_dot_product_attention, attention.SDPBackend

    for name, backend in (("torch flash", backends.FLASH_ATTENTION), ("torch cudnn", backends.CUDNN_ATTENTION)):

        def attend(q: Any, k: Any, v: Any, backend: Any = backend) -> Any:
            with attention.sdpa_kernel(backend):
                return attend_by(q, k, v, is_causal=case.causal, enable_gqa=case.heads != case.kv_heads)

        found[name] = _calls(torch, attend, _arrays(torch, case, heads_first=True))
    return found


def _torch(journal: Journal) -> Any:
    try:
        torch: Any = import_module("torch")
    except ImportError:
        _report_once(journal, "PyTorch beside ours", "torch is not installed")
        return None
    if not torch.cuda.is_available():
        _report_once(journal, "PyTorch beside ours", "torch sees no GPU")
        return None
    return torch


def _report_once(journal: Journal, what: str, why: str) -> None:
    if (journal.part + what) not in _reported:
        _reported.add(journal.part + what)
        journal.skip(what, why)


def _arrays(torch: Any, case: Case, *, heads_first: bool) -> list[Any]:
    """Query, key, value and the cotangent of the output."""
    make = lambda heads, width: torch.randn(
        (case.batch, heads, case.seq, width) if heads_first else (case.batch * case.seq, heads, width),
        device="cuda", dtype=torch.bfloat16,
    )  # fmt: skip
    values = case.width if case.value_width is None else case.value_width
    q, k, v = make(case.heads, case.width), make(case.kv_heads, case.width), make(case.kv_heads, values)
    return [*(x.requires_grad_() for x in (q, k, v)), make(case.heads, values)]


def _calls(torch: Any, attend: Callable[..., Any], arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    q, k, v, d_out = arrays
    kept: list[Any] = []

    def forward() -> _Event:
        attend(q, k, v)
        return _Event(torch)

    def backward() -> _Event:
        if not kept:
            kept.append(attend(q, k, v))
        torch.autograd.grad(kept[0], (q, k, v), d_out, retain_graph=True)
        return _Event(torch)

    return {"forward": forward, "backward": backward}


class _Event:
    """What `jax.block_until_ready` waits for: all work that torch has put on its stream."""

    def __init__(self, torch: Any):
        self.torch = torch

    def block_until_ready(self) -> _Event:
        self.torch.cuda.synchronize()
        return self


def _varlen(case: Case, journal: Journal, torch: Any) -> dict[str, Callable[[], Any]] | None:
    """Flash attention over documents laid end to end, as PyTorch has it from 2.10 on."""
    try:
        varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        _report_once(journal, "packed documents by PyTorch", "this torch has no torch.nn.attention.varlen")
        return None
    segments = case.segments()
    assert segments is not None, "only packed cases have documents"
    flat = (segments + 2 * segments.max() * np.arange(case.batch)[:, None]).reshape(-1)
    starts = np.flatnonzero(np.diff(flat, prepend=-1))
    ends = np.append(starts, len(flat))
    longest = int(np.diff(ends).max())
    offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
    # Causal by a flag of its own at first, later by a window that has no future.
    windowed = "window_size" in signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if windowed else {"is_causal": True}
    attend = lambda q, k, v: varlen_attn(q, k, v, offsets, offsets, longest, longest, **causal)
    return _calls(torch, attend, _arrays(torch, case, heads_first=False))


def _flex(case: Case, journal: Journal, torch: Any) -> dict[str, Callable[[], Any]] | None:
    """FlexAttention, compiled, over the blocks that its mask keeps."""
    try:
        flex: Any = import_module("torch.nn.attention.flex_attention")
    except ImportError:
        _report_once(journal, "windows and documents by FlexAttention", "this torch has no FlexAttention")
        return None
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    mask = cache(lambda: block_mask(case, torch, flex, "cuda"))  # created in the first call, whose errors are reported
    shared = case.heads != case.kv_heads
    attend = lambda q, k, v: compiled(q, k, v, block_mask=mask(), enable_gqa=shared)
    return _calls(torch, attend, _arrays(torch, case, heads_first=True))


def block_mask(case: Case, torch: Any, flex: Any, device: str) -> Any:
    """FlexAttention's blocks of a case: causal, a window, documents."""
    segments = case.segments()
    of = None if segments is None else torch.tensor(segments, device=device)

    def keeps(row: Any, head: Any, query: Any, key: Any) -> Any:
        kept = query >= key if case.causal else query >= 0
        if case.window is not None:
            kept = kept & (query - key < case.window)
        return kept if of is None else kept & (of[row, query] == of[row, key])

    rows = None if of is None else case.batch
    return flex.create_block_mask(keeps, rows, None, case.seq, case.seq, device=device)
