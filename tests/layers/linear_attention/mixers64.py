"""Mixers with a state in float64, token by token, from their papers; no code is shared with jaxpar.

Each is a function of (x [batch, seq, embed], weights of one layer, options of the model, batch) like
`decoder64.attention`; `layer` is the layer's index. Weights: projections [E, H, D], per-head ones [E, H], short
convolutions [H, D, taps].
"""

from typing import Any

import jax
import jax.numpy as jnp

from tests.reference.norms64 import rms_norm
from tests.reference.rotary64 import rotate


def recurrence(q: Any, k: Any, v: Any, g: Any, batch: Any, rate: Any = None) -> Any:
    """S = exp(g) S; S += k u^T; o = S^T q, with u = v or rate (v - S^T k). All [batch, seq, heads, ...]; a document
    begins with S = 0."""
    segments = batch["segments"]
    continues = jnp.pad(segments[:, 1:] == segments[:, :-1], ((0, 0), (1, 0)))
    g = jnp.broadcast_to(g, k.shape)

    def token(state: Any, xs: Any) -> Any:
        q, k, v, g, rate, continues = xs
        state = jnp.where(continues[:, None, None, None], state, 0) * jnp.exp(g)[..., None]
        if rate is not None:
            v = rate[..., None] * (v - jnp.einsum("bhkv,bhk->bhv", state, k))
        state = state + k[..., None] * v[..., None, :]
        return state, jnp.einsum("bhkv,bhk->bhv", state, q)

    ahead = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (q, k, v, g, rate, continues))
    first = jnp.zeros((*k.shape[:1], *k.shape[2:], v.shape[-1]), v.dtype)
    return jnp.moveaxis(jax.lax.scan(token, first, ahead)[1], 0, 1)


def summed(x: Any, taps: Any, batch: Any) -> Any:
    """The sum over a token and those before it in its document; the last tap is for the token itself."""
    segments, total = batch["segments"], jnp.zeros_like(x)
    for back in range(taps.shape[-1]):
        shifted = jnp.pad(x, ((0, 0), (back, 0), (0, 0), (0, 0)))[:, : x.shape[1]]
        same = jnp.pad(segments, ((0, 0), (back, 0)), constant_values=-1)[:, : x.shape[1]] == segments
        total = total + jnp.where(same[..., None, None], shifted, 0) * taps[..., -1 - back]
    return total


def convolved(x: Any, taps: Any, batch: Any, bias: Any = 0.0) -> Any:
    """The same with a bias, and the SiLU."""
    return jax.nn.silu(summed(x, taps, batch) + bias)


def epsilon_of(options: Any) -> float:
    """The epsilon of the output's norm."""
    return (options.get("linear_attention") or {}).get("norm_epsilon") or options["norm_epsilon"]


def unit(x: Any) -> Any:
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def into(x: Any, matrix: Any) -> Any:
    return jnp.tensordot(x, matrix, 1)


def out(h: Any, weights: Any) -> Any:
    return jnp.einsum("bshd,hde->bse", h, weights["output"])


