"""Gemma 4's text part: inputs of layers, layers that share keys, heads of another width in layers without a window, and
experts beside feed-forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.residual import PerLayerEmbeddings
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.gemma import COMMON, WITH_QK_NORMS
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LOCAL, five_to_one, layer_types
from jaxpar.interop.mapping.rope_keys import RopeByType

_VOCAB = 262144


@dataclass(frozen=True)
class PerLayer:
    """Inputs of layers: a width of 0 is none."""

    keys: tuple[str, ...] = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        """See `Entry`."""
        width, rows = hf_config.get("hidden_size_per_layer_input", 256), None
        if width == 0 and width is not False:
            return {"per_layer_embeddings": None}
        rows = hf_config.integer("vocab_size_per_layer_input", _VOCAB)
        same = rows == hf_config.get("vocab_size")
        width = hf_config.integer("hidden_size_per_layer_input", 256)
        return {"per_layer_embeddings": PerLayerEmbeddings(width, None if same else rows)}

    def write(self, model: ModelConfig) -> dict[str, object]:
        """See `Entry`."""
        inputs = model.per_layer_embeddings or PerLayerEmbeddings(0)
        return {"hidden_size_per_layer_input": inputs.width, "vocab_size_per_layer_input": inputs.vocab or model.vocab}


def _types(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers with the window, except every sixth and the last."""
    return [*five_to_one(hf_config, layers)[:-1], GLOBAL]


def sources_of(hf_config: HFConfig, types: Sequence[str], default: int = 0) -> list[int | None]:
    """Index, for each layer, of the last layer of its type that computes keys; None if it does so itself."""
    shared = hf_config.get("num_kv_shared_layers", default)
    if type(shared) is not int or not 0 <= shared < len(types):
        raise hf_config.refusal("num_kv_shared_layers", shared, f"a whole number from 0 to {len(types) - 1}")
    first = len(types) - shared
    last = {one: layer for layer, one in enumerate(types[:first])}
    if missing := set(types[first:]) - set(last):
        raise hf_config.refusal(
            "num_kv_shared_layers", shared, f"a layer of {min(missing)} before those that share keys"
        )
    return [None] * first + [last[one] for one in types[first:]]


