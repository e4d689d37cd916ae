"""The lines of a family's table about rotary embeddings: bases, scaling, and the part of a head that rotates.

transformers 5 writes all of it to `rope_parameters`; earlier releases write `rope_theta`, `rope_scaling` and
`partial_rotary_factor`, which every release reads. A value that two keys state must be the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxpar.config.errors import UserError
from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.keys import REQUIRED, HFConfig
from jaxpar.interop.mapping.layer_keys import GLOBAL, LOCAL, Types, layer_types

LENGTH = "original_max_position_embeddings"
SCALINGS = {
    "default": (),
    "linear": (("factor", "factor"),),
    "llama3": (
        ("factor", "factor"),
        (LENGTH, "original_length"),
        ("low_freq_factor", "low_frequency"),
        ("high_freq_factor", "high_frequency"),
    ),
    "yarn": (("factor", "factor"), (LENGTH, "original_length")),
    "longrope": (
        ("factor", "factor"),
        (LENGTH, "original_length"),
        ("short_factor", "short_factors"),
        ("long_factor", "long_factors"),
    ),
    "proportional": (),
}
"""The types of rotary scaling that our model has, and their keys with ours."""
COMMON = ("default", "linear", "llama3", "yarn")
"""The types that most families have."""
OPTIONAL = {
    "yarn": (
        ("beta_fast", "beta_fast"),
        ("beta_slow", "beta_slow"),
        ("truncate", "truncate"),
        ("attention_factor", "attention_factor"),
        ("mscale", "mscale"),
        ("mscale_all_dim", "mscale_all_dim"),
    ),
    "longrope": (("attention_factor", "attention_factor"),),
    "proportional": (("partial_rotary_factor", "partial"),),
}
"""Keys that may be absent or null, with the same default in both."""
_PARTIAL = "partial_rotary_factor"
_NEUTRAL = ("rope_type", "type", "rope_theta", _PARTIAL, LENGTH)
"""Keys beside a scaling's type that have no effect on it."""
_UNUSED = {"yarn": ("finetuned",)}
"""Keys of a scaling that transformers ignores."""

type Stated = Mapping[str, Mapping[str, object]]
"""Mappings of `config.json` about rotary embeddings, by their keys."""


@dataclass(frozen=True)
class Rope:
    """Rotary embeddings that are the same in all layers."""

    base: float = 10000.0
    """Default base if `config.json` has none."""
    scalings: tuple[str, ...] = COMMON
    """The types of scaling that are read for the family, out of `SCALINGS`."""
    partial: float | None = None
    """The default share of each head that rotates, in families where it may be a part."""
    unused: tuple[str, ...] = ()
    """Further keys of a scaling that have no effect on texts."""
    absent: Mapping[str, object] = field(default_factory=dict)
    """The scaling where `config.json` has neither `rope_scaling` nor `rope_parameters`."""
    temperature: str | None = None
    """The key of a scaling for the `scale` of `model.attention_temperature`, whose `floor` is the original length."""
    keys: tuple[str, ...] = ("rope_theta", "rope_scaling", "rope_parameters", _PARTIAL)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        mappings = _stated(hf_config, {key: hf_config.get(key) for key in ("rope_scaling", "rope_parameters")})
        _check_in_force(hf_config, mappings, {"rope_theta": self.base, _PARTIAL: self.partial or 1.0})
        mappings = {key: _without(mapping, self.unused) for key, mapping in mappings.items()}
        mappings = mappings or {"rope_scaling": self.absent}
        scales, mappings = self._scales(mappings)
        rotary = _rotary(hf_config, "rope_theta", mappings, self.base, self.scalings, self.partial)
        ours: dict[str, object] = {"rope": rotary}
        if scales:
            ours["attention_temperature"] = _temperature(hf_config, scales, rotary)
        return [ours] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        model = next((model for model in models if model.position == "rope"), models[0])
        scaling = _written_scaling(model)
        if scaling is None and self.absent:
            scaling = {"rope_type": "default"}
        if self.temperature is not None and scaling is not None:
            temperature = model.attention_temperature
            scaling = scaling | {self.temperature: 0.0 if temperature is None else temperature.scale}
        partial = {} if self.partial is None else {_PARTIAL: model.rope.partial}
        return {"rope_theta": model.rope.base, "rope_scaling": scaling, **partial}

    def _scales(self, mappings: Stated) -> tuple[dict[str, object], Stated]:
        """The scales of temperatures that mappings state, by key; and the mappings without them."""
        if (name := self.temperature) is None:
            return {}, mappings
        scales = {f"{key}.{name}": mapping.get(name) for key, mapping in mappings.items()}
        return scales, {key: _without(mapping, (name,)) for key, mapping in mappings.items()}


