"""`config.json` to a model section and back, by the table of its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace

from jaxpar.config.counting import attention_scale, embedding_scale, head_dim, kv_heads
from jaxpar.config.errors import UserError
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.reading.sections import with_values
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import quoted
from jaxpar.interop.families.registry import FAMILIES, LACKING
from jaxpar.interop.mapping.expert_keys import SAME
from jaxpar.interop.mapping.family import Family, tensors_of
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.layer_packing import key_sources, layer_models, packed
from jaxpar.interop.mapping.multimodal import MULTIMODAL, TEXT
from jaxpar.interop.mapping.quantization import QUANTIZATION, quantization_of
from jaxpar.interop.mapping.rope_keys import OPTIONAL, SCALINGS
from jaxpar.layers.declared import attends, feed_forward_classes, mixer_classes
from jaxpar.layers.experts.routers import options_of
from jaxpar.layers.linear_attention.mixer import sizes_of
from jaxpar.layout.checks.model import OF_SOME_MIXERS

UNUSED = (
    "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path",
    "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "max_position_embeddings",
    "attention_dropout", "auto_map", "attn_implementation", "_attn_implementation", "cache_implementation",
    "_attn_implementation_autoset", "task_specific_params", "transformers.js_config", "unsloth_fixed",
    "unsloth_version", "id2label", "label2id", "problem_type", "return_dict", "output_attentions",
    "output_hidden_states", "is_decoder", "is_encoder_decoder", "chunk_size_feed_forward", "torchscript",
    "pretraining_tp", "tokenizer_class", "output_past", "_num_labels", "max_length", "max_sequence_length", "do_sample",
    "temperature", "top_k", "top_p", "repetition_penalty", "gradient_checkpointing", "custom_pipelines",
)  # fmt: skip
"""Keys of any family that do not change what the model computes."""

ONLY_IN_TRAINING = ("balance_loss", "sequence_loss", "z_loss", "capacity_factor", "clusters", "bias_rate")
"""Keys of experts, and options of routers, that do not change what a trained model computes."""
TRAINING = ("preset", "vocab_multiple", "dropout", "init_scale", "z_loss", "kinds", "pattern")
"""Keys of our model section that do not change what a trained model computes, or that are spelled out by layer."""


def family_of(hf_config: HFConfig) -> Family:
    """The family of a `config.json`.

    Raises:
        UserError: its `model_type` or `architectures` belong to none.
    """
    model_type, known = hf_config.get("model_type"), {family.model_type: family for family in FAMILIES.values()}
    if isinstance(model_type, str) and model_type in LACKING:
        raise UserError(f"{hf_config.file}: model_type is {model_type}, which is not supported: {LACKING[model_type]}")
    if not isinstance(model_type, str) or model_type not in known:
        # A type with a similar name is another architecture, and no slip: transformers writes this key.
        alike = [one for one in known if _letters(one) == _letters(str(model_type)) and _agrees(hf_config, known[one])]
        wanted = f"did you mean {alike[0]}?" if alike else _expected(hf_config)
        what = "is missing" if model_type is None else f"is {quoted(model_type, 80)}, which is not supported"
        raise UserError(f"{hf_config.file}: model_type {what}; {wanted}")
    family = known[model_type]
    classes = hf_config.get("architectures") or [family.architecture]
    if not isinstance(classes, list) or family.architecture not in classes:
        raise hf_config.refusal("architectures", classes, family.architecture)
    return family


def _expected(hf_config: HFConfig) -> str:
    """The types that are supported."""
    if isinstance(hf_config.get(TEXT), dict):
        return f"of models with a {TEXT} expected one of {', '.join(MULTIMODAL)}"
    if str(hf_config.get("model_type")) in MULTIMODAL:
        return f"expected its {TEXT}, without which it is no model of text"
    return "expected one of those that python -m jaxpar.models lists"


def _agrees(hf_config: HFConfig, family: Family) -> bool:
    """Whether a family has most keys of a `config.json`, of those that are not every model's."""
    particular = hf_config.values.keys() - {*UNUSED, QUANTIZATION}
    return 2 * len(particular & known_keys(family)) > len(particular)


