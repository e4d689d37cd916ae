"""A configuration from a YAML file and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.reading.options import check_written
from jaxpar.config.reading.overrides import parse_overrides
from jaxpar.config.reading.sections import Written, assemble, check_section, check_value, config_to_dict, joined
from jaxpar.config.reading.typed import field_types, shown
from jaxpar.config.reading.unused import without_unused
from jaxpar.config.reading.yaml_file import read_document
from jaxpar.config.reading.yaml_text import to_yaml
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import named

SHOWN = 10
"""Number of a file's mistakes that one message shows."""


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration. Later wins: defaults, the model's preset, the file, the overrides.

    Checks names and types; `validate` checks keys against each other. Warns of keys of the file that an override makes
    unused (`optimizer.name=adamw` over a file for Muon); they then have their defaults.

    Args:
        path: A YAML file of sections, or None for the defaults.
        overrides: `section.key=value`, the value in YAML.

    Raises:
        UserError: the file cannot be read, or a name or value is wrong; the sentence names the file and the line.
    """
    written = {} if path is None else read_sections(path)
    overridden = parse_overrides(overrides)
    preset = overridden.get("model", {}).get("preset")
    in_file = written.get("model", {})
    if preset not in (None, in_file.get("preset")) and set(in_file) >= set(field_types(ModelConfig)) - {"preset"}:
        raise UserError(
            f"model.preset={preset} would change nothing: {named(path)} sets every other key of model itself"
        )
    before = assemble(written)
    for section, values in overridden.items():
        written[section] = joined(section, written.get(section, {}), values)
    return without_unused(assemble(written), overridden, before.optimizer)


def read_sections(path: str | Path) -> Written:
    """The contents of a YAML file, checked for names and types.

    Raises:
        UserError: the file cannot be read, or names or values are wrong: a line for each, up to `SHOWN`.
    """
    written: Written = {}
    mistakes: list[str] = []
    for section, located in read_document(Path(path)).items():
        with _Mistakes(mistakes, f"{named(path)}:{located.line}"):
            check_section(section)
            if (section, located.value) == ("parallel", "auto"):
                written[section] = {"auto": True}
                continue
            if located.value is not None and not isinstance(located.value, dict):
                raise UserError(f"{section}: expected a mapping of keys, got {shown(located.value)}")
            written[section] = {}
        for key, leaf in (located.value or {}).items() if section in written else ():
            with _Mistakes(mistakes, f"{named(path)}:{leaf.line}"):
                written[section][key] = check_value(section, key, leaf.value)
        keys = located.value if section == "optimizer" and isinstance(located.value, dict) else {}
        if "options" in keys and written[section].keys() >= {"options", "name"} & keys.keys():
            with _Mistakes(mistakes, f"{named(path)}:{keys['options'].line}"):
                check_written(written[section])
    if mistakes:
        more = [f"and {len(mistakes) - SHOWN} more mistakes in {named(path)}"] if len(mistakes) > SHOWN else []
        raise UserError(*mistakes[:SHOWN], *more)
    return written


def config_to_yaml(config: Config) -> str:
    """The resolved configuration as a file that `load_config` reads back as the same configuration."""
    return to_yaml(config_to_dict(config))


class _Mistakes:
    """Records the message of a `UserError` raised within, with its file and line, and suppresses the error."""

    def __init__(self, mistakes: list[str], position: str) -> None:
        self.mistakes, self.position = mistakes, position

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, UserError):
            self.mistakes.append(f"{self.position}: {error}")
        return isinstance(error, UserError)
