"""The search finds what timing every layout finds; what it may leave out, and what it says where nothing is left."""

from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pytest

from jaxpar.config import UserError
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import LayerRun
from jaxpar.config.schema.model import Pattern
from jaxpar.cost.layout import Layout
from jaxpar.layers.declared import activation_names
from jaxpar.memory.host_points import host_points
from jaxpar.memory.pareto import layer_frontier
from jaxpar.memory.remat import joined
from jaxpar.pages.units import GIB, size
from jaxpar.planner.planning import planned_config
from jaxpar.planner.report import words
from jaxpar.planner.report.text import host_words
from jaxpar.planner.search.asked import AVOIDABLE, NEVER_MEASURED, OPTIMIZER, never_measured, parse_avoided, parse_fixed
from jaxpar.planner.search.search import Search
from jaxpar.planner.settings import as_remat, of_all_names, plan_on
from jaxpar.planner.stage_work import layout_of
from tests.planner.spaces import choices, everything, model_of, search_of
from tests.sentences import refused

FEW = {"model": {"activation": "gelu", "layers": 4}, "data": {"batch_size": 8}}
DEEP = model_of(model={"layers": 32}, data={"batch_size": 8})
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
    "state over replicas": search_of(
        model_of(**FEW | {"parallel": {"overlap": {"shard_state_over_replicas": True}}}),
        "h100:2x2",
        limit=60 * GIB,
        replica=2,
    ),
    "codes, and layers without": search_of(
        model_of(**FEW, precision={"matmul": "fp8_current"}), "h100:2x2", limit=60 * GIB
    ),
    "tight, and activations on the host": search_of(DEEP, "h100:1x2", limit=int(3.2 * GIB), microbatch=4),
    "tight, and nothing on the host": search_of(model_of(**FEW), "h100:1x4", limit=int(1.4 * GIB), offload="none"),
}


@pytest.mark.parametrize("name", SPACES)
def test_best_first_finds_what_timing_every_layout_finds(name: str):
    search = SPACES[name]
    wanted = [one.seconds for one in everything(search)[:20]]
    assert wanted
    found = list(islice(search.by_time(), 20))
    assert [one.seconds for one in found] == pytest.approx(wanted, rel=1e-9)
    assert all(one.memory.device <= search.usable for one in found)


@pytest.mark.parametrize("gigabytes", [6.4, 6.0, 5.8])
def test_maps_with_activations_on_the_host_fit_where_nothing_else_does(gigabytes: float):
    """Beside the inputs of layers on the host a layer has its own again in its backward."""
    search = search_of(DEEP, "h100:1x1", limit=int(gigabytes * GIB), microbatch=8)
    first = search.best(1)[0].candidate
    assert first.layout.offloads_names and first.memory.device <= search.usable


