"""The sentence with which a configuration is refused."""

from __future__ import annotations

import pytest

from jaxpar.config import UserError, load_config
from jaxpar.layers.checks import validate


def refusal(*overrides: str) -> str:
    """What is wrong with the defaults under these overrides."""
    with pytest.raises(UserError) as caught:
        validate(load_config(None, overrides))
    return str(caught.value)
