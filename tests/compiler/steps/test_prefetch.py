"""The prefetch of the layer loop, seen in the program for eight H100s: llama3-8b with 8k tokens on each GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxpar.config import load_config
from tests.compiler.inspected import inspected

LLAMA = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"


@pytest.mark.long
def test_gathers_of_weights_hide_behind_the_layers():
    _, report = inspected(load_config(LLAMA), "h100:1x8")
    gathers = [row for row in report.collectives if row.collective == "gather_weight"]
    needed, exposed = sum(row.seconds for row in gathers), sum(row.exposed_s for row in gathers)
    assert needed > 0.1
    assert exposed < 0.05 * needed
    assert report.fits
