"""Mamba-2 alone: layers of one block."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import HEAD, TIED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.linear_keys import LinearSizes, NoStepLimit, mamba2_tensors
from jaxpar.layers.linear_attention.mixer import sizes_of

_SIZES = {"heads": "num_heads", "value_dim": "head_dim", "key_heads": "n_groups", "key_dim": "state_size"}


@dataclass(frozen=True)
class Expanded:
    """The width of all heads as a multiple of the residual stream's; transformers refuses another."""

    expand: str = "expand"
    heads: str = "num_heads"
    width: str = "head_dim"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.expand,)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        expand, embed = hf_config.integer(self.expand, 2), hf_config.integer("hidden_size")
        width = hf_config.integer(self.heads, 128) * hf_config.integer(self.width, 64)
        if expand * embed != width:
            expected = f"{self.heads} x {self.width} / hidden_size, {width / embed:g}"
            raise hf_config.refusal(self.expand, expand, expected)
        return {}

    def write(self, model: ModelConfig) -> dict[str, object]:
        sizes = sizes_of(model)
        return {self.expand: max(1, sizes.heads * sizes.value_dim // model.embed)}


MAMBA2 = Family(
    name="mamba2",
    model_type="mamba2",
    architecture="Mamba2ForCausalLM",
    presets="Mamba-2 in transformers' format, and Codestral Mamba",
    tensors=(
        Tensor("backbone.embeddings.weight", "embedding.tokens", Form.TABLE),
        *mamba2_tensors("backbone.layers.{layer}.mixer"),
        Tensor("backbone.layers.{layer}.norm.weight", "layers.mixer_norm.scale", Form.VECTOR),
        Tensor("backbone.norm_f.weight", "final_norm.scale", Form.VECTOR),
        HEAD,
    ),
    model={"norm": "rmsnorm", "position": "none", "mixer": "mamba2", "activation": "none"},
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("hidden_size", "embed"),
        Same("num_hidden_layers", "layers"),
        Same("num_heads", "heads", default=128),
        Same("head_dim", "head_dim", default=64),
        Same("layer_norm_epsilon", "norm_epsilon", default=1e-5),
        Expanded(),
        Only("hidden_act", ("silu", "swish")),
        Only("conv_kernel", (4,)),
        Only("use_bias", (False,)),
        Only("use_conv_bias", (True,)),
        NoStepLimit(),
        TIED,
    ),
    layer_entries=(LinearSizes(_SIZES, {"heads": 128, "value_dim": 64, "key_heads": 8, "key_dim": 128}),),
    unused=(
        "chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank", "time_step_min",
        "time_step_max", "time_step_floor", "time_step_init_scheme", "time_step_scale", "norm_before_gate", "rms_norm",
        "intermediate_size",
    ),
    prefix="backbone.",
)  # fmt: skip