def test_a_map_is_found_wherever_one_fits():
    """A map fits if one of these does: one choice for all layers, or the least one for all but one or half of them."""
    search = search_of(DEEP, "h100:1x1", microbatch=8)
    (group,) = search.space.groups()
    found = 0
    for choice in choices(search.space, group):
        planner = search.activations(group, choice)
        (costs,) = planner.costs.values()
        points = [point.named(costs) for point in (*layer_frontier(costs, offload=False), *host_points(costs))]
        layers, names = len(planner.kinds), activation_names(search.space.config.model)
        every = set[int]()
        least = min(host_points(costs), key=lambda point: (point.device_bytes, point.host_bytes)).named(costs)
        for one, other, number in [(one, least, n) for one in points for n in (1, layers // 2, layers)]:
            runs = [LayerRun(n, of_all_names(own, names)) for n, own in ((number, one), (layers - number, other))]
            every.add(planner.memory(as_remat(joined(runs), list(costs.sizes))).device)
        for limit in sorted(every)[::8]:
            own = replace(planner, limit=limit)
            assert any(not isinstance(kept.layout.remat, str) for kept in own.options()), (choice, limit)
            found += 1
    assert found > 20


def test_the_winner_is_a_layout_that_the_trainer_would_make_itself():
    search = search_of(model_of(), limit=int(2.5 * GIB))
    for planned in search.best(3):
        config, plan = plan_on(planned.config, search.cluster)
        assert plan == planned.plan
        assert plan.axes.devices == 8
        assert config.data.batch_size == plan.axes.data * plan.microbatches * plan.microbatch_rows


def test_a_plan_is_timed_with_the_state_that_its_replicas_share():
    """The trainer's choice, where the planner takes `auto` as false."""
    search = search_of(planned_config(model_of(data={"batch_size": 64})), "h100:2x4")
    for asked, shared in (("auto", True), (False, False)):
        parallel = {"replica": 2, "fsdp": 4, "microbatches": 2, "overlap": {"shard_state_over_replicas": asked}}
        config, plan = plan_on(model_of(data={"batch_size": 64}, parallel=parallel), search.cluster)
        assert plan.shard_state_over_replicas.name == layout_of(config, plan, search).shard_state == shared


def test_what_is_held_fast_stays():
    planned = search_of(model_of(), tensor=2, pipe=2, schedule="1f1b", zero=1).best(1)[0]
    assert (planned.plan.axes.tensor, planned.plan.axes.pipe, planned.plan.schedule) == (2, 2, "1f1b")


def test_an_empty_space_names_what_emptied_it():
    with refused("no layout of 8 GPUs", "but for --fix tensor=5"):
        search_of(model_of(), tensor=5).best(1)
    with refused("17 would be allowed but for --fix pipe=4", "6 would be allowed but for a microbatch"):
        search_of(model_of(data={"batch_size": 2}), pipe=4, schedule="1f1b").best(1)
    with refused("4 would be allowed but for --fix pipe=2 and data.batch_size (1)", "but for other rules"):
        search_of(model_of(data={"batch_size": 1}), pipe=2, tensor=1, context=1).best(1)


def test_the_least_memory_is_just_enough():
    """One byte less, and the sentence states that number."""
    config = model_of(**FEW)
    search = search_of(config, "h100:1x1", limit=GIB // 10)
    layouts = ((group, choice) for group in search.space.groups() for choice in choices(search.space, group))
    least = min(smallest for one in layouts for smallest in search.activations(*one).smallest())
    found = search_of(config, "h100:1x1", limit=least).best(1)[0]
    assert found.candidate.memory.device <= least
    with refused("h100:1x1", f"at least {size(least)} of a GPU", " GPUs"):
        search_of(config, "h100:1x1", limit=least - 1).best(1)


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
        ("stage_layers=2,2,2,3", "parallel.stage_layers"),
    ],
)
def test_what_cannot_be_held_fast_is_a_sentence(given: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        parse_fixed([given])


def test_a_stage_of_a_mixed_cluster_is_of_one_kind_of_host(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text("gpus_per_host: 4\ngroups: {old: {gpu: a100-80, hosts: 1}, new: {gpu: h100, hosts: 1}}\n")
    groups = search_of(model_of(), str(file)).space.groups()
    assert groups
    assert all((group.pipe == 1 or group.pipe % 2 == 0) and group.tensor <= 4 for group in groups)
    with refused("no layout of 8 GPUs", "tensor ranks within one host"):
        search_of(model_of(), str(file), tensor=8).best(1)


@pytest.mark.parametrize(("layers", "virtual"), [(126, {2, 4}), (128, {2, 4, 8}), (96, {2, 3, 6}), (100, set())])
def test_virtual_stages_may_add_a_twentieth_of_the_layers(layers: int, virtual: set[int]):
    """Llama 3 405B has 126 layers on 16 ranks: 32 or 64 chunks add two."""
    space = search_of(model_of(model={"layers": layers}, data={"batch_size": 64}), "h100:2x8").space
    found = {stages for name, stages in space.schedules(16, 32) if name == "interleaved"}
    assert found == virtual


@pytest.mark.parametrize("vocab", [8192, 524288])
@pytest.mark.parametrize("name", ["1f1b", "zb-uniform", "gpipe"])
def test_no_lengths_are_faster_than_equal_ones_in_uniform_ticks(name: str, vocab: int):
    """They are not searched on GPUs of one kind, for they are no faster there: not even where the loss takes longer
    than a stage."""
    timer = search_of(model_of(model={"layers": 12, "vocab": vocab}), "h100:1x4").timer
    seconds = lambda *lengths: timer.step(Layout(pipe=4, schedule=name, stage_layers=lengths or None)).seconds
    every = {own: seconds(*own) for own in product(range(1, 6), repeat=4) if sum(own) == 12}
    assert min(every.values()) == pytest.approx(seconds()) == every[3, 3, 3, 3]
    assert every[4, 3, 3, 2] > (1.05 if vocab == 8192 else 1.0) * seconds()


def test_a_plan_with_uneven_virtual_stages_is_one_that_the_trainer_makes():
    config = model_of(model={"layers": 31}, data={"batch_size": 32})
    fixed = {"pipe": 4, "schedule": "interleaved", "virtual_stages": 2, "microbatch": 1}
    plan = search_of(config, "h100:1x4", **fixed).best(1)[0].plan
    assert plan.virtual_stages == 2 and sorted(plan.stage_layers) == [3, *[4] * 7]


NEEDS_HOST = int(1.6 * GIB)
"""Bytes of a device into which the model goes with its optimizer's state on the host, 1.3 GiB, and not without."""
GELU = {"activation": "gelu"}


def with_host_memory(folder: Path, host_memory: float) -> str:
    file = folder / "mine.yaml"
    file.write_text(f"gpu: h100\nhosts: 1\ngpus_per_host: 1\nhost_memory: {host_memory}\n")
    return str(file)


def test_a_layout_that_needs_the_host_states_how_much_and_of_what(tmp_path: Path):
    best = search_of(model_of(model=GELU), with_host_memory(tmp_path, 1.5), NEEDS_HOST).best(1)[0]
    assert best.candidate.layout.optimizer_offload
    assert all(part in host_words(best) for part in ("1.3 GiB", "1.5 GiB", "host_memory"))
    asked = model_of(model=GELU, memory={"host_limit": 2 * GIB})
    best = search_of(asked, with_host_memory(tmp_path, 1.0), NEEDS_HOST).best(1)[0]
    assert all(part in host_words(best) for part in ("1.3 GiB", "2.0 GiB", "memory.host_limit"))


def test_hosts_that_are_too_small_are_named_with_what_is_needed(tmp_path: Path):
    """Besides the state that stays on the GPU, in what the other parts of a step leave of it."""
    with refused("at least 1.3 GiB", "512.0 MiB", "memory.host_limit", "fit 2 GPUs"):
        search_of(model_of(model=GELU), with_host_memory(tmp_path, 0.5), NEEDS_HOST).best(1)


def test_what_is_avoided_is_in_no_layout():
    every = search_of(model_of(data={"batch_size": 64}), "h100:1x4", pipe=2)
    search = Search(replace(every.space, avoided=parse_avoided(["unmeasured"])))
    plans = search.best(5)
    assert {one.layout.schedule for one in search.evaluated} <= {"1f1b", "interleaved"}
    assert not any(never_measured(one.layout) for one in search.evaluated)
    assert words.without_evidence(plans) is None
    assert every.best(1)[0].candidate.seconds <= plans[0].candidate.seconds


def test_a_layout_without_evidence_is_marked_on_the_screen_and_in_the_file():
    config = model_of(data={"batch_size": 64})
    planned = search_of(config, "h100:1x4", pipe=2, schedule="zb-h1", pipe_ends="last").best(1)[0]
    assert planned.file("h100:1x4").predicted["never_measured"] == ["zb-h1"]
    text = words.without_evidence([planned])
    assert text is not None and "zb-h1" in text and "--avoid zb-h1" in text


def test_names_stand_for_what_they_exclude():
    assert parse_avoided(["offload,ring"]) == {"activation_offload", OPTIMIZER, "ring"}
    assert parse_avoided(["unmeasured"]) == NEVER_MEASURED
    assert set(AVOIDABLE) > NEVER_MEASURED
    with refused("--avoid", "ulyses", "ulysses"):
        parse_avoided(["ulyses"])
