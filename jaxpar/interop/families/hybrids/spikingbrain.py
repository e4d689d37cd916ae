"""SpikingBrain-7B, by the names of its published code: gated linear attention and windows in turn (`gla_swa`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import FEED_FORWARD, GROUPED_SIZES, HEAD, NORM, TIED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.linear_keys import with_state
from jaxpar.interop.mapping.rope_keys import Rope

_ATTENDING, _TYPES = "attn_layers", "attn_type_list"


@dataclass(frozen=True)
class SpikingLayers:
    """The layers with attention, those with odd numbers where none are stated, and their window."""

    keys: tuple[str, ...] = (_ATTENDING, _TYPES, "sliding_window")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        stated = hf_config.get(_ATTENDING)
        attending = list(range(1, layers, 2)) if stated is None else stated
        if not isinstance(attending, list) or not all(type(one) is int and 0 <= one < layers for one in attending):
            raise hf_config.refusal(_ATTENDING, attending, f"a list of numbers from 0 to {layers - 1}")
        types = [int(layer in attending) for layer in range(layers)]
        if hf_config.get(_TYPES) not in (None, types):
            raise hf_config.refusal(_TYPES, hf_config.get(_TYPES), f"1 for the layers of {_ATTENDING} and 0 for others")
        shared = LinearAttentionConfig(key_heads=hf_config.integer("num_key_value_heads", 4))
        mixers = (
            {"mixer": "relu_gla", "window": None},
            {"mixer": "attention", "window": hf_config.typed("sliding_window", "window", 4096)},
        )
        return [{"linear_attention": shared, **mixers[one]} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        attending = [layer for layer, model in enumerate(models) if not with_state(model)]
        window = models[attending[0]].window if attending else 4096
        return {_ATTENDING: attending, "sliding_window": window}


_LAYER = "model.layers.{layer}"
_INWARD = (("q", "query"), ("k", "key"), ("v", "value"))

SPIKINGBRAIN = Family(
    name="gla_swa",
    model_type="gla_swa",
    architecture="GLAswaForCausalLM",
    presets="SpikingBrain-7B, whose code is beside its weights",
    tensors=(
        Tensor("model.embeddings.weight", "embedding.tokens", Form.TABLE),
        *(
            Tensor(f"{_LAYER}.attn.{theirs}_proj.{kind}", f"layers.{block}.{ours}{end}", form)
            for block in ("mixer", "attention")
            for theirs, ours in _INWARD
            for kind, end, form in (("weight", "", Form.LINEAR), ("bias", "_bias", Form.VECTOR))
        ),
        *(Tensor(f"{_LAYER}.attn.o_proj.weight", f"layers.{block}.output") for block in ("mixer", "attention")),
        Tensor(f"{_LAYER}.attn.gk_proj.0.weight", "layers.mixer.decay_a"),
        Tensor(f"{_LAYER}.attn.gk_proj.1.weight", "layers.mixer.decay_b"),
        Tensor(f"{_LAYER}.attn.gk_proj.1.bias", "layers.mixer.decay_bias", Form.VECTOR),
        Tensor(f"{_LAYER}.attn.g_norm.weight", "layers.mixer.output_norm", Form.VECTOR),
        *(
            Tensor(f"{_LAYER}.{theirs}_norm.weight", f"layers.{block}_norm.scale", Form.VECTOR)
            for theirs, block in (("attn", "mixer"), ("attn", "attention"), ("mlp", "mlp"))
        ),
        *(line for line in FEED_FORWARD if line.name.endswith("weight")),
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu", "attention_bias": "qkv"},
    entries=(
        *GROUPED_SIZES,
        Only("hidden_act", ("swish", "silu")),
        Same("norm_eps", "norm_epsilon", default=1e-6),
        Only("use_short_conv", (False,)),
        Only("elementwise_affine", (True,)),
        Only("gate_logit_normalizer", (16,)),
        Only("gate_low_rank_dim", (16,)),
        TIED,
    ),
    layer_entries=(Rope(base=1000000.0, scalings=("default",)), SpikingLayers()),
    unused=("attn_mode", "conv_size", "fuse_cross_entropy"),
)