@dataclass(frozen=True)
class RopeByType:
    """Rotary embeddings of each type of layer (Gemma 3, OLMo 3): local layers have another base, and a scaling
    only if `rope_parameters` states one for them."""

    types: Types
    base: float = 1000000.0
    local_base: float = 10000.0
    bases: tuple[str, str] | None = ("rope_theta", "rope_local_base_freq")
    """The keys of both bases outside `rope_parameters`; None where only `rope_parameters` has them by type."""
    scalings: tuple[str, ...] = COMMON
    """See `Rope`."""
    absent: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """`rope_parameters` where `config.json` has none."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (*(self.bases or ("rope_theta",)), "rope_scaling", "rope_parameters")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        by_type = _stated(hf_config, {"rope_parameters": hf_config.get("rope_parameters")}).get(
            "rope_parameters", self.absent
        )
        for name in by_type.keys() - {LOCAL, GLOBAL}:
            raise hf_config.refusal(
                f"rope_parameters.{name}", by_type[name], f"mappings named {GLOBAL} and {LOCAL} alone"
            )
        global_key, local = (f"rope_parameters.{name}" for name in (GLOBAL, LOCAL))
        of_global = _stated(hf_config, {"rope_scaling": hf_config.get("rope_scaling"), global_key: by_type.get(GLOBAL)})
        of_local = _stated(hf_config, {local: by_type.get(LOCAL)})

        def rotary_keys(theta: str, stated: Stated, base: float) -> dict[str, object]:
            proportional = any(mapping.get("rope_type") == "proportional" for mapping in stated.values())
            rotary = _rotary(hf_config, theta, stated, base, self.scalings, 1.0 if proportional else None)
            return {"partial": 1.0} | rotary if "proportional" in self.scalings else rotary

        rotary = {
            GLOBAL: rotary_keys(self.bases[0] if self.bases else "rope_theta", of_global, self.base),
            LOCAL: rotary_keys(self.bases[1] if self.bases else "", of_local, self.local_base),
        }
        return [{"rope": rotary[one]} for one in layer_types(hf_config, layers, self.types)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        of_type = {LOCAL: models[0], GLOBAL: models[0]} | {
            LOCAL if model.window is not None else GLOBAL: model for model in models
        }
        if self.bases is None or of_type[LOCAL].rope.scaling != "none":  # local ones have no other key
            written = {name: _written_scaling(model) or {"rope_type": "default"} for name, model in of_type.items()}
            return {
                "rope_parameters": {
                    name: {**scaling, "rope_theta": of_type[name].rope.base} for name, scaling in written.items()
                }
            }
        return {
            self.bases[0]: of_type[GLOBAL].rope.base, "rope_scaling": _written_scaling(of_type[GLOBAL]),
            self.bases[1]: of_type[LOCAL].rope.base,
        }  # fmt: skip


def _stated(hf_config: HFConfig, values: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """The mappings among values of keys. `rope_scaling` states nothing where it is empty, and others no scaling.

    Raises:
        UserError: a value is neither a mapping nor null.
    """
    stated: dict[str, Mapping[str, object]] = {}
    for key, value in values.items():
        if value is not None and not isinstance(value, dict):
            raise hf_config.refusal(key, value, "a mapping")
        if value or (value is not None and key != "rope_scaling"):
            stated[key] = value
    return stated


def _temperature(
    hf_config: HFConfig, scales: Mapping[str, object], rotary: Mapping[str, object]
) -> AttentionTemperature | None:
    """The temperature whose scale is stated under some keys, and whose floor is the original length."""
    key, scale = hf_config.agreed_of(scales) or (next(iter(scales)), None)
    if scale == 0 and scale is not False:
        return None
    length = hf_config.checked_value(LENGTH, rotary["original_length"], "rope.original_length")
    return AttentionTemperature(length, HFConfig(hf_config.file, {key: scale}).positive(key, None))


def _without(mapping: Mapping[str, object], keys: tuple[str, ...]) -> Mapping[str, object]:
    return {key: value for key, value in mapping.items() if key not in keys}


def _rotary(
    hf_config: HFConfig,
    theta: str,
    mappings: Stated,
    base: float,
    scalings: tuple[str, ...] = COMMON,
    partial: float | None = None,
) -> dict[str, object]:
    """Our keys of `rope`, from the key of their base and the mappings that state something about them."""
    stated_base = _agreed(hf_config, theta, "rope_theta", mappings)
    share = _agreed(hf_config, _PARTIAL, _PARTIAL, mappings)
    ours: dict[str, object] = {"base": hf_config.checked_value(*stated_base, "rope.base") if stated_base else base}
    ours |= _scaling_of(hf_config, mappings, scalings)
    if partial is not None:
        ours["partial"] = hf_config.checked_value(*share, "rope.partial") if share else partial
    elif share and share[1] not in (1, 1.0):
        raise hf_config.refusal(*share, "1: all of each head rotates")
    return ours


def _agreed(hf_config: HFConfig, key: str, name: str, mappings: Stated) -> tuple[str, object] | None:
    """A key and the value on which `key` and the `name` of each mapping agree; None if none is stated."""
    stated = {
        key: hf_config.get(key),
        **{f"{file_key}.{name}": mapping.get(name) for file_key, mapping in mappings.items()},
    }
    return hf_config.agreed_of(stated)


def _check_in_force(hf_config: HFConfig, mappings: Stated, usual: Mapping[str, object]) -> None:
    """Refuse a value of `rope_parameters` alone where `rope_scaling` is in force, with which transformers does not read
    it."""
    if len(mappings) < 2:
        return
    for name, default in usual.items():
        value = mappings["rope_parameters"].get(name)
        if mappings["rope_scaling"].get(name) is None and hf_config.get(name) is None and value not in (None, default):
            raise UserError(
                f"{hf_config.file}: rope_parameters.{name} is {value}, and transformers reads rope_scaling in place of "
                f"rope_parameters, with {name} {default}; expected {name} in rope_scaling too"
            )


def _scaling_of(hf_config: HFConfig, mappings: Stated, scalings: tuple[str, ...]) -> dict[str, object]:
    """Our keys of the scaling that mappings state, that of the first if the others have none."""
    read = {key: _scaled(hf_config, key, mapping, scalings) for key, mapping in mappings.items()}
    if not read:
        return {"scaling": "none"}
    (first, scaling), *others = read.items()
    for key, other in others:
        if other["scaling"] != "none" and other != scaling:
            raise UserError(f"{hf_config.file}: {first} and {key} state two scalings that differ; expected one of them")
    return scaling


def _scaled(
    hf_config: HFConfig, key: str, scaling: Mapping[str, object], scalings: tuple[str, ...]
) -> dict[str, object]:
    """Our keys, from one mapping of theirs. Raises `UserError` for a type or a key that our model does not have."""
    named_type = hf_config.agreed_of({f"{key}.{name}": scaling.get(name) for name in ("rope_type", "type")})
    spelling, kind = named_type or (f"{key}.rope_type", "default")
    if not isinstance(kind, str) or kind not in scalings:
        raise hf_config.refusal(spelling, kind, f"one of {', '.join(scalings)}" if scalings[1:] else scalings[0])
    inside = HFConfig(hf_config.file, {f"{key}.{name}": value for name, value in scaling.items()})
    optional = dict(OPTIONAL.get(kind, ()))
    known = {*_NEUTRAL, *_UNUSED.get(kind, ()), *(theirs for theirs, _ in SCALINGS[kind]), *optional}
    for name in scaling.keys() - known:
        raise UserError(
            f"{hf_config.file}: {key}.{name} is not supported with {spelling.removeprefix(f'{key}.')} {kind}"
        )
    ours: dict[str, object] = {"scaling": "none" if kind == "default" else kind}
    # transformers takes the model's length where the scaling has no original one.
    lacks_length = scaling.get(LENGTH) is None and hf_config.get("max_position_embeddings") is not None
    for theirs, mine in SCALINGS[kind]:
        if theirs == LENGTH and lacks_length:
            ours[mine] = hf_config.typed("max_position_embeddings", f"rope.{mine}")
        else:
            ours[mine] = inside.typed(f"{key}.{theirs}", f"rope.{mine}", REQUIRED)
    present = {theirs: mine for theirs, mine in optional.items() if scaling.get(theirs) is not None}
    return ours | {mine: inside.typed(f"{key}.{theirs}", f"rope.{mine}") for theirs, mine in present.items()}


def _written_scaling(model: ModelConfig) -> dict[str, object] | None:
    """`rope_scaling` of our keys."""
    rope = model.rope
    if rope.scaling == "none":
        return None
    pairs = (*SCALINGS[rope.scaling], *OPTIONAL.get(rope.scaling, ()))
    values = {theirs: value for theirs, ours in pairs if (value := getattr(rope, ours)) is not None}
    values = {theirs: list(value) if isinstance(value, tuple) else value for theirs, value in values.items()}
    return {"rope_type": rope.scaling, **values}
