"""The reference decoder computes what transformers computes, from the weights that the tables of families read."""

from collections.abc import Mapping

import numpy as np
import pytest

from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.goldens.loading import FOLDER, NAMES, WITH_STATE, layers_of, load, short_logits, tokens_and_logits
from tests.reference import decoder64, experts64, layers64
from tests.reference.options import DEFAULTS, Options
from tests.reference.tree import Tree

DIFFERENT = (
    "qwen3_moe", "deepseek_v3", "kimi_k2", "glm4_moe", "dots1", "ernie4_5_moe", "llama4", "gemma3n", "gemma4",
    "gemma4_dense", "gemma4_moe", "mistral4", *WITH_STATE,
)  # fmt: skip
"""Goldens whose layers have other blocks than attention and a feed-forward, or not all the same."""
ALIKE = [name for name in NAMES if name not in DIFFERENT]
"""Goldens whose layers all have attention and weights of the same shapes, as those of the reference do."""
LARGEST = 200_000
"""Bytes of a golden with its logits, since everyone who clones the project has them."""
FACTORS = ("stream", "output")
TOLERANCE = 1e-5
"""Largest difference over the largest logit: transformers keeps norms, angles and softmax in float32, about 1.4e-6."""


def difference(computed: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference over the largest absolute value."""
    return float(np.abs(computed - expected).max() / np.abs(expected).max())


def logits_of(weights: Tree, options: Options, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """The reference's, with experts or without."""
    return (experts64 if "experts" in options else decoder64).logits(weights, options, batch)


def test_every_kind_of_model_has_a_golden() -> None:
    assert set(FAMILIES) <= set(NAMES)


def test_every_golden_is_small() -> None:
    sizes = {name: sum(file.stat().st_size for file in (FOLDER / name).iterdir()) for name in NAMES}
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.matrix(quick=("deepseek_v2", "gemma2", "gpt_oss", "smollm3"), ci=4, always=True)
def test_reference_logits_equal_those_of_transformers(name: str) -> None:
    weights, options, tokens, logits = load(name)
    computed = logits_of(weights, options, decoder64.plain_batch(tokens))
    assert difference(computed, logits) < TOLERANCE


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.matrix(quick=("mamba2",), ci=3)
def test_reference_logits_of_different_layers_equal_those_of_transformers(name: str) -> None:
    """And each option changes them by far more than the tolerance."""
    (outside, layers), (tokens, logits) = layers_of(HFFolder(FOLDER / name)), tokens_and_logits(name)
    batch = decoder64.plain_batch(tokens)
    assert difference(layers64.logits(outside, layers, batch), logits) < TOLERANCE
    others: list[tuple[str, dict[str, object]]] = [("mlp", {"norm_epsilon": 0.1}), ("mixer", {"norm_epsilon": 0.1})]
    others += [("attention", one) for one in ({"rope_base": 2e4}, {"rope_partial": 1.0}, {"qk_norm": False})]
    others += [("attention", one) for one in ({"value_norm": False}, {"rope_scaling": "none"}, {"layer_scale": False})]
    others += [("attention", one) for one in ({"chunk": None}, {"attention_temperature": None})]
    others += [
        ("mlp", {"norm_placement": "pre"}),
        *([("mixer", {"linear_attention": None})] if name == "minimax" else []),
    ]
    others += [(name, {f"residual_{name}_{factor}": 1.0}) for name in ("mixer", "mlp") for factor in FACTORS]
    for block, changed in others:
        of_block = [block in weights and matters(changed, options) for weights, options in layers]
        if any(of_block):
            pairs = zip(layers, of_block, strict=True)
            other = [(weights, options | changed if has else options) for (weights, options), has in pairs]
            assert difference(layers64.logits(outside, other, batch), logits) > 100 * TOLERANCE, changed


def test_the_inputs_of_experts_of_llama4_are_weighed() -> None:
    (outside, layers), (tokens, logits) = layers_of(HFFolder(FOLDER / "llama4")), tokens_and_logits("llama4")
    outputs = lambda own: own | {"experts": {**own["experts"], "weigh_inputs": False}} if own.get("experts") else own
    other = [(weights, outputs(options)) for weights, options in layers]
    assert difference(layers64.logits(outside, other, decoder64.plain_batch(tokens)), logits) > 100 * TOLERANCE


def matters(changed: Options, options: Options) -> bool:
    """Whether options have another value in a layer, which without positions reads none of rotary embeddings."""
    rotates = options.get("position", "rope") == "rope"
    read = {key: value for key, value in changed.items() if rotates or not key.startswith("rope_")}
    return any(options.get(key, DEFAULTS.get(key)) != value for key, value in read.items())


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.matrix(quick=("gpt2",), ci=3)
def test_goldens_distinguish_their_model_from_its_neighbours(name: str) -> None:
    """Each option that the golden is there for changes the logits by far more than the tolerance."""
    weights, options, tokens, logits = load(name)
    neutral = {
        "rope_scaling": "none", "window": None, "rope_base": 20000.0, "norm_epsilon": 1e-3, "qk_norm": False,
        "attention_bias": False, "attention_scale": None, "attention_softcap": None, "logit_softcap": None,
        "embedding_scale": False, "position": "rope", "rope_partial": 1.0, "logit_divisor": 1.0,
        "qkv_clip": None, "residual_mixer_output": 1.0, "residual_mlp_output": 1.0,
    }  # fmt: skip
    if options.get("position", "rope") != "rope":
        del neutral["rope_base"]
    if options.get("rope_scaling") == "longrope":  # there is a factor for each pair that rotates
        del neutral["rope_partial"]
    others = {key: {key: value} for key, value in neutral.items() if key in options and options[key] != value}
    for kind, own in options.get("kinds", {}).items():
        for key in (key for key in own.keys() & neutral.keys() if own[key] != neutral[key]):
            others[f"{kind}.{key}"] = {"kinds": options["kinds"] | {kind: own | {key: neutral[key]}}}
    if "kinds" in options:
        names = list(options["kinds"])
        swapped = dict(zip(names, reversed(options["kinds"].values()), strict=True))
        others["two kinds swapped"] = {"kinds": swapped}
        unit = options["pattern"]["unit"]
        if unit[::-1] != unit:
            others["the pattern the other way round"] = {"pattern": options["pattern"] | {"unit": unit[::-1]}}
    assert others
    for reported, changed in others.items():
        other = logits_of(weights, options | changed, decoder64.plain_batch(tokens))
        assert difference(other, logits) > 100 * TOLERANCE, reported


def test_rows_of_up_to_the_original_length_have_other_logits_under_longrope() -> None:
    weights, options, tokens, logits = load("phi3_longrope")
    computed = decoder64.logits(weights, options, decoder64.plain_batch(tokens[:, :16]))
    assert difference(computed, short_logits("phi3_longrope")) < TOLERANCE
    assert difference(computed, logits[:, :16]) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_padding_the_vocabulary_leaves_the_logits_of_the_true_ids(name: str) -> None:
    weights, options, tokens, logits = load(name, vocab_multiple=32)
    assert weights["embedding"]["tokens"].shape[0] == 64
    computed = decoder64.logits(weights, options, decoder64.plain_batch(tokens))
    assert difference(computed[..., :61], logits) < TOLERANCE
    assert np.all(np.isneginf(computed[..., 61:]))
