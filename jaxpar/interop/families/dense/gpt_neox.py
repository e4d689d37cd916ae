"""GPT-NeoX and Pythia: attention and feed-forward are parallel, each with a LayerNorm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import join_or
from jaxpar.interop.families.dense.stablelm import ParallelResidual
from jaxpar.interop.families.llama import SIZES, TIED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Same
from jaxpar.interop.mapping.rope_keys import Rope

_ACTIVATIONS = {"gelu": "exact_gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu"}
_RENAMED = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}


@dataclass(frozen=True)
class GELUs:
    """GELU, exact or approximated by tanh."""

    absent: str = "gelu"
    """The one where the key is absent."""
    keys: tuple[str, ...] = ("hidden_act",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        value = hf_config.get("hidden_act", self.absent)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise hf_config.refusal("hidden_act", value, join_or(_ACTIVATIONS))
        return {"activation": _ACTIVATIONS[value]}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {"hidden_act": next((one for one, ours in _ACTIVATIONS.items() if ours == model.activation), "gelu")}


@dataclass(frozen=True)
class RenamedRope(Rope):
    """Rotary embeddings whose base and share are `rotary_emb_base` and `rotary_pct` outside `rope_parameters`."""

    keys: tuple[str, ...] = (*_RENAMED, "rope_scaling", "rope_parameters")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        values = {key: value for key, value in hf_config.values.items() if key not in _RENAMED.values()}
        values |= {ours: hf_config.get(theirs) for theirs, ours in _RENAMED.items()}
        return super().read(HFConfig(hf_config.file, values), layers)

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written = super().write(models)
        scaling = written.pop("rope_scaling") or {"rope_type": "default"}
        assert isinstance(scaling, dict)
        return {"rope_parameters": {**scaling, **written}}


def _line(theirs: str, ours: str, *, by_head: bool = False) -> tuple[Tensor, Tensor]:
    name = f"gpt_neox.layers.{{layer}}.{theirs}"
    biases = " ".join(f"layers.{one}_bias" for one in ours.split())
    weights = " ".join(f"layers.{one}" for one in ours.split())
    return (
        Tensor(f"{name}.weight", weights, by_head=by_head),
        Tensor(f"{name}.bias", biases, Form.VECTOR, by_head=by_head),
    )


def _norm(name: str, ours: str) -> tuple[Tensor, Tensor]:
    return (
        Tensor(f"gpt_neox.{name}.weight", f"{ours}.scale", Form.VECTOR),
        Tensor(f"gpt_neox.{name}.bias", f"{ours}.bias", Form.VECTOR),
    )


GPT_NEOX = Family(
    name="gpt_neox",
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    presets="GPT-NeoX 20B, Pythia and Dolly 2",
    tensors=(
        Tensor("gpt_neox.embed_in.weight", "embedding.tokens", Form.TABLE),
        *_norm("layers.{layer}.input_layernorm", "layers.attention_norm"),
        *_norm("layers.{layer}.post_attention_layernorm", "layers.mlp_norm"),
        *_line("attention.query_key_value", "attention.query attention.key attention.value", by_head=True),
        *_line("attention.dense", "attention.output"),
        *_line("mlp.dense_h_to_4h", "mlp.up"),
        *_line("mlp.dense_4h_to_h", "mlp.down"),
        *_norm("final_layer_norm", "final_norm"),
        Tensor("embed_out.weight", "head.weight", also="lm_head.weight"),
    ),
    model={"norm": "layernorm", "mlp_bias": True},
    entries=(
        *(entry for entry in SIZES if "num_key_value_heads" not in entry.keys),
        GELUs(),
        Same("layer_norm_eps", "norm_epsilon", default=1e-5),
        Same("attention_bias", "attention_bias", default=True, annotation=bool),
        ParallelResidual("parallel_norms", absent=True),
        TIED,
    ),
    layer_entries=(RenamedRope(partial=0.25),),
    unused=("hidden_dropout", "classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    prefix="gpt_neox.",
    head="embed_out.weight",
    buffers=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
)
