"""Layers of one block and of three: the numbers of one device on a split mesh, and the blocks that they have."""

from typing import Any

import pytest

from jaxpar.config.parts import MIXERS
from jaxpar.config.schema.model import Pattern
from tests.extending.hgrn2 import MIXER as HGRN2
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_equals_one_device

MODELS: dict[str, dict[str, Any]] = {
    "one block": {
        "layers": 4,
        "kinds": {"mixer": {"activation": "none"}, "feed_forward": {"mixer": "none"}},
        "pattern": Pattern(unit=("mixer", "feed_forward")),
    },
    # The norm of an output that is almost 0 enlarges rounding.
    "three blocks": {"layers": 2, "mixer": "hgrn2_attention", "norm_epsilon": 1e-2},
}
SPLIT = {"fsdp": 2, "tensor": 2, "pipe": 2, "microbatches": 2}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of two blocks, for the time of a test."""
    monkeypatch.setitem(MIXERS, "hgrn2_attention", (HGRN2, MIXERS["attention"]))


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layers", MODELS)
def test_layers_of_any_number_of_blocks_equal_one_device(layers: str):
    """In the loss and every gradient, on a mesh of fsdp and tensor ranks in a pipeline."""
    one, split = small(model=MODELS[layers]), SmallRun(small(model=MODELS[layers], parallel=SPLIT))
    stacks = split.step.layout.specs["layers"]
    assert {kind: sorted(name for name in stacks[kind] if not name.endswith("_norm")) for kind in stacks} == {
        "one block": {"mixer": ["attention"], "feed_forward": ["mlp"]},
        "three blocks": {"all": ["attention", "mixer", "mlp"]},
    }[layers]
    assert_equals_one_device(split, one)


def test_layers_without_a_block_and_models_none_of_whose_layers_mixes_tokens_are_refused():
    with refused("model.mixer: none", "no layer mixes tokens"):
        SmallRun(small(model={"mixer": "none"}))
    kinds = {"kinds": {"a": {"mixer": "none"}, "b": {"mixer": "none", "mlp": 8}}, "pattern": Pattern(unit=("a", "b"))}
    with refused("model.kinds.a.mixer: none, model.kinds.b.mixer: none", "no layer mixes tokens"):
        SmallRun(small(model={"layers": 4} | kinds))
    kinds = {"full": {}, "empty": {"mixer": "none", "activation": "none"}}
    with refused("model.kinds.empty.activation: none", "no block"):
        SmallRun(small(model={"layers": 2, "kinds": kinds, "pattern": Pattern(unit=("full", "empty"))}))
