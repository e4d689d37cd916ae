"""What a search leaves out, the mark of what was never measured, and what more hardware may not do."""

from jaxpar.config import Config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.planner.report import words
from jaxpar.planner.search.avoid import AVOIDABLE, NEVER_MEASURED, OPTIMIZER, never_measured, parse_avoided
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of
from tests.sentences import refused

CONFIG = model_of(data={"batch_size": 64})


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
    assert planned.file("h100:1x4").predicted["never_measured"] == ["zb-h1"]
    text = words.without_evidence([planned])
    assert text is not None and "zb-h1" in text and "--avoid zb-h1" in text


def test_names_stand_for_what_they_exclude():
    assert parse_avoided(["offload,ring"]) == {"activation_offload", OPTIMIZER, "ring"}
    assert parse_avoided(["unmeasured"]) == NEVER_MEASURED
    assert set(AVOIDABLE) > NEVER_MEASURED
    with refused("--avoid", "ulyses", "ulysses"):
        parse_avoided(["ulyses"])
