"""What the shape of a layer, and how a row is split, cost."""

from dataclasses import replace

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.model import step_time

MODEL = replace(PRESETS["llama3-8b"], layers=8, vocab=32000)
HOST = parse_cluster("h100:1x8")


@pytest.mark.parametrize(("width", "slower"), [(14336 + 64, 1.02), (14336 + 8, 1.1), (14336 + 1, 3.0)])
def test_widths_that_are_no_multiple_of_a_tile_cost_more(width: int, slower: float):
    """One column more than a multiple of 64 makes matmuls a third as fast; 8 more, a twentieth slower."""
    matmuls = lambda mlp: step_time(replace(MODEL, mlp=mlp), 8192, 8, Layout(fsdp=8, zero=3), HOST).breakdown["matmuls"]
    assert 1.0 < matmuls(width) / matmuls(14336) <= slower
    assert slower < 1.5 or matmuls(width) > 2 * matmuls(14336)
