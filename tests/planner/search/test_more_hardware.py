"""More bandwidth, memory or hosts never make the best plan slower: cases drawn by the commit.

`--draw SEED` repeats a draw.
"""

import random
from dataclasses import dataclass, replace
from math import inf

import pytest

from benchmarks.planner.compiled import CONFIGS
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster, Pods, parse_cluster
from jaxpar.hardware.xla_flags import SLOW_NETWORK
from jaxpar.planner.planning import best_with_idle_hosts, planned_config
from jaxpar.planner.search.candidate import Candidate
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of
from tests.selection import commits_hash

LINKS = ("node", "network", "host", "hbm")
CASES = 3
"""Of each draw; each takes a second or two of a processor."""
SAME = 1 + 1e-9
"""Sums of the same seconds in another order."""


def with_links(
    cluster: Cluster, node: float = 1.0, network: float = 1.0, host: float = 1.0, hbm: float = 1.0
) -> Cluster:
    """The cluster with so many times the bandwidth."""
    group = cluster.groups[0]
    faster = lambda link, factor: replace(link, bandwidth=factor * link.bandwidth)
    gpu = replace(group.gpu, hbm_bandwidth=hbm * group.gpu.hbm_bandwidth)
    own = replace(
        group, gpu=gpu, node=faster(group.node, node), network=faster(group.network, network),
        host=faster(group.host, host),
    )  # fmt: skip
    return replace(cluster, groups=(own,))


@dataclass(frozen=True)
class Case:
    """A model and a cluster, and how much of the hardware there is more."""

    config: Config
    cluster: Cluster
    factor: float
    memory: float
    """Bytes of a GPU, which may be too few for any layout."""

    def seconds(self, cluster: Cluster, memory: float | None = None) -> float:
        """Of the best plan; infinite where nothing fits."""
        try:
            limit = None if memory is None else int(memory)
            return Search(Space(self.config, cluster), limit=limit).best(1)[0].candidate.seconds
        except UserError:
            return inf

    def with_idle_hosts(self, hosts: int) -> float:
        """The same on so many hosts, some of which may be left idle."""
        group = replace(self.cluster.groups[0], hosts=hosts)
        search = Search(Space(self.config, replace(self.cluster, groups=(group,))))
        return best_with_idle_hosts(search, 1)[1][0].candidate.seconds


def case_of(seed: str) -> Case:
    """The case of a seed: networks from a tenth of the GPU's usual one, so that some become fast ones."""
    draw = random.Random(seed)
    heads = draw.choice((8, 16, 32))
    model = {
        "layers": draw.choice((4, 6, 8, 12)), "embed": heads * draw.choice((64, 128)), "heads": heads,
        "mlp": draw.choice((2048, 4096, 8192)), "vocab": draw.choice((1024, 8192, 32768)),
    }  # fmt: skip
    data = {"sequence_length": draw.choice((1024, 4096, 16384)), "batch_size": draw.choice((8, 16, 48, 64))}
    cluster = parse_cluster(
        f"{draw.choice(('a100-80', 'h100', 'h800', 'b200'))}:{draw.randint(1, 3)}x{draw.choice((2, 4))}"
    )
    cluster = with_links(cluster, network=draw.uniform(0.1, 1.0))
    return Case(model_of(model=model, data=data), cluster, draw.uniform(1.1, 6.0), draw.uniform(0.5, 8.0) * (1 << 30))


@pytest.fixture(params=range(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    seed = request.config.getoption("--draw") or commits_hash()
    return case_of(f"{seed} {request.param}")


def test_more_of_anything_never_makes_the_best_plan_slower(case: Case):
    alone = case.seconds(case.cluster)
    for link in LINKS:
        assert case.seconds(with_links(case.cluster, **{link: case.factor})) <= SAME * alone, (link, case)
    limits = (case.memory, case.factor * case.memory, case.factor**2 * case.memory)
    least, more, most = (case.seconds(case.cluster, limit) for limit in limits)
    assert most <= SAME * more and more <= SAME * least, case


def test_more_hosts_never_make_the_best_plan_slower(case: Case):
    hosts = case.cluster.hosts
    times = [case.with_idle_hosts(number) for number in (hosts, hosts + 1, 2 * hosts + 1)]
    assert times[1] <= SAME * times[0] and times[2] <= SAME * times[1], (times, case)


def test_a_network_that_becomes_a_fast_one_makes_no_layout_slower():
    """Other compiled programs count from `SLOW_NETWORK` on. The layout is the first of 175B with rows of 32k."""
    config = planned_config(load_config(CONFIGS / "gpt3_175b_32k.yaml", []))
    layout = Layout(fsdp=64, context=4, zero=3, remat="gemm_last", context_strategy="ulysses")
    cluster = parse_cluster("h100:32x8")
    edge = SLOW_NETWORK / cluster.link(True).bandwidth
    at = lambda share: Search(Space(config, with_links(cluster, network=share * edge))).timer
    slow, fast = at(0.996), at(1.004)
    copied = replace(layout, offload_fraction=0.5)
    for own in (layout, copied, replace(layout, fsdp=32, replica=2), replace(layout, fsdp=256, context=1)):
        assert fast.step(own).seconds < slow.step(own).seconds, own


EXPERTS = model_of(model={"experts": ExpertsConfig(count=16, per_token=4, width=1024)}, data={"batch_size": 16})


@pytest.mark.parametrize("level", ["node", "network"])
def test_more_bandwidth_never_makes_experts_slower(level: str):
    cluster, fixed = parse_cluster("h100:2x4"), {"pipe": "1", "tensor": "1", "context": "1"}
    plan = lambda factor: Search(Space(EXPERTS, with_links(cluster, **{level: factor}), fixed)).best(1)[0]
    times = [plan(factor).candidate.seconds for factor in (0.25, 1.0, 4.0)]
    assert times[0] * (1 + 1e-9) >= times[1] and times[1] * (1 + 1e-9) >= times[2]


def best_with(pods: Pods | None) -> Candidate:
    cluster = replace(parse_cluster("h800:4x4"), pods=pods)
    held = {"tensor": "1", "context": "1"}
    return Search(Space(model_of(data={"batch_size": 64}), cluster, held)).best(1)[0].candidate


def test_heavy_traffic_stays_inside_a_pod():
    """Weights go over the GPUs of a pod, and between pods pass activations of stages, or gradients of replicas, once a
    step and beside the backward."""
    open_network, alike = best_with(None), best_with(Pods(1, 1.0))
    assert alike == open_network
    assert open_network.layout.pipe == 1
    times = [open_network.seconds]
    for ratio in (3.0, 8.0):
        found = best_with(Pods(1, ratio))
        assert found.layout.fsdp == 4 and {found.layout.pipe, found.layout.replica} == {1, 4}
        times.append(found.seconds)
    assert times == sorted(times) and times[0] < times[-1]
