"""Remat presets as maps, and what they make a training step run again."""

from collections import Counter
from typing import Any, get_args

import pytest

from jaxpar.config.reading.typed import field_types
from jaxpar.config.schema import MemoryConfig, ModelConfig
from jaxpar.layers.declared import activation_names
from jaxpar.memory.remat import PRESETS, layer_runs, offloaded, remat_map
from tests.sentences import refused
from tests.small_run import SmallRun, small, worst_difference
from tests.traced import operations

ACTIVATIONS = activation_names(ModelConfig())


@pytest.mark.parametrize(
    ("preset", "recomputed"),
    [
        ("none", set()),
        ("gemm_last", {"attention_input", "mlp_input", "mlp_activated", "mlp_hidden"}),
        ("selective", {"attention_output", "attention_lse"}),
        ("full", set(ACTIVATIONS) - {"layer_input"}),
    ],
)
def test_a_preset_states_what_happens_to_every_activation(preset: str, recomputed: set[str]):
    treatments = remat_map(preset, ACTIVATIONS)
    assert list(treatments) == list(ACTIVATIONS)
    assert {name for name, treatment in treatments.items() if treatment == "recompute"} == recomputed


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_map_sets_treatments_by_name_and_leaves_the_rest_to_a_preset(preset: str | None):
    wanted = {"layer_input": "offload", "query": "offload", "key": "recompute", "mlp_hidden": "save"}
    treatments = remat_map(wanted | ({} if preset is None else {"preset": preset}), ACTIVATIONS)
    assert list(treatments) == list(ACTIVATIONS)
    assert treatments == remat_map(preset or "gemm_last", ACTIVATIONS) | wanted


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ({"layer_inputs": "offload"}, ("memory.remat:", "'layer_inputs'", " layer_input?")),
        ({"presets": "full"}, ("memory.remat:", "'presets'", " preset?")),
        ({"xyz": "save"}, ("memory.remat:", "'xyz'", ", ".join(ACTIVATIONS))),
        ({"query": "sav"}, ("memory.remat.query:", "save, recompute or offload", "got 'sav'", " save?")),
        ({"preset": "ful"}, ("memory.remat.preset:", "none, gemm_last, selective or full", "got 'ful'", " full?")),
        ({"layer_input": "recompute"}, ("memory.remat.layer_input:", "save or offload", "got 'recompute'")),
    ],
)
def test_a_wrong_map_is_one_sentence(written: dict[str, str], parts: tuple[str, ...]):
    with refused(*parts):
        remat_map(written, ACTIVATIONS)


def test_presets_are_those_that_a_configuration_can_name():
    assert {*PRESETS, "auto"} == set(get_args(get_args(field_types(MemoryConfig)["remat"])[0]))


PER_LAYER = [
    {"layers": "0-2", "preset": "full"},
    {"layers": 3, "query": "offload"},
    {"layers": "5-5", "preset": "none"},
    {"layers": "6-7", "preset": "gemm_last"},
]


def test_a_list_applies_each_map_to_its_layers_and_leaves_the_others_to_gemm_last():
    runs = layer_runs(PER_LAYER, ACTIVATIONS, 9)
    query = {"query": "offload"}
    assert [(run.layers, run.activations) for run in runs] == [
        (3, remat_map("full", ACTIVATIONS)),
        (1, remat_map("gemm_last", ACTIVATIONS) | query),
        (1, remat_map("gemm_last", ACTIVATIONS)),
        (1, remat_map("none", ACTIVATIONS)),
        (3, remat_map("gemm_last", ACTIVATIONS)),
    ]
    assert offloaded(runs) == ["query"]


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ([{"preset": "full"}], ("memory.remat[0]:", "layers, as in {layers: 0-8, preset: full}")),
        ([{"layers": "7-9"}], ("memory.remat[0].layers:", "a range of layers from 0 to 8", "as in 0-3", "got '7-9'")),
        ([{"layers": "first"}], ("memory.remat[0].layers:", "a range of layers from 0 to 8", "got 'first'")),
        ([{"layers": "0-3"}, {"layers": "3-4"}], ("memory.remat[1].layers:", "each once", "layer 3", "earlier map")),
        ([{"layers": 0}, {"layers": 1, "qeury": "save"}], ("memory.remat[1]:", "'qeury'", " query?")),
        ([{"layers": "0-3", "preset": "auto"}], ("memory.remat[0].preset:", "memory.remat: auto alone")),
        ([], ("memory.remat:", "none, gemm_last, selective, full or auto, or a map by name", "memory.remat: []")),
        ({}, ("memory.remat:", "none, gemm_last, selective, full or auto, or a map by name", "memory.remat: {}")),
    ],
)
def test_a_wrong_list_is_one_sentence(written: Any, parts: tuple[str, ...]):
    with refused(*parts):
        layer_runs(written, ACTIVATIONS, 9)


FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "llama": ({"tied": True}, 8),
    "qwen3": ({"qk_norm": True}, 8),
    "gpt2": ({"norm": "layernorm", "position": "learned", "activation": "gelu", "attention_bias": True}, 7),
    "mistral": ({"activation": "relu2", "window": 5, "attention_softcap": 3.0}, 7),
    "olmo2": ({"norm_placement": "post", "qk_norm": "projection"}, 9),
    "cohere": ({"norm": "unbiased_layernorm", "norm_placement": "parallel", "qk_norm": "layernorm"}, 7),
    "olmo": ({"norm": "weightless_layernorm", "norm_placement": "parallel_norms", "qkv_clip": 0.5}, 7),
    "gemma": ({"norm_placement": "sandwich", "norm": "zero_centered_rmsnorm", "activation": "geglu"}, 9),
}
"""Model options, and a layer's matmuls whose output a gradient needs: query, key, value, the two of attention, its
output, (gate) and up. `down` ends the layer, unless a norm is behind it, and so does the output of attention where
the feed-forward is parallel."""


def step_counts(remat: str, model: dict[str, Any]) -> Counter[str]:
    """How often each operation runs in a training step of two layers."""
    run = SmallRun(small(model={"layers": 2} | model, memory={"remat": remat}))
    counts: Counter[str] = Counter()
    layout, mesh = run.step.layout, run.step.mesh
    inputs = layout.abstract_state(mesh), layout.abstract_batch(mesh), layout.abstract_arguments(mesh)
    for equation, times in operations(run.step.train, *inputs):
        counts[equation.primitive.name] += times
    return counts


MAPS: dict[str, Any] = {
    "gemm_last": "gemm_last",
    "selective": "selective",
    "full": "full",
    "by name": {"preset": "full", "value": "save", "mlp_up": "offload", "layer_input": "offload"},
    "by layer": [{"layers": 0, "preset": "none"}, {"layers": 1, "preset": "full"}],
}


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("name", MAPS)
def test_no_map_changes_a_number(name: str):
    """On one layout, within 1e-6 of the largest number of the same array."""
    run = lambda remat: SmallRun(small(model={"layers": 2}, parallel={"fsdp": 2}, memory={"remat": remat}))
    (loss, gradients), (found_loss, found) = (run(remat).loss_and_gradients() for remat in ("none", MAPS[name]))
    assert abs(found_loss - loss) <= 1e-6 * abs(loss)
    worst, leaf = worst_difference(found, gradients)
    assert worst <= 1e-6, f"gradient of {leaf} differs by {worst:.1e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_gemm_last_runs_no_matmul_twice_and_full_runs_all_but_the_last_again(family: str):
    model, needed = FAMILIES[family]
    none, gemm_last, full = (step_counts(remat, model) for remat in ("none", "gemm_last", "full"))
    assert gemm_last["dot_general"] == none["dot_general"]
    assert full["dot_general"] == none["dot_general"] + 2 * needed
    # The elementwise work that is cheap to bring back: norms and non-linearity, whose result goes into a matmul.
    assert gemm_last["mul"] > none["mul"]
