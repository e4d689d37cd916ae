"""Ranks are placed on nodes so that slow pairs are not used, never worse than in the default order."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from jaxpar.config import UserError
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.experts.messages import messages_of
from jaxpar.planner.placement.measured import Measured, measured
from jaxpar.planner.placement.placement import Traffic, place, read_bandwidth, traffic_of
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
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
    placed = place(traffic, bandwidth, swaps=4000)
    assert placed.seconds == pytest.approx(best)
    assert sorted(placed.order) == list(range(6))
    assert traffic.seconds(placed.order, bandwidth) == placed.seconds
    hasty = place(ring(12), uneven(12, seed), swaps=50)
    assert hasty.seconds <= hasty.default_seconds == ring(12).seconds(range(12), uneven(12, seed))


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


def test_tokens_go_to_all_hosts_that_share_their_experts():
    experts = ExpertsConfig(count=8, per_token=2, width=512)
    parallel = {"fsdp": 2, "expert": 8, "experts": {"exchange": "all_to_all", "capacity": 1.0}}
    config, plan = plan_on(model_of(model={"experts": experts}, parallel=parallel), parse_cluster("h100:4x4"))
    found = traffic_of(config, plan, 4).exchange
    assert set(found) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    # Of the rows of one way a rank sends an eighth to each, four times a layer; both hosts have four ranks.
    tokens = 2048 * config.data.batch_size // 16
    rows = messages_of("all_to_all", experts, 1.0, 8, 1)[0].rows
    assert found[0, 1] == pytest.approx(16 * 4 * config.model.layers * rows * tokens * 1024 * 2 / 8)
    # Two pairs of close hosts, in another order than their numbers.
    bandwidth = np.full((4, 4), 1e9)
    for a, b in ((0, 2), (2, 0), (1, 3), (3, 1)):
        bandwidth[a, b] = 1e10
    exchange = Traffic({}, {}, exchange=found)
    order = place(exchange, bandwidth).order
    assert exchange.seconds(order, bandwidth) == pytest.approx(found[0, 1] / 1e10)


def test_chunks_in_a_loop_go_back_to_the_first_rank():
    config = model_of(parallel={"pipe": 4, "microbatches": 4, "schedule": "interleaved", "virtual_stages": 2})
    config, plan = plan_on(config, parse_cluster("h100:4x1"))
    pipe = traffic_of(config, plan, 1).pipe
    assert set(pipe) == {(a, b) for a in range(4) for b in range(4) if (a - b) % 4 in (1, 3)}
    # Two chunks a rank: the middle edges carry both, the last one what goes from the first chunks to the second.
    assert pipe[3, 0] == pipe[0, 3] == pipe[0, 1] / 2


def test_tensor_ranks_of_several_nodes_send_each_other_activations():
    config = model_of(parallel={"tensor": 8})
    config, plan = plan_on(config, parse_cluster("h100:2x4"))
    traffic = traffic_of(config, plan, 4)
    part = 16 * 2048 // 8 * 1024 * 2
    assert traffic.tensor == {(0, 1): 8 * 10 * 7 * part, (1, 0): 8 * 10 * 7 * part}
    assert not traffic_of(config, plan, 8).tensor


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
