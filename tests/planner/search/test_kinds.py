"""Models of several kinds of layers: each is timed by itself, and what pads a chunk counts where it runs."""

from dataclasses import replace

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.config.schema.model import ModelConfig, Pattern
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.planner.step_time.model import Steps, step_time
from jaxpar.planner.step_time.step import Step

CLUSTER = parse_cluster("h100:1x8")
ALIKE = replace(PRESETS["llama3-8b"], layers=8, vocab=32000)
KINDS = {"local": {"window": 512, "mlp": 4096}, "global": {}}
UNLIKE = replace(ALIKE, kinds=KINDS, pattern=Pattern(("local", "local", "global"), suffix=("local", "local")))
"""Of two stages both have three local layers and a global one, so that a fifth slot pads each."""
ONE = Layout(fsdp=8, zero=1)
TWO = Layout(pipe=2, fsdp=4, zero=1, schedule="1f1b")


def of_kind(name: str) -> ModelConfig:
    """A model of such layers alone."""
    return replace(ALIKE, **KINDS[name])  # pyright: ignore[reportArgumentType]


def parts(model: ModelConfig, layout: Layout) -> Step:
    return Steps(model, 8192, 64, CLUSTER).step(layout)


@pytest.mark.parametrize("layout", [ONE, replace(ONE, zero=3, remat="full"), TWO], ids=["one", "zero3", "two"])
def test_kinds_that_do_not_differ_take_as_long_as_layers_that_are_alike(layout: Layout):
    named = replace(ALIKE, kinds={"a": {}, "b": {}}, pattern=Pattern(("a", "b")))
    steps = [step_time(model, 8192, 64, layout, CLUSTER) for model in (ALIKE, named)]
    assert steps[1].seconds == pytest.approx(steps[0].seconds, rel=1e-12)
    assert steps[1].breakdown == pytest.approx(steps[0].breakdown, rel=1e-9)


def test_a_layer_attends_to_the_window_of_its_kind():
    attention = lambda model: step_time(model, 8192, 64, ONE, CLUSTER).breakdown["attention"]
    own, local, whole = (attention(model) for model in (UNLIKE, of_kind("local"), of_kind("global")))
    assert local < 0.2 * whole
    assert own == pytest.approx((6 * local + 2 * whole) / 8)


@pytest.mark.parametrize(
    ("layout", "padding"),
    [(TWO, 0), (replace(TWO, fsdp=2, context=2, context_strategy="ring"), 1)],
    ids=["left out", "permuting"],
)
def test_a_slot_that_pads_a_chunk_takes_time_where_it_runs_alone(layout: Layout, padding: int):
    """A chunk has three local layers and a global one, and where layers permute it runs one local layer more."""
    local, whole = (parts(of_kind(name), layout).pieces for name in ("local", "global"))
    chunk = lambda name: (3 + padding) * getattr(local.layer, name).seconds + getattr(whole.layer, name).seconds
    times = Durations(chunk("forward"), chunk("backward"), chunk("weight"), whole.head.seconds, whole.transfer)
    schedule = make_schedule("1f1b", ranks=2, microbatches=layout.microbatches(64))
    found = parts(UNLIKE, layout)
    slots = [found.slots.count(kind) for kind in ("local", "global")]
    assert slots == [4, 1], "the shortest order that has the kinds of both"
    makespan = found.pipeline(layout).seconds
    assert makespan == pytest.approx(float(simulate(schedule, times, mode="lockstep").makespan), rel=1e-9)


def test_rows_that_pad_are_updated_like_any_other():
    of_layers = lambda model: parts(model, TWO).once["optimizer"]
    none = of_layers(replace(ALIKE, layers=2)) - (
        of_layers(replace(ALIKE, layers=4)) - of_layers(replace(ALIKE, layers=2))
    )
    local, whole = ((of_layers(of_kind(name)) - none) / 4 for name in ("local", "global"))
    assert of_layers(UNLIKE) - none == pytest.approx(4 * local + whole)
