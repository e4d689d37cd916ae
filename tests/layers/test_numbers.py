"""What is derived from the declarations of a layer's parts is what was described by hand before, number for number."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.layers.numbers_of_presets import MODEL_NAMES, numbers_of

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "numbers.json").read_text())


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_counts_bytes_costs_and_times_are_those_that_were_written_by_hand(name: str):
    found, recorded = json.loads(json.dumps(numbers_of(name))), RECORDED[name]
    assert found.keys() == recorded.keys()
    for what in recorded:
        assert found[what] == recorded[what], what
