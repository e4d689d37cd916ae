"""`config.json` of releases: read as presets, with the number of parameters stated, and written from presets."""

import json
from typing import Any

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.interop.config_json import config_of, differences, family_for, model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.multimodal import text_part
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.validate import validate
from tests.config.test_presets import PUBLISHED, config_with
from tests.goldens.loading import FOLDER

RELEASED: dict[str, dict[str, Any]] = json.loads((FOLDER / "published.json").read_text())
"""`config.json` of releases by their repositories, with all keys, and their numbers of parameters; `source` where both
are of transformers' class, whose documentation names the release."""
CONFIGS = {preset: known["config"] for preset, known in PUBLISHED.items() if "config" in known}
"""`config.json` of presets, in the spelling of transformers 4, or the repository of `RELEASED` that has it."""


@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_json_of_a_release_is_the_preset(name: str):
    config = CONFIGS[name] if isinstance(CONFIGS[name], dict) else RELEASED[CONFIGS[name]]["config"]
    assert differences(model_of(HFConfig("config.json", config))[1], PRESETS[name]) == []


@pytest.mark.parametrize("name", RELEASED)
def test_a_release_is_read_and_has_its_parameters(name: str):
    """Without the images of those that take some; a number is null where no page states it exactly."""
    classes = {family.model_type: family.architecture for family in FAMILIES.values()}
    _, model = model_of(text_part(HFConfig("config.json", RELEASED[name]["config"]), classes))
    assert RELEASED[name]["parameters"] in (None, parameter_count(model, padded=False))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_goes_to_config_json_and_back(name: str):
    family = family_for(PRESETS[name])
    written = json.loads(json.dumps(config_of(family, PRESETS[name], {}, length=4096)))
    back, model = model_of(HFConfig("config.json", written))
    assert (back, differences(model, PRESETS[name])) == (family, [])
    validate(config_with(model))
