"""A configuration from a YAML file and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.overrides import parse_overrides
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.sections import Written, assemble, check_section, check_value, config_to_dict
from jaxpar.config.spelling import did_you_mean
from jaxpar.config.typed import field_types, spell
from jaxpar.config.yaml_text import parse_document, to_yaml


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration. Later wins: defaults, the model's preset, the file, the overrides.

    Names and types are checked here; what must hold between keys is checked by `validate`.

    Args:
        path: A YAML file of sections, or None for the defaults.
        overrides: `section.key=value`, the value in YAML.

    Raises:
        UserError: the file cannot be read, or a name or value is wrong; the sentence names the file and the line.
    """
    written = {} if path is None else read_sections(path)
    given = parse_overrides(overrides)
    preset = given.get("model", {}).get("preset")
    in_file = written.get("model", {})
    if preset not in (None, in_file.get("preset")) and set(in_file) >= set(field_types(ModelConfig)) - {"preset"}:
        raise UserError(f"model.preset={preset} would change nothing: {path} sets every other key of model itself")
    for section, values in given.items():
        written.setdefault(section, {}).update(values)
    return assemble(written)


def read_sections(path: str | Path) -> Written:
    """What a YAML file writes, checked for names and types.

    Raises:
        UserError: the file cannot be read, or a name or value is wrong.
    """
    written: Written = {}
    for section, found in parse_document(_read_text(Path(path)), str(path)).items():
        with _Place(f"{path}:{found.line}"):
            check_section(section)
            if (section, found.value) == ("parallel", "auto"):
                written[section] = {"auto": True}
                continue
            if found.value is not None and not isinstance(found.value, dict):
                raise UserError(f"{section}: expected a mapping of keys, got {spell(found.value)}")
        written[section] = {}
        for key, leaf in (found.value or {}).items():
            with _Place(f"{path}:{leaf.line}"):
                written[section][key] = check_value(section, key, leaf.value)
    return written


def config_to_yaml(config: Config) -> str:
    """The resolved configuration as a file that `load_config` reads back as the same configuration."""
    return to_yaml(config_to_dict(config))


class _Place:
    """Puts a file and line before the sentence of a `UserError` raised within."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            raise UserError(f"{self.place}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.glob("*.yaml")]
        raise UserError(f"{path}: there is no such file{did_you_mean(path.name, beside)}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text in UTF-8, so not a configuration") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
