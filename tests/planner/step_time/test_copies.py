"""Copies of activations to the host's memory cost what the link takes, beside compute, as programs have them."""

from dataclasses import replace

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.cost.layer_case import LayerCase, layer_case
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.planner.layout import Layout, Remat
from jaxpar.planner.step_time.model import StepTime, step_time

HOST = parse_cluster("h100:1x8")
MODEL = replace(PRESETS["llama3-8b"], layers=8, vocab=32000)
CASE: LayerCase = layer_case(MODEL, 8192, 1, 1, 1, "allgather", "bfloat16")
SIZES = activation_bytes(CASE.shape)


def remat(*offloaded: str, layers: int = 8) -> Remat:
    """All is kept, of so many layers these activations on the host."""
    own = tuple((name, "offload" if name in offloaded else "save") for name in SIZES)
    rest = tuple((name, "save") for name in SIZES)
    return ((layers, own), (8 - layers, rest)) if layers < 8 else ((8, own),)


def step(treated: Remat, cluster: Cluster = HOST, share: float = 0.0) -> StepTime:
    layout = Layout(fsdp=8, zero=3, remat=treated, offload_fraction=share)
    return step_time(MODEL, 8192, 8, layout, cluster)


def waited(treated: Remat, cluster: Cluster = HOST, share: float = 0.0) -> float:
    return step(treated, cluster, share).breakdown["offload"]


def test_activations_that_a_map_offloads_are_copied_as_those_of_a_share():
    whole = remat(*SIZES)
    assert waited(remat()) == 0 < waited(whole)
    assert waited(whole) == pytest.approx(waited(remat(), share=1.0))
    assert waited(remat("query")) == pytest.approx(waited(remat(), share=SIZES["query"] / sum(SIZES.values())))
    assert waited(remat("query", layers=4)) == pytest.approx(waited(remat("query")) / 2)