def _letters(name: str) -> str:
    """A name without its separators, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def model_of(hf_config: HFConfig) -> tuple[Family, ModelConfig]:
    """The family and the model section of a `config.json`.

    Raises:
        UserError: a key, or its value, is not supported; the message names it.
    """
    family = family_of(hf_config)
    ours: dict[str, object] = dict(family.model)
    for entry in family.entries:
        ours |= entry.read(hf_config)
    layers = ours["layers"]
    assert isinstance(layers, int), "an entry of every family reads it"
    each: list[dict[str, object]] = [{} for _ in range(layers)]
    for entry in family.layer_entries:
        each = [kind | more for kind, more in zip(each, entry.read(hf_config, layers), strict=True)]
    quantization_of(hf_config, family)
    for key, value in hf_config.values.items():
        if key not in known_keys(family) and value is not None:
            raise UserError(f"{hf_config.file}: the key {key} is not supported for {family.model_type}")
    return family, with_values(ModelConfig(), {**ours, **packed(each)})


def config_of(family: Family, model: ModelConfig, base: Mapping[str, object], length: int) -> dict[str, object]:
    """The `config.json` of a model.

    Args:
        family: its family.
        model: what it computes.
        base: a `config.json` that supplies the other keys, such as those of tokens.
        length: `max_position_embeddings`, where `base` has none.

    Raises:
        UserError: the family cannot express the model.
    """
    resolved = replace(model, preset=None, kv_heads=kv_heads(model), head_dim=head_dim(model))
    owned = {key for entry in (*family.entries, *family.layer_entries) for key in entry.keys}
    made = {"architectures": [family.architecture], "model_type": family.model_type, "max_position_embeddings": length}
    made |= {key: value for key, value in base.items() if key not in owned and key != QUANTIZATION}
    for entry in family.entries:
        made |= entry.write(resolved)
    for entry in family.layer_entries:
        made |= entry.write(layer_models(resolved))
    if "n_positions" in made:
        del made["max_position_embeddings"]
    _, again = model_of(HFConfig("config.json", made))
    if wrong := differences(model, again):
        raise UserError(f"model: the format of {family.name} cannot express {', '.join(map(str, wrong))}")
    return made


def family_for(model: ModelConfig) -> Family:
    """The first family that can express a model.

    Raises:
        UserError: there is none.
    """
    refusals = {}
    for family in FAMILIES.values():
        try:
            tensors_of(family, model)
            config_of(family, model, {}, length=1)
            return family
        except UserError as error:
            refusals[family.name] = str(error)
    nearest = min(refusals.values(), key=lambda text: text.count(","))
    raise UserError(f"model: no family of Hugging Face's format can hold this model; for one, {nearest}")


@dataclass(frozen=True)
class Difference:
    """A key of the model section in which two models differ."""

    key: str
    first: object
    second: object
    layer: int | None
    """The first layer in which they do; None if they do in all."""

    def __str__(self) -> str:
        where = "" if self.layer is None else f" of layer {self.layer}"
        if not is_dataclass(self.first) or type(self.first) is not type(self.second):
            return f"model.{self.key}{where} ({_spelled(self.first)}, not {_spelled(self.second)})"
        pairs = [
            (one.name, *(getattr(section, one.name) for section in (self.first, self.second)))
            for one in fields(self.first)
        ]
        return "; ".join(
            f"model.{self.key}.{name}{where} ({spell(first)}, not {spell(second)})"
            for name, first, second in pairs
            if first != second
        )


def _spelled(value: object) -> str:
    """A value in YAML; a mapping such as `model.experts` without the keys that are at their defaults."""
    if not is_dataclass(value):
        return spell(value)
    usual = {one.name: {} if one.default is MISSING else one.default for one in fields(value)}
    return spell({name: setting for name, setting in vars(value).items() if setting != usual[name]})


def differences(a: ModelConfig, b: ModelConfig) -> list[Difference]:
    """The keys of the model section in which what two models compute differs."""
    if a.layers != b.layers:
        return [Difference("layers", a.layers, b.layers, None)]
    each = list(zip(_functions(a), _functions(b), strict=True))
    lines = []
    for key in each[0][0]:
        wrong = [layer for layer, (mine, other) in enumerate(each) if mine[key] != other[key]]
        if wrong:
            mine, other = each[wrong[0]]
            everywhere = len(wrong) == a.layers
            lines.append(Difference(key, mine[key], other[key], None if everywhere else wrong[0]))
    return lines


def known_keys(family: Family) -> set[str]:
    """The keys of `config.json` that are read, or are known not to change what a model computes."""
    owned = {key for entry in (*family.entries, *family.layer_entries) for key in entry.keys}
    return owned | set(family.unused) | set(UNUSED) | {QUANTIZATION}


def _experts(model: ModelConfig, experts: ExpertsConfig) -> ExpertsConfig:
    """The experts' configuration without the keys that do not affect the result."""
    width = model.mlp if experts.width is None else experts.width
    router = SAME.get(experts.router, experts.router)
    options = options_of(experts)
    options = {
        one.name: value
        for one in fields(options)
        if one.name not in ONLY_IN_TRAINING and (value := getattr(options, one.name)) != one.default
    }
    unchanged = {
        name: getattr(experts, name)
        for name in ("count", "per_token", "shared", "shared_router", "weigh_inputs", "norms")
    }
    return ExpertsConfig(width=width, router=router, router_options=options, **unchanged)


