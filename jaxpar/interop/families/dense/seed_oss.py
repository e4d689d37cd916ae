"""Seed-OSS: Llama with biases of queries, keys and values, and perhaps of attention's output."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import GROUPED_SIZES, NORM_EPSILON, SILU, TENSORS, TIED
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import HFConfig, Same
from jaxpar.interop.mapping.rope_keys import Rope


@dataclass(frozen=True)
class TwoBiases:
    """A key for the biases of queries, keys and values, and one for that of the output."""

    keys: tuple[str, ...] = ("attention_bias", "attention_out_bias")

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        inward, outward = (hf_config.flag(key, default=key == self.keys[0]) for key in self.keys)
        if outward and not inward:
            raise hf_config.refusal(self.keys[1], outward, f"false, as {self.keys[0]}")
        return {"attention_bias": "qkv" if inward and not outward else inward}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return dict(zip(self.keys, (bool(model.attention_bias), model.attention_bias is True), strict=True))


SEED_OSS = Family(
    name="seed_oss",
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    presets="Seed-OSS 36B",
    tensors=TENSORS,
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=128),
        SILU,
        NORM_EPSILON,
        TwoBiases(),
        Same("mlp_bias", "mlp_bias", default=False),
        TIED,
    ),
    layer_entries=(Rope(),),
    unused=("residual_dropout",),
)
