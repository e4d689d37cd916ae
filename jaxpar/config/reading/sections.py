"""A `Config` from and to values by section and key: unknown names, wrong types and presets are handled here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import reduce
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.mappings.overlap import OFF, OverlapConfig
from jaxpar.config.presets import PRESETS
from jaxpar.config.reading.aliases import MOVED, REMOVED, key_of_other_system
from jaxpar.config.reading.options import OPTIONS, with_all_options
from jaxpar.config.reading.typed import Annotation, checked, field_types, shown, spell, type_names
from jaxpar.config.schema import Config, ModelConfig, OptimizerConfig
from jaxpar.config.spelling import cut, did_you_mean, join_or, quoted

SECTIONS: dict[str, type] = field_types(Config)
"""Section name to its dataclass, in the order of the schema."""

NESTED: dict[str, type] = {
    f"{section}.{key}": annotation
    for section, record in SECTIONS.items()
    for key, annotation in field_types(record).items()
    if is_dataclass(annotation) and isinstance(annotation, type)
}
"""Sections within sections, whose keys are set one by one, to their dataclasses."""

BY_MEMBER = (*NESTED, OPTIONS)
"""Mappings whose members are set one by one."""

WORDS: dict[str, dict[str, Any]] = {"parallel.overlap": {"auto": asdict(OverlapConfig()), "off": asdict(OFF)}}
"""Words that may stand in place of a nested section, with its keys."""

type Written = dict[str, dict[str, Any]]
"""Written settings: section to key to checked value. Keys that were not written are absent, in a nested section too."""


def keys_of(section: str) -> dict[str, Annotation]:
    """The annotation of each key of a section; keys of a nested one are named as in `rope.base`."""
    keys = {name: {"": annotation} for name, annotation in field_types(SECTIONS[section]).items()}
    keys |= {name: field_types(NESTED[key]) for name in keys if (key := f"{section}.{name}") in NESTED}
    return {f"{name}.{part}" if part else name: kind for name, parts in keys.items() for part, kind in parts.items()}


def rename_keys(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a section under the names that `keys_of` has."""
    parts = {key: value if f"{section}.{key}" in BY_MEMBER else {"": value} for key, value in values.items()}
    return {f"{key}.{part}" if part else key: one for key, inner in parts.items() for part, one in inner.items()}


