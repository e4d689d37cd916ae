"""A feed-forward has any name: tiles, rings, memory and training follow the declared block."""

from dataclasses import replace
from pathlib import Path

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, ModelConfig, load_config
from jaxpar.config.parts import FEED_FORWARDS
from jaxpar.config.plan import Choice, Plan, TensorOverlap
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.feed_forward.plain import SquaredReLU
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.memory.weights import Weights
from tests.sentences import refused
from tests.small_run import SmallRun, small

LLAMA = Path(__file__).parents[2] / "configs" / "llama3_8b.yaml"
TILED = {"remat": "full", "mlp_tiles": 3}


class ChannelMix(SquaredReLU):
    """`SquaredReLU` with a block and groups of matmuls of other names."""

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        part = SquaredReLU.declare(model)
        renamed = lambda one: replace(one, name=one.name.replace("mlp", "channel")) if isinstance(one, Matmuls) else one
        return replace(part, name="channel", operations=tuple(map(renamed, part.operations)))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value `channel` of `model.activation`, for the time of a test."""
    monkeypatch.setitem(FEED_FORWARDS, "channel", f"{__name__}:ChannelMix")


def on_h100s(activation: str) -> tuple[Config, Plan]:
    """A large model, nothing kept but each layer's input, on four tensor ranks."""
    options = "memory.remat=full", "data.sequence_length=65536", "parallel.tensor=4", "parallel.fsdp=2"
    return plan_for(load_config(LLAMA, [f"model.activation={activation}", *options]), parse_cluster("h100:1x8"))


def test_tiles_rings_and_memory_are_those_of_the_same_block_with_its_usual_name():
    (renamed, plan), (usual, wanted) = on_h100s("channel"), on_h100s("relu2")
    assert plan.mlp_tiles == wanted.mlp_tiles and plan.mlp_tiles.name > 1
    groups = {name.replace("channel", "mlp"): choice for name, choice in plan.tensor_overlap.items()}
    assert groups == wanted.tensor_overlap and "channel_in" in plan.tensor_overlap
    assert estimate_memory(renamed, plan) == estimate_memory(usual, wanted)


def test_its_matrices_are_a_half_of_a_layer():
    for kind in Weights(small(model={"activation": "channel"})).parts(tensor=1, shards=1).layers.values():
        mixer, feed_forward = kind.halves
        assert {one.name.rsplit(".", 1)[-1] for one in feed_forward} == {"up", "down"}
        assert len(mixer) + 2 == len(kind.weights)


def test_chunks_of_a_plan_divide_a_tile_of_it():
    config = resolve_config(small(model={"activation": "channel"}, parallel={"tensor": 4}, memory=TILED), 4)
    plan = make_plan(config, jax.devices()[0])
    ring = replace(plan, tensor_overlap={"channel_in": TensorOverlap(Choice("ring"), 4)})
    with refused("plan.tensor_overlap.channel_in", "4 chunks", "22 tokens"):
        check_plan(ring, config, jax.devices()[0])


def test_it_trains_in_tiles_on_tensor_ranks():
    model = {"layers": 1, "activation": "channel"}
    losses = [
        SmallRun(small(model=model, parallel={"tensor": tensor}, memory=memory)).train(2)[0]
        for tensor, memory in ((1, {}), (2, TILED))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
