"""The search finds what timing every layout finds, and its bounds are below what they bound."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pytest

from jaxpar.config import UserError
from jaxpar.config.mappings.overlap import OverlapConfig
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.activation_planner import ActivationPlanner
from jaxpar.planner.search.candidate import Candidate
from jaxpar.planner.search.fixed import parse_fixed
from jaxpar.planner.search.nothing_fits import _planners
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Bare, Choice, Group, divisors, splits
from jaxpar.planner.settings import plan_on
from jaxpar.planner.stage_work import layout_of
from jaxpar.units import GIB, size
from tests.planner.spaces import choices, model_of, search_of
from tests.sentences import refused

FEW = {"model": {"activation": "gelu", "layers": 4}, "data": {"batch_size": 8}}
KINDS = {
    "kinds": {"local": {"window": 128, "mlp": 1024}, "global": {}}, "pattern": Pattern(("local",), suffix=("global",)),
}  # fmt: skip
EXPERTS = {"experts": ExpertsConfig(count=4, per_token=2, width=1024)}
ROUTED = {"kinds": {"dense": {"experts": None}, "routed": {}}, "pattern": Pattern(("routed",), prefix=("dense",))}
SPACES = {
    "room for all": search_of(model_of(**FEW), "h100:1x4", limit=60 * GIB),
    "tight": search_of(model_of(**FEW), "h100:1x4", limit=int(1.5 * GIB)),
    "tight, two kinds of layers": search_of(model_of(**FEW | {"model": FEW["model"] | KINDS}), "h100:1x4", limit=GIB),
    "tight, experts": search_of(model_of(**FEW | {"model": FEW["model"] | EXPERTS}), "h100:1x4", limit=int(1.5 * GIB)),
    "experts behind a dense layer": search_of(
        model_of(**FEW | {"model": FEW["model"] | EXPERTS | ROUTED}), "h100:2x2", limit=60 * GIB
    ),
    "sums over replicas after the backward": search_of(
        model_of(**FEW | {"parallel": {"overlap": {"replica_sums": "after"}}}), "h100:2x2", limit=60 * GIB
    ),
    "state over replicas": search_of(
        model_of(**FEW | {"parallel": {"overlap": {"shard_state_over_replicas": True}}}),
        "h100:2x2",
        limit=60 * GIB,
        replica=2,
    ),
    "codes, and layers without": search_of(
        model_of(**FEW, precision={"matmul": "fp8_current"}), "h100:2x2", limit=60 * GIB
    ),
    "tight, and nothing on the host": search_of(model_of(**FEW), "h100:1x4", limit=int(1.4 * GIB), offload="none"),
}


def everything(search: Search) -> list[Candidate]:
    """All layouts that fit, timed one by one, by time."""
    found = []
    for group in search.space.groups():
        for choice in choices(search.space, group):
            for kept in search.activations(group, choice).options():
                found.append(Candidate(kept.layout, search.timer.step(kept.layout), kept.memory))
    return sorted(found, key=lambda one: one.seconds)


@pytest.mark.parametrize("name", SPACES)
def test_best_first_finds_what_timing_every_layout_finds(name: str):
    search = SPACES[name]
    wanted = [one.seconds for one in everything(search)[:20]]
    assert wanted
    found = list(islice(search.by_time(), 20))
    assert [one.seconds for one in found] == pytest.approx(wanted, rel=1e-9)
    assert all(one.memory.device <= search.usable for one in found)


@pytest.mark.parametrize("name", ["tight", "tight, two kinds of layers", "tight, experts", "codes, and layers without"])
def test_no_bound_is_above_a_layout_under_it(name: str):
    search = SPACES[name]
    chosen = random.Random(0)
    groups = search.space.groups()
    for group in chosen.sample(groups, 25):
        bound = search.bounds.of_group(group)
        choice = chosen.choice(list(choices(search.space, group)))
        bare = Bare(choice.zero, choice.context_strategy, choice.shared_ends, choice.optimizer_offload)
        floor, layers = search.bounds.of_choice(group, bare)
        scheduled = search.bounds.of_schedule(group, choice, floor, layers)
        activations: ActivationPlanner = search.activations(group, choice)
        for layout in (activations.layout("none"), activations.layout("full"), activations.layout("gemm_last", 0.5)):
            seconds = search.timer.step(layout).seconds
            assert bound <= seconds * (1 + 1e-9)
            assert floor <= scheduled <= seconds * (1 + 1e-9)


def test_the_winner_is_a_layout_that_the_trainer_would_make_itself():
    search = search_of(model_of(), limit=int(2.5 * GIB))
    for planned in search.best(3):
        config, plan = plan_on(planned.config, search.cluster)
        assert plan == planned.plan
        assert plan.axes.devices == 8
        assert config.data.batch_size == plan.axes.data * plan.microbatches * plan.microbatch_rows


def test_state_over_replicas_is_planned_where_there_are_replicas():
    """With the memory that the trainer's own plan of it has, which is less than without."""
    (planned,) = SPACES["state over replicas"].best(1)
    config, plan = plan_on(planned.config, planned.cluster)
    assert plan.shard_state_over_replicas.name and plan == planned.plan
    without = replace(config, parallel=replace(config.parallel, overlap=OverlapConfig(shard_state_over_replicas=False)))
    _, whole = plan_on(without, planned.cluster)
    assert estimate_memory(config, plan).optimizer < 0.51 * estimate_memory(without, whole).optimizer
    kept = planned_config(model_of(parallel={"overlap": {"shard_state_over_replicas": True}}))
    assert kept.parallel.overlap.shard_state_over_replicas
    alone = search_of(kept, "h100:1x2", limit=60 * GIB, replica=1).best(1)[0]
    assert not alone.config.parallel.overlap.shard_state_over_replicas


