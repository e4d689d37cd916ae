"""Models and a batch in which everything counts: what tests that compare layouts share."""

import zlib
from typing import Any

import jax
import numpy as np

from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.residual import AltUpConfig, ResidualConfig
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.schema.model import Pattern
from tests.given_weights import state_with
from tests.short_documents import into_documents
from tests.small_run import SmallRun

FAMILIES = {
    "llama": {"z_loss": 1e-3},
    "gpt2": {"norm": "layernorm", "position": "learned", "activation": "gelu", "attention_bias": True, "mlp_bias": True,
     "max_positions": 64},
    "qwen3": {"qk_norm": True, "attention_gate": True, "rope": RopeConfig(base=1e6), "head_dim": 8},
    "mistral": {"window": 11, "activation": "relu2", "logit_softcap": 5.0, "attention_softcap": 3.0,
     "norm_placement": "stream", "residual": ResidualConfig(1.5, 0.75, 2.0, 1.25)},
    "qwen2": {"attention_bias": "qkv", "rope": RopeConfig(base=1e6, partial=0.5)},
    "cohere": {"norm": "unbiased_layernorm", "norm_placement": "parallel", "qk_norm": "layernorm", "logit_divisor": 0.5,
     "attention_temperature": AttentionTemperature(3, 0.5)},
    "olmo": {"norm": "weightless_layernorm", "norm_placement": "parallel_norms", "qkv_clip": 0.5,
     "activation": "xielu"},
    "gemma3n": {"altup": AltUpConfig(3, 1), "laurel_rank": 8, "norm_placement": "sandwich", "activation": "geglu",
     "activation_sparsity": 0.6},
    "olmo2": {"norm_placement": "post", "qk_norm": "projection"},
    "gemma": {"norm": "zero_centered_rmsnorm", "norm_placement": "sandwich", "activation": "geglu",
     "embedding_scale": True, "attention_scale": 0.3, "attention_softcap": 3.0, "logit_softcap": 5.0, "qk_norm": True},
}  # fmt: skip

LOCAL_AND_GLOBAL = {"local": {"window": 7, "rope": {"base": 100.0}}, "global": {"attention_softcap": None}}
"""The kinds of layers that the family `gemma` has in the matrices."""


HYBRID: dict[str, Any] = {
    "layers": 4,
    "norm_epsilon": 1e-2,  # the norm of an output that is almost 0 enlarges rounding
    "kinds": {"state": {"mixer": "gated_deltanet"}, "full": {}},
    "pattern": Pattern(unit=("state", "state", "state", "full")),
}
"""Three layers of gated DeltaNet to one of attention."""


def gemma(layers: int) -> dict[str, Any]:
    """The family with two local layers to one global one, and what is left of another unit behind."""
    unit = ("local", "global", "local")
    return FAMILIES["gemma"] | {
        "layers": layers, "kinds": LOCAL_AND_GLOBAL, "pattern": Pattern(unit=unit, suffix=unit[: layers % 3])
    }  # fmt: skip


def nonzero_gradients(run: SmallRun, initial: Any = None) -> tuple[float, Any]:
    """Loss and gradients where everything counts: short documents, padding, no bias 0 and no norm scale 1.

    `initial` are the initial weights where they are known, as NumPy: then nothing is compiled to make them. These and
    the gradients have their layers in the order of the model.
    """
    rows = run.rows(0)
    documents = into_documents(rows, seed=7)
    if not run.config.data.packed:
        documents |= {name: rows[name] for name in ("segments", "positions")}
    if initial is None:
        initial = run.by_layer(run.step.residency.initial_state().master)

    weights = run.by_row(moved_weights(initial))
    loss, gradients = run.step.gradients(state_with(run.step, weights), run.place(documents))
    return float(loss), run.by_layer(gradients)


def moved_weights(initial: Any) -> Any:
    """`initial` weights with biases that are not 0 and scales of norms that are not 1."""

    def moved(path: Any, value: np.ndarray) -> np.ndarray:
        name = jax.tree_util.keystr(path).replace("['all']", "")  # drawn alike where the only kind has a name
        if not any(part in name for part in ("bias", "norm", "output_scale")):
            return value
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        return value + 0.3 * draw.standard_normal(value.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(moved, initial)
