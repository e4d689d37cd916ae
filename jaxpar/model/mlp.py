"""The feed-forward layer, its hidden width split over the tensor axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxpar.config.counting import gated
from jaxpar.config.schema import ModelConfig
from jaxpar.mesh.collectives import gather_sequence, scatter_sequence
from jaxpar.mesh.parameters import Tree
from jaxpar.model.activations import name_activation
from jaxpar.model.tiles import over_tiles
from jaxpar.model.weights import weight

_over_tiles: Any = over_tiles  # which type checkers do not see through `custom_vjp` of a partial


class MLP(nnx.Module):
    """`down(activation(up(x)))`, or gated `down(activation(gate(x)) * up(x))`: SwiGLU by SiLU, GeGLU by GELU
    (arXiv:2002.05202)."""

    def __init__(self, model: ModelConfig):
        self.activation, self.gated = model.activation, gated(model)
        wide = {"shape": (model.embed, model.mlp), "axes": ("embed", "mlp"), "matrix": True, "decay": True}
        back = model.init_scale / (2 * model.layers) ** 0.5
        if self.gated:
            self.gate = weight(**wide, scale=model.init_scale)
        self.up = weight(**wide, scale=model.init_scale)
        self.down = weight((model.mlp, model.embed), ("mlp", "embed"), matrix=True, decay=True, scale=back)
        self.biased = model.mlp_bias
        if self.biased:
            if self.gated:
                self.gate_bias = weight((model.mlp,), ("mlp",), init="zeros")
            self.up_bias = weight((model.mlp,), ("mlp",), init="zeros")
            self.down_bias = weight((model.embed,), ("norm",), init="zeros")

    def project_in(self, x: Float[Array, "batch seq embed"]) -> tuple[jax.Array, ...]:
        """Matmuls of the joined sequence with this rank's hidden columns: up, and any gate; no biases."""
        up = x @ self.up[...]
        return (up, x @ self.gate[...]) if self.gated else (up,)

    def project_out(self, x: Float[Array, "batch seq mlp"]) -> Float[Array, "batch seq embed"]:
        """This rank's partial sums; the bias of `down` is added by `add_bias`."""
        return x @ self.down[...]

    def in_tiles(self, x: Float[Array, "batch part embed"], tiles: int) -> Float[Array, "batch part embed"]:
        """All but the output bias, verbs included, for `ceil(batch * part / tiles)` tokens of each rank at a time.

        Each tile runs the verbs for its own tokens, so that neither the joined sequence nor the partial sums, `tensor`
        times as large as `x`, exist whole. Sends what one tile would: forward `gather_sequence` and `scatter_sequence`;
        backward two of the former (the input again, the gradient of the output) and one of the latter.
        """
        graph, state = nnx.split(self)

        def block(weights: Tree, x: jax.Array) -> jax.Array:
            mlp: MLP = nnx.merge(graph, weights)
            return scatter_sequence(mlp.project_out(mlp.activate(*mlp.project_in(gather_sequence(x)))))

        return _over_tiles(block, nnx.to_pure_dict(state), x, tiles)

    def activate(self, up: jax.Array, gate: jax.Array | None = None) -> Float[Array, "batch seq mlp"]:
        """From what `project_in` made to what `project_out` takes: biases and the non-linearity."""
        if self.biased:
            up = up + self.up_bias[...]
        up = name_activation(up, "mlp_up")
        if gate is not None:
            gate_input: jax.Array = gate + self.gate_bias[...] if self.biased else gate
            gate_input = name_activation(gate_input, "mlp_gate")
            hidden = name_activation(self._non_linear(gate_input), "mlp_activated") * up
        else:
            hidden = self._non_linear(up)
        return name_activation(hidden, "mlp_hidden")

    def _non_linear(self, x: jax.Array) -> jax.Array:
        match self.activation:
            case "swiglu":
                return jax.nn.silu(x)
            case "geglu" | "gelu":
                return jax.nn.gelu(x, approximate=True)
            case "relu2":
                return jnp.square(jax.nn.relu(x))
        raise AssertionError(f"no non-linearity is called {self.activation!r}")

    def add_bias(self, x: Float[Array, "batch part embed"]) -> Float[Array, "batch part embed"]:
        """Add the output bias, after the partial sums of the tensor ranks are summed: once, not once per rank."""
        return x + self.down_bias[...] if self.biased else x
