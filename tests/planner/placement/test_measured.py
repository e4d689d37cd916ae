"""Where bandwidths between nodes were measured, layouts are placed, timed again, and ranked by that."""

from pathlib import Path

import numpy as np
import pytest

from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.placement.measured import Measured, measured
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of

FAST, SLOW = 20_000, 2_000
CONFIG = model_of(model={"activation": "gelu", "layers": 4}, data={"batch_size": 8})


def measured_on(folder: Path, megabytes: np.ndarray, text: str = "gpu: h100\nhosts: 4\ngpus_per_host: 1\n") -> Measured:
    np.savetxt(folder / "nodes.csv", megabytes, delimiter=",")
    (folder / "cluster.yaml").write_text(text + "bandwidth: nodes.csv\n")
    found = measured(parse_cluster(str(folder / "cluster.yaml")), None)
    assert found is not None
    return found


def one_slow_link(a: int, b: int) -> np.ndarray:
    matrix = np.full((4, 4), float(FAST))
    matrix[a, b] = matrix[b, a] = SLOW
    return matrix


def test_nodes_that_are_alike_take_what_the_search_states(tmp_path: Path):
    """In rings of two nodes: what rings of more lose with their number, bandwidths of pairs do not show."""
    nodes = measured_on(tmp_path, np.full((4, 4), float(FAST)))
    search = Search(Space(CONFIG, nodes.cluster, {"context": "1", "pipe": "2"}))
    for planned in search.best(4):
        placed = nodes.placed(planned, search.timer)
        assert placed.candidate.seconds == pytest.approx(planned.candidate.seconds, rel=1e-9)
        assert placed.order == (0, 1, 2, 3)


def test_the_ranking_is_that_of_the_placed_steps(tmp_path: Path):
    """Two pairs of nodes with little between them: a stage in each pair is best, and a search does not see it."""
    pairs = np.full((4, 4), float(SLOW))
    pairs[0, 2] = pairs[2, 0] = pairs[1, 3] = pairs[3, 1] = FAST
    nodes = measured_on(tmp_path, pairs)
    held = {"context": "1", "tensor": "1", "schedule": "1f1b", "microbatch": "1"}
    search = Search(Space(CONFIG, nodes.cluster, held))
    plans = search.best(3)
    assert [planned.plan.axes.pipe for planned in plans] == [4, 2, 1]
    ranked = nodes.ranked(plans, search.timer)
    assert [planned.plan.axes.pipe for planned in ranked] == [2, 4, 1]
    assert ranked[0].order in ((0, 2, 1, 3), (0, 2, 3, 1), (2, 0, 1, 3), (2, 0, 3, 1), (1, 3, 0, 2), (1, 3, 2, 0),
                               (3, 1, 0, 2), (3, 1, 2, 0))  # fmt: skip
    assert all(planned.candidate.seconds <= planned.default_seconds for planned in ranked)
    assert "3 layouts placed" in nodes.words(ranked[0], 3)[0]


def test_hosts_of_a_group_stay_in_it(tmp_path: Path):
    text = "gpus_per_host: 1\ngroups: {a: {gpu: h100, hosts: 2}, b: {gpu: a100-80, hosts: 2}}\n"
    nodes = measured_on(tmp_path, one_slow_link(0, 1) + np.arange(16).reshape(4, 4), text)
    search = Search(Space(CONFIG, nodes.cluster, {"pipe": "2"}))
    placed = nodes.placed(search.best(1)[0], search.timer)
    assert placed.order is not None and {*placed.order[:2]} == {0, 1}
    assert placed.candidate.seconds <= placed.default_seconds