def repeated(x: Any, heads: int) -> Any:
    return jnp.repeat(x, heads // x.shape[2], axis=2)


def lightning(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """MiniMax-01, section 2.2, and the decays of its published code."""
    q, k, v = (jax.nn.silu(into(x, w[name])) for name in ("query", "key", "value"))
    heads, layers = v.shape[2], options["layers"]
    slope = 2.0 ** (-8.0 * (jnp.arange(heads) + 1) / heads)
    g = -slope * (1 - layer / (layers - 1 + 1e-5) + 1e-5)
    h = recurrence(repeated(q, heads), repeated(k, heads), v, g[:, None], batch)
    wide = rms_norm(h.reshape(*h.shape[:2], -1), w["output_norm"].reshape(-1), epsilon_of(options))
    return out(jax.nn.sigmoid(into(x, w["gate"])) * wide.reshape(h.shape), w)


def retention(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """Sun et al. 2023, equations 1 and 8."""
    q, k, v, gate = (into(x, w[name]) for name in ("query", "key", "value", "gate"))
    q, k = (rotate(one, batch["positions"], options) for one in (q, k))
    heads = v.shape[2]
    g = jnp.log(1 - 2.0 ** (-5.0 - jnp.arange(heads)))
    h = recurrence(repeated(q, heads), repeated(k, heads) / k.shape[-1] ** 0.5, v, g[:, None], batch)
    return out(rms_norm(h, jnp.ones(v.shape[-1]), epsilon_of(options)) * jax.nn.silu(gate), w)


def gla(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """Yang et al. 2023, section 4.4."""
    q, k, v, gate = (into(x, w[name]) for name in ("query", "key", "value", "gate"))
    g = jax.nn.log_sigmoid(into(into(x, w["decay_a"]), w["decay_b"]) + w["decay_bias"]) / 16
    heads = v.shape[2]
    h = recurrence(repeated(q, heads) / k.shape[-1] ** 0.5, repeated(k, heads), v, repeated(g, heads), batch)
    return out(rms_norm(h, w["output_norm"], epsilon_of(options)) * jax.nn.silu(gate), w)


def relu_gla(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """SpikingBrain: a sum over tokens of values of the group's head, weighted by relu(q) relu(k) decayed."""
    q, k, v = (into(x, w[name]) + w.get(f"{name}_bias", 0.0) for name in ("query", "key", "value"))
    q, k, heads = jnp.maximum(q, 0.0), jnp.maximum(k, 0.0), q.shape[2]
    g = -jnp.log1p(jnp.exp(-(into(into(x, w["decay_a"]), w["decay_b"]) + w["decay_bias"]))) / 16
    h = recurrence(q / q.shape[-1] ** 0.5, repeated(k, heads), repeated(v, heads), repeated(g, heads), batch)
    return out(rms_norm(h, w["output_norm"], epsilon_of(options)), w)


def gated_deltanet(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """Yang et al. 2024, section 3, with Qwen3-Next's gates."""
    q, k, v = (convolved(into(x, w[name]), w[f"{name}_taps"], batch) for name in ("query", "key", "value"))
    heads = v.shape[2]
    q, k = repeated(unit(q), heads) / q.shape[-1] ** 0.5, repeated(unit(k), heads)
    g = -jnp.exp(w["decay_rate"]) * jax.nn.softplus(into(x, w["decay"]) + w["decay_bias"])
    h = recurrence(q, k, v, g[..., None], batch, jax.nn.sigmoid(into(x, w["rate"])))
    return out(rms_norm(h, w["output_norm"], epsilon_of(options)) * jax.nn.silu(into(x, w["gate"])), w)


def kimi_delta(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """Kimi Linear, section 4."""
    q, k, v = (convolved(into(x, w[name]), w[f"{name}_taps"], batch) for name in ("query", "key", "value"))
    steps = jax.nn.softplus(into(into(x, w["decay_a"]), w["decay_b"]) + w["decay_bias"])
    g = -jnp.exp(w["decay_rate"])[:, None] * steps
    h = recurrence(unit(q) / q.shape[-1] ** 0.5, unit(k), v, g, batch, jax.nn.sigmoid(into(x, w["rate"])))
    gate = jax.nn.sigmoid(into(into(x, w["gate_a"]), w["gate_b"]))
    return out(rms_norm(h, w["output_norm"], epsilon_of(options)) * gate, w)


def mamba2(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """Dao and Gu 2024, sections 6 and 7."""
    c, b, v = (
        convolved(into(x, w[name]), w[f"{name}_taps"], batch, w[f"{name}_taps_bias"])
        for name in ("query", "key", "value")
    )
    heads, groups = v.shape[2], c.shape[2]
    steps = jax.nn.softplus(into(x, w["step"]) + w["step_bias"])
    steps = jnp.maximum(steps, (options.get("linear_attention") or {}).get("least_step", 0.0))
    g = -jnp.exp(w["decay_rate"]) * steps
    h = recurrence(repeated(c, heads), repeated(b, heads), steps[..., None] * v, g[..., None], batch)
    h = (h + w["skip"][:, None] * v) * jax.nn.silu(into(x, w["gate"]))
    wide = h.reshape(*h.shape[:2], groups, -1)
    wide = wide / jnp.sqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon_of(options))
    return out(wide.reshape(h.shape) * w["output_norm"], w)


def short_conv(x: Any, w: Any, options: Any, batch: Any, layer: int) -> Any:
    """LFM2, figure 1: two gates around a convolution, without another non-linearity."""
    entry, gate, value = (into(x, w[name]) for name in ("entry", "gate", "value"))
    return out(gate * summed(entry * value, w["taps"], batch), w)


MIXERS = {
    one.__name__: one for one in (lightning, retention, gla, relu_gla, gated_deltanet, kimi_delta, mamba2, short_conv)
}
