"""Layers have the weights, the activations and the groups of matmuls that their parts declare."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.config.counting import rotary_dim, streams_of
from jaxpar.config.kinds import ALL, kind_model
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.residual import AltUpConfig
from jaxpar.config.parts import FEED_FORWARDS
from jaxpar.config.plan import LayerRun
from jaxpar.config.presets import PRESETS
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layer_case import layer_cases
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.block import Context
from jaxpar.layers.context import TokenContext
from jaxpar.layers.counting import layer_parameters, parameter_count
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declaration.weights import specs_of, with_weights
from jaxpar.layers.declared import NORM_POSITIONS, activation_names, declare_layer, known_activations
from jaxpar.layers.feed_forward.gated import SwiGLU
from jaxpar.layers.layer import DecoderLayer
from jaxpar.layers.norm import NORMS
from jaxpar.layers.rope import frequencies, rotary_tables
from jaxpar.layout.checks.model import WITH_LAUREL
from jaxpar.memory.remat import cheap, is_attention_core, layer_runs
from jaxpar.mesh.axes import AXES, vary
from jaxpar.model.flops import causal_pairs, flops_per_step, reaches
from jaxpar.planner.step_time.layer_times import Layers, Sort
from jaxpar.planner.step_time.model import Steps
from jaxpar.planner.step_time.update import ADAMW
from jaxpar.runtime.taps import recording
from pallas_kernels.attention.derivative import CHECKPOINT_NAMES
from tests.sentences import refused
from tests.traced import mesh_of, operations

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
ROWS, SEQUENCE = 2, 4
OPTIONS = [
    {"activation": activation, "norm_placement": place} for activation in FEED_FORWARDS for place in NORM_POSITIONS
]
OPTIONS += [{"norm": norm, "mlp_bias": True} for norm in NORMS]
OPTIONS += [
    {"qk_norm": qk, "attention_bias": bias} for qk, bias in ((True, "qkv"), ("projection", True), ("rotated", False))
]
OPTIONS += [{"attention_sinks": True}, {"attention_gate": True}, {"attention_sinks": True, "attention_gate": True}]
OPTIONS += [{"altup": AltUpConfig(3, 1), "laurel_rank": 4, "norm_placement": place} for place in WITH_LAUREL]
OPTIONS += [{"latent_attention": LatentAttentionConfig(6, rank, 2, 4, 3)} for rank in (None, 5)]


def model_of(**options: Any) -> ModelConfig:
    return ModelConfig(layers=2, embed=8, heads=2, mlp=12, vocab=16, **options)


def traced(model: ModelConfig) -> tuple[set[str], dict[str, Any]]:
    """(names that a layer gives, its groups of matmuls with input and outputs)."""
    prototype = DecoderLayer(Config(model=model))
    groups: dict[str, Any] = {}

    def program(weights: Any, x: jax.Array) -> jax.Array:
        indices = jnp.broadcast_to(jnp.arange(SEQUENCE), (ROWS, SEQUENCE))
        cos, sin = rotary_tables(indices, frequencies(model, rotary_dim(model)))
        tokens = vary(TokenContext(indices, indices, indices, indices, indices[:, 0], cos, sin))
        layer: Any = with_weights(prototype, vary(weights))
        attend = lambda q, k, v, tokens, *sinks: q[..., : v.shape[-1]] * (k.sum() + v.sum())
        return layer(vary(x), Context(jnp.int32(0), tokens, attend, train=True), recording(groups))

    one = lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32)
    weights = jax.tree.map(one, specs_of(prototype), is_leaf=lambda leaf: hasattr(leaf, "axes"))
    x = jax.ShapeDtypeStruct((ROWS, SEQUENCE, streams_of(model) * model.embed), jnp.float32)
    whole = PartitionSpec()
    function = jax.shard_map(program, mesh=mesh_of(), in_specs=(whole, whole), out_specs=PartitionSpec(AXES))
    found = {equation.params["name"] for equation, _ in operations(function, weights, x) if named(equation)}
    return found, groups


def named(equation: Any) -> bool:
    return equation.primitive.name == "name"


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_a_layer_has_what_it_declares(options: dict[str, Any]):
    model = model_of(**options)
    layer = declare_layer(model)
    own = specs_of(DecoderLayer(Config(model=model)))
    assert own == {name: dict(weights) for name, weights in layer.weights.items()}
    found, groups = traced(model)
    made = {one.name for one in layer.activations if not one.core}
    assert found == made - {"layer_input"}
    assert list(groups) == [group.name for part in layer.parts for group in part.groups]
    for part in layer.parts:
        *inward, _ = part.groups
        assert groups[inward[0].name][0].shape == (ROWS, SEQUENCE, model.embed)
        for group in inward:
            for name, y in zip(group.weights, groups[group.name][1], strict=True):
                assert y.shape[2:] == part.weights[name].shape[1:], name


def test_the_names_of_attention_itself_are_those_that_its_kernels_keep():
    assert tuple(name for name in known_activations() if is_attention_core(name)) == CHECKPOINT_NAMES
    assert {name for name in known_activations() if cheap(name)} == {
        "attention_input", "mlp_input", "mlp_activated", "mlp_hidden", "expert_activated", "expert_hidden",
        "shared_activated", "shared_hidden", "expanded_query", "expanded_key", "expanded_value",
        "attention_scaled", "attention_gated", "mixer_input", "linear_gated",
        "linear_convolved_query", "linear_convolved_key", "linear_convolved_value", "linear_entered",
        "linear_convolved_entered", "per_layer_input", "per_layer_hidden", "shared_key", "shared_value",
        "altup_predicted",
    }  # fmt: skip


KINDS: Any = {"plain": {"activation": "gelu", "mlp": 20}, "wide": {"norm_placement": "sandwich", "window": 2}}


def test_a_model_of_kinds_has_the_names_and_the_weights_of_all_of_them():
    model = replace(model_of(kinds=KINDS, pattern=Pattern(("plain", "wide"), suffix=("plain",))), layers=3)
    alone = {kind: kind_model(model, kind) for kind in KINDS}
    names = activation_names(model)
    for own in alone.values():
        ours = activation_names(own)
        assert [name for name in names if name in ours] == list(ours), "each kind's are in its order"
    assert set(names) == {name for own in alone.values() for name in activation_names(own)}
    ends = parameter_count(model, True) - 2 * layer_parameters(alone["plain"]) - layer_parameters(alone["wide"])
    assert ends == 2 * 128 * 8 + 8  # embedding and head, padded, and the last norm


def test_flops_count_each_kinds_pairs():
    model = replace(model_of(kinds=KINDS, pattern=Pattern(("plain", "wide"), suffix=("plain",))), layers=3)
    assert reaches(model) == (None, 2)
    pairs = causal_pairs(model, 8, 4)
    assert pairs == {None: 2 * (1 + 2 + 3 + 4), 2: 2 * (1 + 2 + 2 + 2)}
    matrices = 2 * (4 * 8 * 8 + 2 * 8 * 20) + (4 * 8 * 8 + 3 * 8 * 12) + 8 * 16
    assert flops_per_step(model, 8, pairs, 16) == 6 * 8 * matrices + 12 * 8 * (2 * pairs[None] + pairs[2])


def test_the_time_of_an_average_layer_is_that_of_its_kinds():
    model = replace(model_of(kinds=KINDS, pattern=Pattern(("plain", "wide"), suffix=("plain",))), layers=3)
    cluster = parse_cluster("h100:1x8")
    layers: dict[str, Layers] = {}
    for name, own in {"all": model, **{kind: kind_model(model, kind) for kind in KINDS}}.items():
        steps = Steps(own, 1024, 8, cluster, None, ADAMW)
        layers[name] = steps.layers(Layout(fsdp=8))
    for what in ("forward", "backward"):
        seconds = {name: getattr(one, what).seconds for name, one in layers.items()}
        assert seconds["all"] == pytest.approx((2 * seconds["plain"] + seconds["wide"]) / 3)
    indices = ("plain", "wide", "plain")
    copied = layers["all"].copied("gemm_last", indices, 1.0)
    again = layers["all"].again("full", indices)
    for kind in KINDS:
        alone = layers[kind]
        assert copied[Sort(kind)] == alone.copied("gemm_last", (), 1.0)[Sort(ALL)]
        assert again[Sort(kind)] == alone.again("full", ())[Sort(ALL)]


@pytest.mark.parametrize(
    ("model", "name"), [("model.activation=gelu", "mlp_gate"), ("model.norm_placement=sandwich", "attention_residual")]
)
def test_a_remat_map_may_name_what_only_other_models_layers_have(model: str, name: str):
    def runs(written: str) -> tuple[LayerRun, ...]:
        config = load_config(QUICKSTART, [model, f"memory.remat={written}"])
        return layer_runs(config.memory.remat, activation_names(config.model), config.model.layers)

    (run,) = runs(f"{{query: recompute, {name}: save}}")
    assert (run,) == runs("{query: recompute}")
    assert name not in run.activations
    with refused(f"memory.remat.{name}", "save, recompute or offload", "'keep'"):
        runs(f"{{{name}: keep}}")


def test_a_name_that_no_part_has_is_refused():
    asked = ["model.activation=gelu", "memory.remat={mlp_gates: save}"]
    with refused("memory.remat", "'mlp_gates'", " mlp_gate?"):
        plan_for(load_config(QUICKSTART, asked), parse_cluster("h100:1x8"))
    asked[1] = "memory.remat={nothing_like_it: save}"
    with refused("memory.remat", "'nothing_like_it'", "mlp_up, mlp_hidden"):
        plan_for(load_config(QUICKSTART, asked), parse_cluster("h100:1x8"))


def test_a_module_gives_no_name_that_its_part_does_not_declare():
    with pytest.raises(AssertionError, match="mlp_gate"):
        name_activation(jnp.zeros(2), "mlp_gate", declare_layer(model_of(activation="gelu")).activations)


@pytest.fixture(scope="module")
def h100() -> Any:
    """What a GPU computes with, and what joins eight of them."""
    cluster = parse_cluster("h100:1x8")
    hardware = hardware_of(cluster.gpu)
    return device_of(cluster.gpu, hardware), network_of(cluster, hardware)


def test_norms_behind_a_part_take_time_and_memory(h100: Any):
    models = {place: replace(PRESETS["llama3-8b"], norm_placement=place) for place in NORM_POSITIONS}
    times = {place: layer_time(layer_cases(model, 8192, Layout())["all"], *h100) for place, model in models.items()}
    for way in ("forward", "backward"):
        other = {place: getattr(one, way).other for place, one in times.items()}
        assert other["sandwich"] > other["pre"] == pytest.approx(other["post"])


def test_sinks_scale_attentions_output_in_a_kernel_of_their_own(h100: Any):
    """What attention itself keeps stays as it is; the scaled output is the input of the projection behind it."""
    models = [replace(PRESETS["llama3-8b"], attention_sinks=sinks) for sinks in (False, True)]
    cases = [layer_cases(model, 8192, Layout())["all"] for model in models]
    plain, scaled = (layer_time(case, *h100) for case in cases)
    more = 2 * cases[1].shape.sizes["attention_scaled"]  # read and written
    assert scaled.forward.other - plain.forward.other == pytest.approx(h100[0].bytes_seconds(more))
    assert scaled.backward.other > plain.backward.other
    assert cheap("attention_scaled") and not is_attention_core("attention_scaled")


def test_layers_read_nothing_of_the_run_or_the_data():
    files = list((Path(__file__).parents[2] / "jaxpar" / "layers").rglob("*.py"))
    read = [(path.name, node.attr) for path in files for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and node.attr in ("run", "data")
            and isinstance(node.value, ast.Name) and node.value.id == "config"]  # fmt: skip
    assert len(files) > 30 and not read


def test_a_mean_over_the_tokens_of_a_block_needs_their_number(monkeypatch: pytest.MonkeyPatch):
    """Without it nothing divides the sum, and the value would be lost."""
    config = Config(model=model_of())
    monkeypatch.setattr(SwiGLU, "reports", ("mlp.size", "spread", "mlp.load.0"))
    with refused("mlp.size", "mlp.tokens"):
        DecoderLayer(config)
    monkeypatch.setattr(SwiGLU, "reports", ("mlp.size", "spread", "mlp.load.0", "mlp.tokens"))
    assert DecoderLayer(config).reports == SwiGLU.reports
