"""cuDNN's fused attention through `jax.nn.dot_product_attention`, and of packed documents through `cudnn_packed`.

The limits of that function, which are tighter than cuDNN's: queries and keys of whole rows; one width of heads, so that
narrower values (of latent attention) are filled with zeros, which two of the products multiply; no segment ids (it
turns the mask that they make into a dense bias, of batch x heads x queries x keys); no prefix, no soft-cap; and no
derivative through its log-sum-exp, which JAX drops without a word. So it is never part of a ring, and where the
log-sum-exp is asked for it refuses. cuDNN itself takes documents by their offsets, from Hopper on, through a function
inside jax that is no public one, so that layout is used only where it is compared with plain XLA on the device at hand
first (`comparison`). A scale of 0 or below turns the order of the scores around, and whether its kernels then still
subtract the greatest is written nowhere: it is refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from pallas_kernels.attention import comparison, cudnn_packed
from pallas_kernels.attention.cudnn_packed import narrowed, widened
from pallas_kernels.attention.derivative import CHECKPOINT_NAMES
from pallas_kernels.attention.request import Request
from pallas_kernels.choice import NEEDS_GPU
from pallas_kernels.masks import Mask
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp, residuals_of, set_arguments, set_residuals, vjp_without_arguments

VARIES = "its gradients are the same bits in every run only with --xla_gpu_deterministic_ops=true in XLA_FLAGS"


def supports(request: Request) -> str | None:
    """None if `jax.nn.dot_product_attention` by cuDNN supports the request, otherwise the reason."""
    if request.platform not in ("gpu", "cuda"):
        return f"{NEEDS_GPU}, and the platform is {request.platform}"
    capability = request.compute_capability
    if capability is None or capability < 8.0:
        return f"it needs compute capability 8.0 (Ampere), and the GPU has {capability or 'an unknown one'}"
    if request.dtype not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 or float16, not {request.dtype}"
    widest = 256 if capability >= 9.0 else 128
    if request.value_width > request.width:
        widths = f"values are {request.value_width} and keys {request.width} wide"
        return f"jax.nn.dot_product_attention has one width of heads, to which zeros fill values alone, and {widths}"
    if request.width > widest or request.width % 8:
        return f"its heads have a width that is a multiple of 8 up to {widest} on this GPU, not {request.width}"
    return _refusal(request)


def _refusal(request: Request) -> str | None:
    """The reason why a mask, scores or results of a request are not supported."""
    if request.mask.prefix:
        return "jax.nn.dot_product_attention hands it no prefix mask"
    if request.mask.window is not None and not request.mask.causal:
        return "jax.nn.dot_product_attention hands it a window only of the past"
    if request.softcap is not None:
        return "jax.nn.dot_product_attention has no soft-cap of the scores"
    if request.scale is not None and request.scale <= 0.0:
        return f"its kernels are asked for a scale of the scores above 0 alone, not {request.scale:g}"
    if not request.full_rows:
        return "its causal mask needs queries and keys of the same indices, which parts of a row have not"
    if request.deterministic and not _deterministic_operations():
        return VARIES
    if request.lse:
        return "jax.nn.dot_product_attention drops the derivative through its log-sum-exp"
    if request.mask.segmented:
        return cudnn_packed.refusal(request) or comparison.verdict(request)
    return None


def _deterministic_operations() -> bool:
    """Whether XLA's flags ask for deterministic operations; of a flag that is given twice the last one counts."""
    values = re.findall(r"--xla_gpu_deterministic_ops(?:=(\w+))?(?:\s|$)", os.environ.get("XLA_FLAGS", ""))
    return bool(values) and values[-1].lower() in ("", "true", "1")


@dataclass(frozen=True)
class _Settings:
    causal: bool
    window: int | None
    scale: float | None


def attend(
    q: Float[Array, "batch seq heads width"],
    k: Float[Array, "batch seq kv_heads width"],
    v: Float[Array, "batch seq kv_heads value_width"],
    *,
    mask: Mask,
    q_indices: Int[Array, "batch seq"],
    kv_indices: Int[Array, "batch seq"],
    q_segments: Int[Array, "batch seq"] | None = None,
    kv_segments: Int[Array, "batch seq"] | None = None,
    prefix_lengths: Int[Array, " batch"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    query_block: int = 512,
    kv_block: int = 512,
) -> Float[Array, "batch seq heads value_width"]:
    """Attention of whole rows whose indices are 0, 1, ...: indices and block sizes are not read.

    Raises:
        ValueError: If the mask or the shapes are not what cuDNN computes (see `supports`).
    """
    if (
        (mask.segmented and not mask.causal)
        or mask.prefix
        or softcap is not None
        or (mask.window is not None and not mask.causal)
    ):
        raise ValueError(f"cuDNN attention does not compute {mask} with softcap {softcap}")
    if scale is not None and scale <= 0.0:
        raise ValueError(f"cuDNN attention needs a scale of the scores above 0, got {scale:g}")
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"cuDNN attention needs queries and keys of the same indices, got {q.shape[1]} and {k.shape[1]}"
        )
    if mask.segmented:
        if q_segments is None:
            raise ValueError("this mask needs q_segments")
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        return cudnn_packed.attend(q, k, v, q_segments, scale=factor, window=mask.window)
    return _attention(_Settings(mask.causal, mask.window, scale), *vary_alike((q, k, v)))


def _fused(settings: _Settings, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention for values as wide as the keys."""
    # JAX's window leaves out the token itself, ours counts it.
    window = None if settings.window is None else (settings.window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, scale=settings.scale, is_causal=settings.causal, local_window_size=window, implementation="cudnn"
    )


@custom_vjp(0)
def _attention(settings: _Settings, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return narrowed(_fused(settings, q, k, widened(v, q)), v)


def _forward(settings: _Settings, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple]:
    """cuDNN's own forward, with names on what its backward keeps besides the arguments.

    Without the names no remat policy but one that knows cuDNN's primitives could keep the softmax statistics, and the
    forward would run again in the backward. Output and values are kept as narrow as they are.
    """
    output, statistics = CHECKPOINT_NAMES
    out, pull = vjp_without_arguments(partial(_fused, settings), q, k, widened(v, q), differentiated=(True,) * 3)
    named = checkpoint_name(narrowed(out, v), output)
    keep = lambda residual: named if residual is out else checkpoint_name(residual, statistics)
    set_residuals(pull, [keep(residual) if residual.size else residual for residual in residuals_of(pull)])
    return named, (pull, q, k, v)


def _backward(settings: _Settings, residuals: tuple, d_out: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    pull, q, k, v = residuals
    of_values = lambda residual: residual.ndim == v.ndim and residual.size
    set_arguments(pull, q, k, widened(v, q))
    set_residuals(pull, [widened(x, q) if of_values(x) else x for x in residuals_of(pull)])
    dq, dk, dv = pull(widened(d_out, q))
    return dq, dk, narrowed(dv, v)


_attention.defvjp(_forward, _backward)
