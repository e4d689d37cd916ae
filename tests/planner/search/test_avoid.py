"""What a search leaves out, the mark of what was never measured, and what more hardware may not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.config import Config
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.planner.report import words
from jaxpar.planner.report.document import planned_file
from jaxpar.planner.search.avoid import AVOIDABLE, NEVER_MEASURED, OPTIMIZER, never_measured, parse_avoided
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of
from tests.sentences import refused

CONFIG = model_of(data={"batch_size": 64})


EXPERTS = model_of(model={"experts": ExpertsConfig(count=16, per_token=4, width=1024)}, data={"batch_size": 16})


def best(
    cluster: Cluster, avoided: frozenset[str] = frozenset(), limit: int | None = None, config: Config = CONFIG,
    **fixed: str,
) -> Planned:  # fmt: skip
    return Search(Space(config, cluster, fixed, avoided), limit=limit).best(1)[0]


def test_what_is_avoided_is_in_no_layout():
    cluster = parse_cluster("h100:1x4")
    search = Search(Space(CONFIG, cluster, {"pipe": "2"}, parse_avoided(["unmeasured"])))
    plans = search.best(5)
    assert {one.layout.schedule for one in search.evaluated} <= {"1f1b", "interleaved"}
    assert not any(never_measured(one.layout) for one in search.evaluated)
    assert words.without_evidence(plans) is None
    assert best(cluster, pipe="2").candidate.seconds <= plans[0].candidate.seconds


def test_a_layout_without_evidence_is_marked_on_the_screen_and_in_the_file():
    planned = best(parse_cluster("h100:1x4"), pipe="2", schedule="zb-h1", pipe_ends="last")
    assert planned_file(planned, "h100:1x4").predicted["never_measured"] == ["zb-h1"]
    text = words.without_evidence([planned])
    assert text is not None and "zb-h1" in text and "--avoid zb-h1" in text


def test_names_stand_for_what_they_exclude():
    assert parse_avoided(["offload,ring"]) == {"activation_offload", OPTIMIZER, "ring"}
    assert parse_avoided(["unmeasured"]) == NEVER_MEASURED
    assert set(AVOIDABLE) > NEVER_MEASURED
    with refused("--avoid", "ulyses", "ulysses"):
        parse_avoided(["ulyses"])


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


@pytest.mark.parametrize("level", ["node", "network", "host", "hbm"])
def test_more_bandwidth_never_makes_the_best_plan_slower(level: str):
    cluster = parse_cluster("h100:2x4")
    times = [best(with_links(cluster, **{level: factor})).candidate.seconds for factor in (0.25, 1.0, 2.0)]
    assert times[0] * (1 + 1e-9) >= times[1] and times[1] * (1 + 1e-9) >= times[2]


@pytest.mark.parametrize("level", ["node", "network"])
def test_more_bandwidth_never_makes_experts_slower(level: str):
    cluster, fixed = parse_cluster("h100:2x4"), {"pipe": "1", "tensor": "1", "context": "1"}
    plan = lambda factor: best(with_links(cluster, **{level: factor}), config=EXPERTS, **fixed)
    times = [plan(factor).candidate.seconds for factor in (0.25, 1.0, 4.0)]
    assert times[0] * (1 + 1e-9) >= times[1] and times[1] * (1 + 1e-9) >= times[2]


def test_more_memory_never_makes_the_best_plan_slower():
    cluster = parse_cluster("h100:1x4")
    times = [best(cluster, limit=limit << 30).candidate.seconds for limit in (2, 4, 80)]
    assert times == sorted(times, reverse=True)