def joined(section: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Written settings of a section, with those written later."""
    parts = {key: {**before.get(key, {}), **value} for key, value in after.items() if f"{section}.{key}" in BY_MEMBER}
    return {**before, **after, **parts}


def with_values[T](record: T, values: Mapping[str, Any]) -> T:
    """A section with what was written of it in place of its values."""
    parts: dict[str, Any] = {key: getattr(record, key) for key in values}
    nested = {
        key: replace(part, **values[key])
        for key, part in parts.items()
        if type(part) in NESTED.values() and isinstance(values[key], Mapping)
    }
    if isinstance(record, OptimizerConfig) and "options" in values:
        nested["options"] = record.options | values["options"]
    return replace(record, **{**values, **nested})  # pyright: ignore[reportArgumentType, reportCallIssue]


def written_value(key: str, value: object, annotation: Annotation, nested: bool) -> Any:
    """A checked value; of a nested section the keys that were written alone."""
    made = checked(key, value, annotation)
    return {name: getattr(made, name) for name in value} if nested else made  # pyright: ignore[reportGeneralTypeIssues]


def check_section(section: str) -> None:
    """Refuse a section that does not exist, naming the nearest, or the section that a bare key belongs to.

    Raises:
        UserError: there is no such section.
    """
    if section in SECTIONS:
        return
    raise UserError(f"{cut(section, 80)}: no such section{_suggestion(section, SECTIONS)}")


def check_key(section: str, key: str) -> Annotation:
    """The annotation of a key.

    Raises:
        UserError: the section or the key does not exist.
    """
    check_section(section)
    known = field_types(SECTIONS[section])
    if key in known:
        return known[key]
    mapping, *inner = key.split(".")
    if moved := MOVED.get(key) or MOVED.get(f"{section}.{key}") or MOVED.get(f"{section}.{mapping}"):
        near = f"; it is {moved} now"
    elif gone := REMOVED.get(f"{section}.{key}"):
        near = f" any more: {gone}"
    elif inner and mapping in known and "a mapping" in type_names(known[mapping]):
        example = reduce(lambda value, name: f"{{{name}: {value}}}", reversed(inner), "...")
        near = f"; a mapping is written as a whole, as in {section}.{mapping}={cut(example, 80)}"
    else:
        near = _suggestion(key, known)
    raise UserError(f"{section}.{cut(key, 80)}: no such key{near}")


def _suggestion(name: str, near: Iterable[str]) -> str:
    """A clause with the key that a wrong name probably means: of another section, of another system, or the nearest."""
    section_keys = [f"{section}.{name}" for section, record in SECTIONS.items() if name in field_types(record)]
    meant = section_keys[0] if section_keys else key_of_other_system(name)
    return f"; did you mean {meant}?" if meant else did_you_mean(name, near)


def check_value(section: str, key: str, value: object) -> Any:
    """The value, checked and converted for its field.

    Raises:
        UserError: the name is unknown, the value is of the wrong type, or there is no such preset.
    """
    name = f"{section}.{key}"
    if name in WORDS and not isinstance(value, Mapping):
        if not isinstance(value, str) or value not in WORDS[name]:
            raise UserError(f"{name}: expected {join_or(WORDS[name])} or a mapping, got {shown(value)}")
        value = WORDS[name][value]
    value = written_value(name, value, check_key(section, key), name in NESTED)
    if (section, key) == ("model", "preset") and value is not None and value not in PRESETS:
        near = did_you_mean(value, PRESETS) or f"; there are {', '.join(PRESETS)}"
        raise UserError(f"model.preset: no preset is called {quoted(value)}{near}")
    return value


def assemble(written: Written) -> Config:
    """The configuration: defaults, then the preset, then what was written."""
    made: dict[str, Any] = {}
    for section, record in SECTIONS.items():
        values = written.get(section, {})
        base = preset_model(values.get("preset")) if record is ModelConfig else record()
        made[section] = with_values(base, values)
    return Config(**made)


def preset_model(name: str | None) -> ModelConfig:
    """The model of a preset, or the default model for null."""
    return ModelConfig() if name is None else PRESETS[name]


def config_to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Every section and key with its resolved value; the values are JSON values."""
    plain = asdict(config)
    for values in plain.values():
        values.update({key: list(value) for key, value in values.items() if isinstance(value, tuple)})
    return plain


def config_from_dict(plain: Mapping[str, Mapping[str, Any]]) -> Config:
    """The inverse of `config_to_dict`; keys that are absent take the preset's value, or the default.

    Raises:
        UserError: a name is unknown or a value is of the wrong type.
    """
    written: Written = {}
    for section, values in plain.items():
        check_section(section)
        if not isinstance(values, Mapping):
            raise UserError(f"{section}: expected a mapping of keys, got {shown(values)}")
        written[section] = {key: check_value(section, key, value) for key, value in values.items()}
    return assemble(written)


def config_difference(old: Config, new: Config) -> list[str]:
    """`section.key: old -> new` for each value that differs, in the order of the schema."""
    before, after = (config_to_dict(with_all_options(config)) for config in (old, new))
    lines = []
    for section in before:
        values, now = rename_keys(section, before[section]), rename_keys(section, after[section])
        for key in dict.fromkeys((*values, *now)):
            if values.get(key, now) != now.get(key, values):
                lines.append(f"{section}.{key}: {_spelled(key, values)} -> {_spelled(key, now)}")
    return lines


def _spelled(key: str, values: Mapping[str, Any]) -> str:
    """A value in YAML, or that there is none."""
    return spell(values[key]) if key in values else "unused"
