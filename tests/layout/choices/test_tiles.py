"""The plan takes as many tiles as memory asks for, states why, and refuses what cannot be."""

import jax
import pytest

from jaxpar.config import Config, load_config
from jaxpar.config.plan import Choice, Plan
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.validate import validate
from jaxpar.layers.declared import hidden_names
from jaxpar.layout.choices.tiles import loss_tiles
from jaxpar.layout.make_plan import make_plan, resolve_config
from tests.sentences import refusals, refused
from tests.small_run import layout_of, small


def llama(*options: str) -> Config:
    """One row of 32k tokens through Llama-3-8B on a device, nothing kept but each layer's input."""
    base = "model.preset=llama3-8b", "data.sequence_length=32768", "data.batch_size=1", "memory.remat=full"
    return load_config(None, [*base, *options])


def plan_of(config: Config) -> Plan:
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0])


@pytest.mark.parametrize(
    ("options", "tiles"),
    [
        ((), 16),  # 32768 x 128256 x 4 bytes are 15.7 GiB
        (("data.sequence_length=2048",), 1),
        (("data.sequence_length=2304",), 2),
        (("data.batch_size=8", "parallel.fsdp=8"), 16),
        (("data.batch_size=4", "parallel.microbatches=2"), 32),
        (("parallel.tensor=4",), 4),
        (("parallel.context=2", "parallel.tensor=4"), 2),
        (("parallel.pipe=2", "parallel.tensor=2"), 8),
        (("parallel.pipe=2", "parallel.tensor=2", "parallel.pipe_ends=shared"), 4),
        (("memory.loss_tiles=5",), 5),
    ],
)
def test_logits_of_a_tile_are_a_gibibyte_or_less(options: tuple[str, ...], tiles: int):
    assert plan_of(llama(*options)).loss_tiles.name == tiles


@pytest.mark.parametrize(
    ("options", "tiles", "why"),
    [
        ((), 8, "a layer has 2.6 GiB of hidden activations"),
        (("data.sequence_length=65536",), 16, "a layer has 5.2 GiB of hidden activations"),
        (("parallel.tensor=2",), 8, "a layer has 1.3 GiB of hidden activations"),
        (("parallel.tensor=4",), 1, "a layer has 672.0 MiB of hidden activations"),
        (("data.sequence_length=8192",), 1, "a layer has 672.0 MiB of hidden activations"),
        (("memory.remat=gemm_last",), 1, "memory.remat keeps hidden activations"),
        (("memory.remat=gemm_last", "memory.mlp_tiles=3"), 3, "asked for"),
        (
            ("parallel.pipe=2", "parallel.schedule=zb-h1", "parallel.microbatches=2", "data.batch_size=2"),
            1,
            "the schedule keeps hidden activations from B to W",
        ),
    ],
)
def test_tiles_of_the_feed_forward_are_about_as_long_as_wide_where_they_cost_nothing(options, tiles, why):
    config = llama(*options)
    plan = plan_of(config)
    assert plan.mlp_tiles == Choice(tiles, why)
    assert all(plan.runs[0].activations[name] == "recompute" for name in hidden_names()) == (
        tiles > 1 or plan.remat == "full"
    )


def test_a_small_run_has_one_tile_of_each():
    plan = plan_of(small())
    assert (plan.loss_tiles.name, plan.mlp_tiles.name) == (1, 1)
    assert loss_tiles(llama()).reason == "a microbatch has 15.7 GiB of logits, at most 1 GiB at a time"


@refusals("""
    memory.loss_tiles=0 => memory.loss_tiles: | at least 1 | got 0
    memory.mlp_tiles=-2 => memory.mlp_tiles: | at least 1 | got -2
    memory.loss_tiles=257 => memory.loss_tiles: | at most as many as a device has tokens in a microbatch (256) | got 257
    memory.mlp_tiles=9 | parallel.fsdp=2 | parallel.context=2 | parallel.tensor=2 | parallel.microbatches=4 =>
        memory.mlp_tiles: | at most as many as a device has tokens in a microbatch (8) | got 9
    memory.mlp_tiles=2 | parallel.pipe=2 | parallel.schedule=zb-h1 | parallel.microbatches=2 => memory.mlp_tiles: |
        1 or null | memory.mlp_tiles: 2 | parallel.schedule: zb-h1
""")
def test_what_cannot_be_is_one_sentence(overrides: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        plan_of(with_overrides(small(), overrides))


def test_as_many_tiles_as_tokens_are_allowed_while_an_axis_is_not_known():
    config = small(memory={"loss_tiles": 256}, parallel={"fsdp": -1})
    validate(config)
    with refused("tokens in a microbatch (128)", "got 256"):
        resolve_config(config, 2)