@dataclass(frozen=True)
class Experts:
    """Experts beside the feed-forward of each layer, which is as one shared expert, or several side by side."""

    keys: tuple[str, ...] = ("enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        """See `LayerEntry`."""
        if not hf_config.flag("enable_moe_block", default=False):
            return [{"experts": None}] * layers
        count, chosen = hf_config.integer("num_experts"), hf_config.integer("top_k_experts")
        width, dense = hf_config.integer("moe_intermediate_size"), hf_config.integer("intermediate_size", 9216)
        if chosen > count:
            raise hf_config.refusal("top_k_experts", chosen, f"at most {count} experts")
        if dense % width:
            raise hf_config.refusal("intermediate_size", dense, f"a multiple of moe_intermediate_size ({width})")
        if hf_config.flag("use_double_wide_mlp", default=False):
            raise hf_config.refusal("use_double_wide_mlp", True, "false, with experts")
        return [{"experts": ExpertsConfig(count, chosen, width, dense // width, norms=True)}] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        """See `LayerEntry`."""
        if (experts := models[0].experts) is None:
            return {"enable_moe_block": False, **dict.fromkeys(self.keys[1:])}
        width = models[0].mlp if experts.width is None else experts.width
        values = experts.count, experts.per_token, width
        return {"enable_moe_block": True, **dict(zip(self.keys[1:], values, strict=True))}


def _dense_width(model: ModelConfig) -> int:
    """The width of a layer's feed-forward, with or without experts beside it."""
    experts = model.experts
    if experts is None:
        return model.mlp
    return experts.shared * (model.mlp if experts.width is None else experts.width)


@dataclass(frozen=True)
class Layers:
    """Windows, widths of heads and of feed-forwards, and shared keys."""

    keys: tuple[str, ...] = (
        "layer_types", "sliding_window", "head_dim", "num_key_value_heads", "intermediate_size", "global_head_dim",
        "num_global_key_value_heads", "per_layer_config", "attention_k_eq_v", "num_kv_shared_layers",
        "use_double_wide_mlp",
    )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        """See `LayerEntry`."""
        types = layer_types(hf_config, layers, _types)
        if types[-1] != GLOBAL:
            raise hf_config.refusal("layer_types", types, f"{GLOBAL} as the last")
        window = hf_config.integer("sliding_window", 512)
        wide = 2 if hf_config.flag("use_double_wide_mlp", default=False) else 1
        mlp, as_values = hf_config.typed("intermediate_size", "mlp", 9216), self._keys_as_values(hf_config)
        sources, heads = sources_of(hf_config, types), self._heads(hf_config, types)
        return [
            {
                **of_layer, "window": window if one == LOCAL else None, "keys_of": source,
                "mlp": mlp * (1 if source is None else wide),
                "keys_as_values": as_values and one == GLOBAL and source is None,
            }
            for one, source, of_layer in zip(types, sources, heads, strict=True)
        ]  # fmt: skip

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        """See `LayerEntry`."""
        types = [GLOBAL if model.window is None else LOCAL for model in models]
        local = next((model for model in models if model.window is not None), models[0])
        shared = [model for model in models if model.keys_of is not None]
        width = next(_dense_width(model) for model in models if model.keys_of is None)
        overrides = {
            str(layer): _differing(model, local) for layer, model in enumerate(models) if types[layer] == GLOBAL
        }
        return {
            "layer_types": types, "sliding_window": local.window or 512, "head_dim": local.head_dim,
            "num_key_value_heads": local.kv_heads, "intermediate_size": width, "per_layer_config": overrides,
            "attention_k_eq_v": any(model.keys_as_values for model in models), "num_kv_shared_layers": len(shared),
            "use_double_wide_mlp": any(_dense_width(model) == 2 * width for model in shared),
        }  # fmt: skip

    def _keys_as_values(self, hf_config: HFConfig) -> bool:
        return hf_config.flag("attention_k_eq_v", default=False)

    def _heads(self, hf_config: HFConfig, types: Sequence[str]) -> list[dict[str, object]]:
        """The width and the number of key heads of each layer."""
        usual = {"head_dim": 256, "num_key_value_heads": 4}
        stated = {key: hf_config.integer(key, default) for key, default in usual.items()}
        each = self._overrides(hf_config, types)
        ours = {"head_dim": "head_dim", "num_key_value_heads": "kv_heads"}
        return [
            {mine: hf_config.checked_value(key, of_layer.get(key, stated[key]), mine) for key, mine in ours.items()}
            for of_layer in each
        ]

    def _overrides(self, hf_config: HFConfig, types: Sequence[str]) -> list[Mapping[str, object]]:
        """The keys of each layer that `per_layer_config`, or the keys in its place, state."""
        if "per_layer_config" not in hf_config.values:
            of_global: dict[str, object] = {"head_dim": hf_config.integer("global_head_dim", 512)}
            heads = hf_config.get("num_global_key_value_heads")
            if heads is not None and self._keys_as_values(hf_config):
                of_global["num_key_value_heads"] = heads
            return [of_global if one == GLOBAL else {} for one in types]
        stated = {} if (values := hf_config.get("per_layer_config")) is None else values
        by_layer = {str(layer): dict[str, object]() for layer in range(len(types))}
        if not isinstance(stated, dict) or not all(
            str(layer) in by_layer
            and isinstance(keys, dict)
            and set(keys) <= {"head_dim", "num_key_value_heads"}
            and None not in keys.values()
            for layer, keys in stated.items()
        ):
            raise hf_config.refusal("per_layer_config", stated, "head_dim and num_key_value_heads of layers")
        return list((by_layer | {str(layer): keys for layer, keys in stated.items()}).values())


def _differing(model: ModelConfig, local: ModelConfig) -> Mapping[str, object]:
    """The keys that `per_layer_config` has for a layer without a window."""
    heads = {} if model.kv_heads == local.kv_heads else {"num_key_value_heads": model.kv_heads}
    return {"head_dim": model.head_dim} | heads


_LAYER = "model.layers.{layer}"
INPUTS_OF_LAYERS = (
    Tensor(f"{_LAYER}.per_layer_input_gate.weight", "layers.per_layer.per_layer_gate"),
    Tensor(f"{_LAYER}.per_layer_projection.weight", "layers.per_layer.per_layer_projection"),
    Tensor(f"{_LAYER}.post_per_layer_input_norm.weight", "layers.post_per_layer_norm.scale", Form.VECTOR),
    Tensor("model.embed_tokens_per_layer.weight", "embedding.per_layer_tokens", Form.TABLE),
    Tensor("model.per_layer_model_projection.weight", "embedding.per_layer_projection", Form.TABLE),
    Tensor("model.per_layer_projection_norm.weight", "embedding.per_layer_norm", Form.VECTOR),
)
MODEL = {
    "norm": "rmsnorm", "norm_placement": "sandwich", "activation": "geglu", "embedding_scale": True, "qk_norm": True,
    "value_norm": True, "attention_scale": 1.0,
}  # fmt: skip
_NORMS_OF_EXPERTS = (
    ("router.scale", "router_norm"),
    ("router.per_expert_scale", "expert_scale"),
    ("pre_feedforward_layernorm_2.weight", "routed_norm"),
    ("post_feedforward_layernorm_1.weight", "post_shared_norm"),
    ("post_feedforward_layernorm_2.weight", "post_routed_norm"),
)

GEMMA4 = Family(
    name="gemma4",
    model_type="gemma4_text",
    architecture="Gemma4ForCausalLM",
    presets="Gemma 4, without their images and sounds",
    tensors=(
        *WITH_QK_NORMS,
        *(
            Tensor(f"{_LAYER}.mlp.{name}_proj.weight", f"layers.mlp.shared_{name}") for name in ("gate", "up", "down")
        ),
        Tensor(f"{_LAYER}.router.proj.weight", "layers.mlp.router"),
        *(Tensor(f"{_LAYER}.{theirs}", f"layers.mlp.{ours}", Form.VECTOR) for theirs, ours in _NORMS_OF_EXPERTS),
        Tensor(f"{_LAYER}.experts.gate_up_proj", "layers.mlp.gate layers.mlp.up", all_experts=True),
        Tensor(f"{_LAYER}.experts.down_proj", "layers.mlp.down", all_experts=True),
        *INPUTS_OF_LAYERS,
        Tensor(f"{_LAYER}.layer_scalar", "layers.layer_scale.scale", Form.VECTOR),
    ),
    model=MODEL | {"layer_scale": True},
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("hidden_size", "embed"),
        Same("num_hidden_layers", "layers"),
        Same("num_attention_heads", "heads"),
        *COMMON,
        Same("final_logit_softcapping", "logit_softcap", default=None),
        Only("hidden_activation", ("gelu_pytorch_tanh",)),
        Only("use_bidirectional_attention", (None, "vision")),  # without images it is causal
        PerLayer(),
    ),
    layer_entries=(
        RopeByType(
            _types,
            bases=None,
            scalings=("default", "proportional"),
            absent={
                LOCAL: {"rope_type": "default", "rope_theta": 1e4},
                GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        ),
        Layers(),
        Experts(),
    ),
)  # fmt: skip
