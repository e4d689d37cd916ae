"""The time of a step with low-rank factors: no gradients of frozen weights, and the products of factors."""

from dataclasses import dataclass, replace

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.config.schema import Config, LoraConfig, ModelConfig
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.head import head_time
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layer_case import layer_cases
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import factor_parameters, matmul_parameters
from jaxpar.layers.declaration.adaptation import OFF, adaptation
from jaxpar.model.flops import flops_per_step
from jaxpar.planner.step_time.layer_times import Sort
from jaxpar.planner.step_time.model import Steps
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.update import update_of

CLUSTER = parse_cluster("h100:1x8")
LORA = LoraConfig(rank=16, targets=("query", "value", "up", "down"))
SEQUENCE = 4096
MODELS: dict[str, ModelConfig] = {
    "llama": PRESETS["llama3-8b"], "biases": replace(PRESETS["gpt2-124m"], vocab=50304),
    "untied": replace(PRESETS["llama3-1b"], tied=False),
}  # fmt: skip


HARDWARE = hardware_of(CLUSTER.gpu)


@dataclass(frozen=True)
class Counting(Device):
    """A device whose seconds are FLOPs of matmuls."""

    def matmul(self, m: int, n: int, k: int, batch: int = 1, out_bytes: float = 2, item: int = 2) -> float:
        return 2.0 * m * n * k * batch


@pytest.mark.parametrize("lora", [OFF, LORA, LoraConfig(rank=4)], ids=["all", "some", "every"])
@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_that_the_model_asks_for(name: str, lora: LoraConfig):
    model, device = MODELS[name], device_of(CLUSTER.gpu, HARDWARE)
    counting = Counting(*(getattr(device, field) for field in device.__dataclass_fields__))
    network, vocab = network_of(CLUSTER, HARDWARE), model.vocab or 0
    case = layer_cases(model, SEQUENCE, Layout(), lora)["all"]
    time = layer_time(case, counting, network)
    head = sum(work.matmul for work in head_time(case, vocab, counting, network))
    found = model.layers * (time.forward.matmul + time.backward.matmul) + head
    wanted = flops_per_step(model, SEQUENCE, {}, vocab, adaptation(lora))
    assert found == pytest.approx(wanted, rel=1e-12)
    if lora.rank is not None:
        assert time.weight == 2.0 * SEQUENCE * factor_parameters(model, adaptation(lora)) / model.layers


def step(lora: LoraConfig, zero: int) -> Step:
    model = MODELS["llama"]
    update = update_of(replace(Config(model=model), lora=lora))
    return Steps(model, SEQUENCE, 8, CLUSTER, update=update).step(Layout(fsdp=8, zero=zero))


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_frozen_weights_are_not_updated_and_their_gradients_not_reduced(zero: int):
    model = MODELS["llama"]
    some, every = step(LORA, zero), step(OFF, zero)
    factors = factor_parameters(model, adaptation(LORA))
    tables = (model.vocab or 0) * model.embed
    whole = matmul_parameters(model, model.vocab or 0) + tables
    assert some.once["optimizer"] / every.once["optimizer"] == pytest.approx(factors / whole, rel=1e-9)
    if zero == 0:
        assert some.once["data"] == some.where.ring(8, 1).reduce(4.0 * factors)
    assert some.passed[Sort("all")].weight.seconds < 0.1 * every.passed[Sort("all")].weight.seconds
    assert some.work.seconds_by_kind["matmuls"] < 0.75 * every.work.seconds_by_kind["matmuls"]