def test_a_plan_is_timed_with_the_state_that_its_replicas_share():
    """The trainer's choice, where the planner takes `auto` as false."""
    search = search_of(planned_config(model_of(data={"batch_size": 64})), "h100:2x4")
    for asked, shared in (("auto", True), (False, False)):
        parallel = {"replica": 2, "fsdp": 4, "microbatches": 2, "overlap": {"shard_state_over_replicas": asked}}
        config, plan = plan_on(model_of(data={"batch_size": 64}, parallel=parallel), search.cluster)
        assert plan.shard_state_over_replicas.name == layout_of(config, plan, search).shard_state == shared


def test_less_memory_is_never_faster():
    seconds = [search_of(model_of(), limit=int(gib * GIB)).best(1)[0].candidate.seconds for gib in (40, 3, 2)]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_a_rule_that_multiplies_takes_longer_than_one_that_does_not():
    adamw, muon = (
        search_of(model_of(optimizer={"name": name})).best(1)[0].candidate.time for name in ("adamw", "muon")
    )
    assert muon.breakdown["optimizer"] > 2 * adamw.breakdown["optimizer"]


def test_what_is_held_fast_stays():
    planned = search_of(model_of(), tensor=2, pipe=2, schedule="1f1b", zero=1).best(1)[0]
    assert (planned.plan.axes.tensor, planned.plan.axes.pipe, planned.plan.schedule) == (2, 2, "1f1b")


def test_a_model_that_fits_nowhere_is_reported_with_what_it_needs():
    config = model_of(model={"layers": 64, "embed": 16384, "heads": 64, "kv_heads": 64, "mlp": 65536})
    with refused("h100:1x8", " GiB of a GPU", "of its 79.1 GiB", "would fit", " GPUs"):
        search_of(config).best(1)


def test_an_empty_space_names_what_emptied_it():
    with refused("no layout of 8 GPUs", "but for --fix tensor=5"):
        search_of(model_of(), tensor=5).best(1)
    with refused("17 would be allowed but for --fix pipe=4", "6 would be allowed but for a microbatch"):
        search_of(model_of(data={"batch_size": 2}), pipe=4, schedule="1f1b").best(1)
    with refused("4 would be allowed but for --fix pipe=2 and data.batch_size (1)", "but for other rules"):
        search_of(model_of(data={"batch_size": 1}), pipe=2, tensor=1, context=1).best(1)


