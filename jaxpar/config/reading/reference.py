"""The reference of the configuration, made from the strings under the fields of `jaxpar.config.schema`.

`python -m jaxpar.layers.reference > docs/configuration.md` writes the page; `--help` prints `help_text()`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from jaxpar.config import schema
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.config.presets import PRESETS
from jaxpar.config.reading.options import OPTIONS, declaring, record_of
from jaxpar.config.reading.sections import NESTED, SECTIONS, config_to_dict, keys_of, rename_keys
from jaxpar.config.reading.typed import bound_of, field_types, spell, type_names
from jaxpar.config.spelling import join_or

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m jaxpar.layers.reference > docs/configuration.md`; edit jaxpar/config/ instead. -->

For looking up a key. A run is described by a YAML file of sections and keys; every key has a default.
`--set section.key=value` overrides a key, the value written as in YAML:

    python -m jaxpar.train --config configs/quickstart.yaml --set model.layers=8 --set parallel.fsdp=-1

- Later wins: defaults, then the model's preset, then the file, then the overrides.
- Scalars are YAML 1.2's: `1e-3` is a number, `10:15` and `on` are text. A key may appear once.
- A wrong name or value, or sizes that do not fit together, give one sentence and exit status 2 before a device is used.
- A key that has no effect because of another one (`optimizer.decay_fraction` without `schedule: wsd`) is refused; if an
  override is the cause, as `--set optimizer.name=adamw` over a file for Muon, there is a warning instead.
- Numbers also have an upper limit, far above any use; the error message names it.
- The resolved configuration of a run is in its folder as `config.yaml`, and can be run again unchanged.
"""

_TYPES = {
    "a whole number": "integer",
    "a number": "number",
    "true or false": "bool",
    "a mapping": "mapping",
    "a list": "list",
}
"""Types of values in the table, where an error message has a phrase."""


@dataclass(frozen=True)
class Entry:
    """One key of the reference."""

    key: str
    """The key as `section.key`."""
    kind: str
    """The type and range of the value, in words."""
    default: str
    """The default, in YAML."""
    meaning: str
    """The string under the field."""


def entries() -> dict[str, list[Entry]]:
    """The keys of each section, in the order of the schema."""
    meanings = _field_strings()
    defaults = config_to_dict(schema.Config())
    sections: dict[str, list[Entry]] = {}
    for section in SECTIONS:
        values, sections[section] = rename_keys(section, defaults[section]), []
        for name, annotation in keys_of(section).items():
            key, default = f"{section}.{name}", values.get(name, {})
            outer, _, field = key.rpartition(".")
            record = NESTED.get(outer) or SECTIONS[outer]
            sections[section].append(Entry(key, _kind(annotation), spell(default), meanings[record, field]))
    return sections


def options() -> Iterator[Entry]:
    """The members of `optimizer.options`, each once for the dataclass that declares it."""
    meanings = _field_strings()
    readers: dict[tuple[type, str], list[str]] = {}
    for name in OPTIMIZERS:
        for field in field_types(record_of(name)):
            record = declaring(record_of(name), field)
            assert record is not None, "a field is declared"
            readers.setdefault((record, field), []).append(name)
    for (record, field), names in readers.items():
        key, kind = f"{OPTIONS}.{field}", field_types(record)[field]
        meaning = f"{', '.join(f'`{name}`' for name in names)}: {meanings[record, field]}"
        yield Entry(key, _kind(kind), spell(getattr(record(), field)), meaning)


def _shown() -> dict[str, list[Entry]]:
    """The keys of each section, with those of its mappings that depend on another key."""
    return {section: [*keys, *options()] if section == "optimizer" else keys for section, keys in entries().items()}


def markdown(parameters: Mapping[str, int]) -> str:
    """The text of `docs/configuration.md`, with the `parameters` of each preset."""
    parts = [_INTRODUCTION]
    for section, keys in _shown().items():
        rows = [_row(f"`{e.key}`", e.kind, f"`{e.default}`", e.meaning) for e in keys]
        table = [_row("key", "value", "default", "meaning"), _row(*["---"] * 4), *rows]
        parts.append("\n".join([f"## {section}", "", _summary(section), "", *table, ""]))
    parts.append(_preset_table(parameters))
    return "\n".join(parts)


def help_text() -> str:
    """The same reference for a terminal, for `--help`."""
    lines = ["Keys of the configuration, as section.key=default (what a value must be):"]
    for section, keys in _shown().items():
        lines += ["", f"{section}: {_summary(section)}"]
        for entry in keys:
            lines.append(f"  {entry.key}={entry.default} ({entry.kind})")
            lines += textwrap.wrap(entry.meaning, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join([*lines, "", f"Presets (model.preset): {', '.join(PRESETS)}"])


def _field_strings() -> dict[tuple[type, str], str]:
    """The string under each field of each dataclass of the schema; a field without one is a bug."""
    docstrings: dict[tuple[type, str], str] = {}
    of_options = (record for name in OPTIMIZERS for record in record_of(name).__mro__[:-1])
    for record in {*SECTIONS.values(), *NESTED.values(), *of_options}:
        (body,) = [one.body for one in ast.parse(inspect.getsource(record)).body if isinstance(one, ast.ClassDef)]
        for field, string in pairwise(body):
            match field, string:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    docstrings[record, name] = " ".join(text.split())
    return docstrings


def _summary(section: str) -> str:
    return " ".join((SECTIONS[section].__doc__ or "").split())


def _kind(annotation: object) -> str:
    names = [_TYPES.get(name, name) for name in type_names(annotation)]
    bound = bound_of(annotation)
    if bound is None:
        return join_or(names)
    words = bound.words.replace("at least", ">=").replace("above", ">")
    return ", or ".join([f"{names[0]} {words}", *names[1:]])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _preset_table(parameters: Mapping[str, int]) -> str:
    header = ("preset", "layers", "embed", "heads / kv", "mlp", "vocab", "parameters")
    rows = [
        _row(f"`{name}`", *map(str, (m.layers, m.embed, f"{m.heads} / {m.kv_heads}", m.mlp, m.vocab)), f"{count:,}")
        for name, count in parameters.items()
        for m in [PRESETS[name]]
    ]
    lines = [_row(*header), _row(*["---"] * len(header)), *rows]
    return "\n".join(["## Presets", "", "Published models, for `model.preset`.", "", *lines, ""])
