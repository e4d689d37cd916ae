"""A configuration drawn around a golden's can be read, differs from it, and is the same with the same seed."""

import json

import numpy as np
import pytest

from jaxpar.interop.config_json import differences, model_of
from jaxpar.interop.mapping.keys import HFConfig
from tests.goldens.check import accepted
from tests.goldens.configurations import drawn
from tests.goldens.loading import FOLDER, NAMES


@pytest.mark.matrix(quick=("deepseek_v3", "gemma3"), ci=3)
@pytest.mark.parametrize("name", NAMES)
def test_drawn_configurations(name: str):
    keys = json.loads((FOLDER / name / "config.json").read_text())
    golden = model_of(HFConfig("config.json", keys))[1]
    for seed in range(2):
        found, again = (drawn(keys, np.random.default_rng(seed), accepted) for _ in range(2))
        assert found == again and differences(model_of(HFConfig("config.json", found))[1], golden) != []