def test_every_layout_that_a_rule_alone_stands_against_is_allowed_without_it():
    reported = search_of(model_of(), tensor=5, schedule="1f1b", microbatch=2).space.nearest()
    allowed = search_of(model_of(), schedule="1f1b", microbatch=2).space.groups()
    assert reported == {frozenset({"--fix tensor=5"}): len(allowed)}


def test_the_least_memory_is_just_enough():
    """One byte less, and the sentence states that number; at as many GPUs as it names, there is a layout."""
    config = model_of(**FEW)
    with refused("h100:1x1", "of a GPU, and 102.4 MiB", "would fit", " GPUs"):
        search_of(config, "h100:1x1", limit=GIB // 10).best(1)
    planners = _planners(search_of(config, "h100:1x1", limit=GIB // 10))
    least = min(smallest for activations in planners for smallest in activations.smallest())
    found = search_of(config, "h100:1x1", limit=least).best(1)[0]
    assert found.candidate.memory.device <= least
    with refused("h100:1x1", f"at least {size(least)} of a GPU", " GPUs") as message:
        search_of(config, "h100:1x1", limit=least - 1).best(1)
    number = int(str(message.value).rsplit(" ", 2)[1])
    assert search_of(config, f"h100:{number}x1", limit=least - 1).best(1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("tensr=2", "did you mean tensor"),
        ("tensor=two", "expected a number above 0"),
        ("zero=4", "expected a number, 0 to 3"),
        ("schedule=1f2b", "did you mean 1f1b"),
        ("context_strategy=rings", "did you mean ring"),
        ("pipe_ends=share", "pipe_ends: expected last or shared, got .share.; did you mean shared"),
        ("pipe_end=shared", "did you mean pipe_ends"),
    ],
)
def test_what_cannot_be_held_fast_is_a_sentence(given: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        parse_fixed([given])


def test_every_split_is_visited_once():
    found = list(splits(12, 3))
    assert len(found) == len(set(found)) == 18
    assert all(a * b * c == 12 for a, b, c in found)


def test_a_stage_of_a_mixed_cluster_is_of_one_kind_of_host(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text("gpus_per_host: 4\ngroups: {old: {gpu: a100-80, hosts: 1}, new: {gpu: h100, hosts: 1}}\n")
    groups = search_of(model_of(), str(file)).space.groups()
    assert groups
    assert all((group.pipe == 1 or group.pipe % 2 == 0) and group.tensor <= 4 for group in groups)
    with refused("no layout of 8 GPUs", "tensor ranks within one host"):
        search_of(model_of(), str(file), tensor=8).best(1)


def test_choices_of_a_group_cover_schedules_and_stages():
    space = search_of(model_of()).space
    group = Group(pipe=2, replica=1, fsdp=2, context=1, tensor=2, microbatch=1)
    found = list(choices(space, group))
    assert Choice("interleaved", 2, 1, "allgather", False) in found
    assert {choice.zero for choice in found} == {1, 3}
    assert len({choice.schedule for choice in found}) > 6


@pytest.mark.parametrize(("experts", "fixed"), [(False, {}), (True, {}), (True, {"expert": 2}), (False, {"fsdp": 2})])
def test_groups_are_the_splits_that_break_no_rule(experts: bool, fixed: dict[str, int]):
    space = search_of(
        model_of(**FEW | {"model": FEW["model"] | (EXPERTS if experts else {})}), "h100:2x3", **fixed
    ).space
    found = []
    for sizes in splits(6, len(space.axes)):
        named = dict(zip(space.axes, sizes, strict=True))
        if not any(space._broken(named)):
            rows = space.config.data.batch_size // (named["replica"] * named["fsdp"] * named.get("expert", 1))
            groups = [Group(**named, microbatch=n) for n in divisors(rows)]
            found += [one for one in groups if not any(space._microbatch_broken(one, rows // one.microbatch))]
    assert space.groups() == found and found
