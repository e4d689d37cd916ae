"""The feed-forward layers of the float64 reference, and their activations."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64

from tests.reference import streams64
from tests.reference.options import Options
from tests.reference.tree import Tree


def feed_forward(
    x: Float64[Array, "batch seq embed"], weights: Tree, options: Options
) -> Float64[Array, "batch seq embed"]:
    """SwiGLU or GeGLU (Shazeer 2020), GELU by tanh (Hendrycks & Gimpel 2016) or squared ReLU (So et al. 2021)."""

    def project(name: str) -> Float64[Array, "batch seq mlp"]:
        hidden = x @ weights[name]
        return hidden + weights[name + "_bias"] if options["mlp_bias"] else hidden

    def gate_of() -> Float64[Array, "batch seq mlp"]:
        share = options["activation_sparsity"]
        return streams64.sparse(project("gate"), share) if share else project("gate")

    up = project("up")
    if options["activation"] in ("swiglu", "clamped_swiglu"):
        hidden = gated(gate_of(), up, options)
    elif options["activation"] == "geglu":
        hidden = gelu(gate_of()) * up
    elif options["activation"] == "gelu":
        hidden = gelu(up)
    elif options["activation"] == "xielu":
        hidden = xielu(up, weights)
    elif options["activation"] == "exact_geglu":
        hidden = exact_gelu(gate_of()) * up
    elif options["activation"] == "exact_gelu":
        hidden = exact_gelu(up)
    else:
        hidden = jnp.maximum(up, 0.0) ** 2
    out = hidden @ weights["down"]
    return out + weights["down_bias"] if options["mlp_bias"] else out


def gated(gate: Array, up: Array, options: Options) -> Array:
    """SwiGLU, or gpt-oss's variant: both clamped at 7, a sigmoid of 1.702 times the gate, up plus 1."""
    if options["activation"] == "swiglu":
        return gate * jax.nn.sigmoid(gate) * up
    gate, up = jnp.where(gate > 7, 7.0, gate), jnp.where(jnp.abs(up) > 7, 7 * jnp.sign(up), up)
    return (up + 1) * gate / (1 + jnp.exp(-1.702 * gate))


def gelu(x: Float64[Array, "*dims"]) -> Float64[Array, "*dims"]:
    """The approximation of GELU by tanh (Hendrycks & Gimpel 2016, sec. 2)."""
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def xielu(x: Float64[Array, "*dims"], weights: Tree) -> Float64[Array, "*dims"]:
    """xIELU (Huang & Schlag 2024, eq. 12) with a slope of 1/2 at 0."""
    above, below = (jnp.log(1 + jnp.exp(weights[name])) for name in ("alpha_p", "alpha_n"))
    negative = jnp.where(x > 0, 0.0, x)
    return x / 2 + jnp.where(x > 0, above * x * x, (0.5 + below) * (jnp.exp(negative) - 1 - negative))


def exact_gelu(x: Float64[Array, "*dims"]) -> Float64[Array, "*dims"]:
    """GELU by the distribution function of the normal distribution (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1 + jax.scipy.special.erf(x / math.sqrt(2)))
