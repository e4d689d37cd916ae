"""The worked example of `docs/extending.md`: one file and one entry of a registry, and everything else follows."""

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, ModelConfig, load_config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.parts import FEED_FORWARDS
from jaxpar.config.plan import AxisSizes
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layout import Layout
from jaxpar.cost.recomputation import layer_costs
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declared import activation_names, hidden_names
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.memory.remat import remat_map
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.step_time.model import step_time
from tests.memory.shapes import layer_shape
from tests.reference import decoder64
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.traced_bytes import traced_bytes

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
CLUSTER = parse_cluster("h100:1x8")


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The new value of `model.activation`, with the file and the entry as they stand on the page."""
    file, entry, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = re.fullmatch(r'"(\w+)": "jaxpar\.layers\.feed_forward\.(\w+:\w+)",\n', entry)
    assert found is not None, entry
    folder = tmp_path_factory.mktemp("layers")
    (folder / f"{found[2].split(':')[0]}.py").write_text(file)
    sys.path.insert(0, str(folder))
    FEED_FORWARDS[found[1]] = found[2]
    yield found[1]
    del FEED_FORWARDS[found[1]]
    sys.path.remove(str(folder))


def like(config: Config, activation: str) -> Config:
    """The configuration with another feed-forward."""
    return replace(config, model=replace(config.model, activation=activation))


def plain_feed_forward(x: Any, weights: Any, options: Any) -> Any:
    """What the page states that it computes, in plain JAX."""
    gate, up = (x @ weights[each] + weights[f"{each}_bias"] for each in ("gate", "up"))
    return (jnp.maximum(gate, 0.0) ** 2 * up) @ weights["down"] + weights["down_bias"]


def test_experts_of_a_feed_forward_without_a_non_linearity_of_its_own_are_refused(name: str):
    config = small(model={"activation": name, "experts": ExpertsConfig(count=4)})
    with refused("model.activation", name, "model.experts"):
        SmallRun(config)


def test_its_loss_is_that_of_a_plain_computation(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoder64, "feed_forward", plain_feed_forward)
    run = SmallRun(small(model={"layers": 1, "activation": name, "mlp_bias": True}, parallel={"tensor": 2}))
    master = run.step.residency.initial_state().master
    total, tokens = run.step.evaluate(run.step.residency.readable(master), run.batch(0))
    wanted = decoder64.loss(run.by_layer(master), asdict(run.config.model), run.rows(0))
    assert float(total["loss"] / tokens) == pytest.approx(wanted, rel=1e-6)


def test_it_is_a_value_of_the_configuration(name: str):
    assert load_config(None, [f"model.activation={name}"]).model.activation == name
    with refused("model.activation", f"'{name}2'", "swiglu", f" {name}?"):
        load_config(None, [f"model.activation={name}2"])


def test_counts_bytes_and_costs_follow(name: str):
    config = Config(model=ModelConfig(activation=name, vocab=256))
    swiglu = like(config, "swiglu")
    assert parameter_count(config.model, padded=True) == parameter_count(swiglu.model, padded=True)
    assert "mlp_squared" in hidden_names() and "mlp_activated" not in activation_names(config.model)
    assert remat_map("gemm_last", activation_names(config.model))["mlp_squared"] == "recompute"
    pairs = causal_pairs(swiglu.model, 4096, 1024)
    assert flops_per_step(config.model, 4096, pairs, 256) == flops_per_step(swiglu.model, 4096, pairs, 256)
    axes = AxisSizes(tensor=2)
    shape, other = layer_shape(config, axes, rows=2), layer_shape(swiglu, axes, rows=2)
    assert activation_bytes(shape)["mlp_squared"] == activation_bytes(other)["mlp_activated"]
    for preset, form in CLOSED_FORMS.items():
        assert form(shape) == form(other), preset
    costs, others = (layer_costs(LayerCase(one, "allgather"), CLUSTER) for one in (shape, other))
    assert costs.forward_seconds == pytest.approx(others.forward_seconds)


def test_the_planner_counts_its_traffic(name: str):
    """Fused, it is SwiGLU."""
    sizes = {"vocab": 256, "embed": 4096, "heads": 32, "mlp": 14336}
    times = [
        step_time(ModelConfig(activation=one, **sizes), 4096, 8, Layout(fsdp=8, zero=3), CLUSTER).seconds
        for one in (name, "swiglu")
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize("preset", ["none", "gemm_last"])
def test_a_traced_step_keeps_what_the_declaration_states(name: str, preset: str):
    asked = [f"model.activation={name}", "attention.backend=xla", "memory.mlp_tiles=1", f"memory.remat={preset}"]
    config, plan = plan_for(load_config(QUICKSTART, [*asked, "parallel.tensor=2"]), CLUSTER)
    form = CLOSED_FORMS[preset](layer_shape(config, plan.axes, plan.microbatch_rows))
    kept = traced_bytes(config, plan).stash
    assert kept == max(plan.stage_layers) * form
