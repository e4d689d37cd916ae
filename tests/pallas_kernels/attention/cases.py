"""Cases of attention by kernels, held to float64 and to plain JAX in the same dtype."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.attention.ring import merge
from pallas_kernels.attention import ForwardBackward, MaskInputs, Settings, compute_delta, reference
from pallas_kernels.masks import Mask
from tests.pallas_kernels.dense64 import Tokens, attention, pairs, worst

TIMES = 2.0
"""Errors are at most so many times those of the plain JAX form in the same dtype ..."""
FLOOR = 3e-6
"""... or below this: log-sum-exps are float32 in both."""
MASKS = [Mask(), Mask(causal=False), Mask(window=3, segmented=True), Mask(segmented=True, prefix=True), Mask(window=2)]


class Case(NamedTuple):
    """One combination."""

    mask: Mask
    length: int = 50
    heads: int = 4
    kv_heads: int = 2
    widths: tuple[int, int] = (16, 16)
    softcap: float | None = None
    dtype: str = "bfloat16"
    queries: slice = slice(None)
    neighbours: bool = False
    """Whether kernels may assume that indices grow by one; what blocks visit is then an interval, not a list."""
    results: Literal["float32", "inputs"] = "float32"
    louder: float = 1.0
    """By what queries are multiplied."""
    deterministic: bool = False
    """Whether Mosaic's kernels give the same bits in every run."""

    @property
    def settings(self) -> Settings:
        more: dict[str, Any] = {"neighbours": self.neighbours, "results": self.results, "interpret": True}
        return Settings(self.mask, self.widths[0] ** -0.5, self.softcap, **more)


def mask_inputs(tokens: Tokens) -> MaskInputs:
    return MaskInputs(**{name: jnp.asarray(x) for name, x in tokens.named().items()})


def random_inputs(case: Case, tokens: Tokens) -> dict[str, jax.Array]:
    """Queries, keys, values, and gradients of output and log-sum-exp."""
    rng, (batch, queries), keys = np.random.default_rng(0), tokens.q_indices.shape, tokens.kv_indices.shape[1]
    (width, value_width), heads, kv_heads = case.widths, case.heads, case.kv_heads
    shapes = {
        "q": (queries, heads, width), "k": (keys, kv_heads, width), "v": (keys, kv_heads, value_width),
        "d_out": (queries, heads, value_width),
    }  # fmt: skip
    inputs = {name: jnp.asarray(rng.normal(size=(batch, *shape)), case.dtype) for name, shape in shapes.items()}
    inputs["q"] *= case.louder
    return inputs | {"d_lse": jnp.asarray(rng.normal(size=(batch, queries, heads)), jnp.float32)}


@partial(jax.jit, static_argnums=(0, 1))
def forward(kernels: ForwardBackward, settings: Settings, *arrays: Any) -> tuple[jax.Array, jax.Array]:
    return kernels.forward(settings, *arrays)


def backward(kernels: ForwardBackward, settings: Settings, *arrays: Any) -> tuple[jax.Array, ...]:
    return kernels.backward(settings, *arrays)


compiled_backward = jax.jit(backward, static_argnums=(0, 1))


def results(
    kernels: ForwardBackward, settings: Settings, tokens: MaskInputs, inputs: dict[str, jax.Array], apart: bool = False
) -> dict[str, jax.Array]:
    """Output, log-sum-exp and gradients. `apart` is for backwards of several launches in Mosaic GPU's simulator, which
    knows one at a time: they are not compiled as one program."""
    q, k, v, d_out, d_lse = (inputs[name] for name in ("q", "k", "v", "d_out", "d_lse"))
    out, lse = forward(kernels, settings, q, k, v, tokens)
    delta = compute_delta(out, d_out, lse, d_lse)
    gradients = (backward if apart else compiled_backward)(kernels, settings, q, k, v, tokens, lse, delta, d_out)
    found = dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True))
    return {name: x.astype(settings.result_dtype(q)) for name, x in found.items()} | {"lse": lse}


def merged_parts(
    kernels: ForwardBackward, case: Case, tokens: Tokens, inputs: dict[str, jax.Array], picks: Sequence[np.ndarray]
) -> tuple[dict[str, jax.Array], list[tuple[jax.Array, jax.Array]]]:
    """`results` of all keys, from those of parts of them, and each part's output and log-sum-exp."""
    q, k, v, d_out, d_lse = (inputs[name] for name in ("q", "k", "v", "d_out", "d_lse"))
    named, settings = mask_inputs(tokens), case.settings
    assert named.kv_segments is not None
    of_part = lambda pick: named._replace(kv_indices=named.kv_indices[:, pick], kv_segments=named.kv_segments[:, pick])
    parts = [(k[:, pick], v[:, pick], of_part(pick)) for pick in picks]
    each = [forward(kernels, settings, q, *part) for part in parts]
    out, lse = merge(*each)
    delta = compute_delta(out, d_out, lse, d_lse)
    gradients = [compiled_backward(kernels, settings, q, *part, lse, delta, d_out) for part in parts]
    order = np.argsort(np.concatenate(picks))
    dk, dv = (jnp.concatenate([of_part[index] for of_part in gradients], 1)[:, order] for index in (1, 2))
    return {"out": out, "lse": lse, "dq": sum(dq for dq, _, _ in gradients), "dk": dk, "dv": dv}, each


def expected(case: Case, tokens: Tokens, inputs: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    exact = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    return attention(**exact, kept=pairs(case.mask, tokens), softcap=case.softcap)


def check_errors(
    found: dict[str, Any], case: Case, tokens: Tokens, inputs: dict[str, jax.Array], wanted: dict[str, np.ndarray]
) -> None:
    """Against float64, beside those of the plain JAX form."""
    plain = worst(results(reference.KERNELS, case.settings, mask_inputs(tokens), inputs), wanted)
    errors = worst(found, wanted)
    assert all(errors[name] <= max(TIMES * plain[name], FLOOR) for name in errors), (errors, plain)


def check(kernels: ForwardBackward, case: Case, tokens: Tokens, apart: bool = False) -> None:
    """Results are as near to float64 as those of plain JAX."""
    inputs = random_inputs(case, tokens)
    found = results(kernels, case.settings, mask_inputs(tokens), inputs, apart)
    check_errors(found, case, tokens, inputs, expected(case, tokens, inputs))