def _functions(model: ModelConfig) -> list[dict[str, object]]:
    """`_function` of each layer, with the index of the layer whose keys it shares."""
    pairs = zip(layer_models(model), key_sources(model), strict=True)
    return [_function(one) | {"keys_of": source} for one, source in pairs]


def _function(model: ModelConfig) -> dict[str, object]:
    """The keys that decide what a model of like layers computes; null where another one makes them unused."""
    values = {key: value for key, value in vars(model).items() if key not in TRAINING}
    values |= {"kv_heads": kv_heads(model), "head_dim": head_dim(model)}
    values["attention_scale"] = round(attention_scale(model), 12)
    values["embedding_scale"] = round(embedding_scale(model), 12)
    values["logit_divisor"] = round(model.logit_divisor, 12)
    if model.position != "learned":
        values["max_positions"] = None
    if model.latent_attention is not None:
        values["mixer"] = "latent_attention"  # what `attention` is with these widths
        epsilon = model.latent_attention.norm_epsilon or model.norm_epsilon
        values["latent_attention"] = replace(model.latent_attention, norm_epsilon=epsilon)
    values["linear_attention"] = sizes_of(model)
    if model.experts is not None:
        values["experts"], values["mlp"] = _experts(model, model.experts), None
    values["rope"] = _rotary(model.rope) if model.position == "rope" else None
    values |= dict.fromkeys(_unread(model))
    return values


def _unread(model: ModelConfig) -> list[str]:
    """The keys that no block of a layer reads."""
    read = {key for mixer in mixer_classes(model) for key in mixer.reads}
    unread = [key for key in OF_SOME_MIXERS if key not in read]
    if not attends(model):
        unread += ["heads", "kv_heads", "head_dim", "rope", *(["position"] if model.position != "learned" else [])]
    return unread + ([] if feed_forward_classes(model) else ["mlp"])


def _rotary(rope: RopeConfig) -> RopeConfig:
    """The keys that its scaling uses; the others at their defaults."""
    pairs = (*SCALINGS.get(rope.scaling, ()), *OPTIONAL.get(rope.scaling, ()))
    used = ("base", "scaling", "partial", *(ours for _, ours in pairs))
    return RopeConfig(**{key: getattr(rope, key) for key in used})
