"""Ranks are placed on nodes so that slow pairs are not used, never worse than in the default order."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from jaxpar.config import UserError
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.placement.placement import Traffic, place, read_bandwidth, traffic_of
from jaxpar.planner.settings import plan_on
from tests.planner.spaces import model_of


def ring(nodes: int, size: float = 1e9) -> Traffic:
    return Traffic({(n, (n + 1) % nodes): size for n in range(nodes)}, {})


def uneven(nodes: int, seed: int) -> np.ndarray:
    return 1e9 * (1 + 19 * np.random.default_rng(seed).random((nodes, nodes)))


@pytest.mark.parametrize("seed", range(3))
def test_annealing_finds_the_best_order_of_six_nodes(seed: int):
    traffic, bandwidth = ring(6), uneven(6, seed)
    best = min(traffic.seconds(order, bandwidth) for order in permutations(range(6)))
    placed = place(traffic, bandwidth, seed=0, swaps=4000)
    assert placed.seconds == pytest.approx(best)
    assert sorted(placed.order) == list(range(6))
    assert traffic.seconds(placed.order, bandwidth) == placed.seconds


@pytest.mark.parametrize("seed", range(5))
def test_it_is_never_worse_than_the_default_order(seed: int):
    traffic, bandwidth = ring(12), uneven(12, seed)
    placed = place(traffic, bandwidth, seed=seed, swaps=50)
    assert placed.seconds <= placed.default_seconds == traffic.seconds(range(12), bandwidth)


def test_traffic_of_a_plan_is_that_of_its_axes():
    config = model_of(parallel={"pipe": 2, "fsdp": 4, "tensor": 2, "zero": 1, "microbatches": 2})
    config, plan = plan_on(config, parse_cluster("h100:4x4"))
    traffic = traffic_of(config, plan, 4)
    # A stage is two hosts: rings go from one to the other and back, and each sends to its own of the next stage.
    assert set(traffic.data) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert set(traffic.pipe) == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert len(set(traffic.data.values())) == len(set(traffic.pipe.values())) == 1


def test_a_measured_cluster_of_sixteen_nodes_gains_by_another_order():
    bandwidth = read_bandwidth(Path(__file__).parent / "data" / "nodes16.csv")
    assert bandwidth.shape == (16, 16)
    placed = place(ring(16), bandwidth, swaps=4000)
    assert placed.seconds < 0.97 * placed.default_seconds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,2\n3,x\n", ":2: expected MB/s"),
        ("1,2,3\n4,5,6\n", "as many columns as rows"),
        ("# nothing\n", "as many columns as rows"),
        ("1,0\n1,1\n", "above 0"),
    ],
)
def test_a_matrix_that_is_none_is_a_sentence(tmp_path: Path, text: str, sentence: str):
    file = tmp_path / "nodes.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_bandwidth(file)
