"""A configuration drawn around a golden's can be read, differs from it, and is the same with the same seed; the check
of its logits sees what differs."""

import json

import numpy as np
import pytest

from jaxpar.interop.config_json import differences, model_of
from jaxpar.interop.mapping.keys import HFConfig
from tests.goldens.check import COARSER, Result, accepted, chosen, coarser, difference, most, table, unlike
from tests.goldens.configurations import drawn
from tests.goldens.loading import FOLDER, NAMES
from tests.sentences import refused


@pytest.mark.matrix(quick=("deepseek_v3", "gemma3"), ci=3)
@pytest.mark.parametrize("name", NAMES)
def test_drawn_configurations(name: str):
    keys = json.loads((FOLDER / name / "config.json").read_text())
    golden = model_of(HFConfig("config.json", keys))[1]
    for seed in range(2):
        found, again = (drawn(keys, np.random.default_rng(seed), accepted) for _ in range(2))
        assert found == again and differences(model_of(HFConfig("config.json", found))[1], golden) != []


@pytest.mark.matrix(quick=("gemma4_dense",), ci=2)
@pytest.mark.parametrize("name", ["gemma4", "gemma4_dense", "gemma4_moe"])
def test_transformers_computes_drawn_configurations_of_gemma_4(name: str):
    """It has no inputs for tokens without a row, and refuses layers of one type with different heads."""
    keys, numbers = json.loads((FOLDER / name / "config.json").read_text()), set[int]()
    for seed in range(12):
        found = drawn(keys, np.random.default_rng(seed), accepted)
        assert found["vocab_size_per_layer_input"] >= found["vocab_size"]
        stated = {layer: found["per_layer_config"].get(str(layer)) for layer in range(found["num_hidden_layers"])}
        of_types = {(found["layer_types"][layer], str(value)) for layer, value in stated.items()}
        assert len(of_types) == len(set(found["layer_types"]))
        numbers.add(found["num_hidden_layers"])
    assert len(numbers) > 2


def test_drawn_configurations_of_kimi_linear_have_latent_attention():
    keys = json.loads((FOLDER / "kimi_linear" / "config.json").read_text())
    types = [drawn(keys, np.random.default_rng(seed), accepted)["layer_types"] for seed in range(12)]
    assert all("full_attention" in one for one in types) and any(one[0] == "linear_attention" for one in types)


@pytest.mark.parametrize(
    ("name", "sentence"), [("kimi_k2", "transformers has no class for kimi_k2"), ("lama", "there is no golden lama")]
)
def test_goldens_that_transformers_cannot_compute_are_refused(name: str, sentence: str):
    with refused(sentence):
        chosen(["llama", name])
    assert chosen(["llama"]) == ["llama"] and "kimi_k2" not in chosen([])


def test_logits_that_differ_by_more_than_the_tolerance_and_other_likeliest_tokens_are_told():
    wanted = np.random.default_rng(0).standard_normal((1, 5, 7))
    assert unlike(wanted * (1 + 1e-6), wanted, "length 5") == []
    [line] = unlike(wanted + 1e-4 * (wanted < 0), wanted, "length 5")
    assert "length 5: logits differ by" in line
    assert "other tokens are the likeliest" in unlike(-wanted, wanted, "length 5")[1]


def test_logits_that_are_no_numbers_are_told():
    assert coarser(COARSER * 0.5, 0.5, "bfloat16") == []
    assert "bfloat16: logits differ by nan" in coarser(float("nan"), 0.5, "bfloat16")[0]
    assert "bfloat16: logits differ by 3.0" in coarser(3.0, 0.5, "bfloat16")[0]
    wanted = np.ones((1, 2, 3))
    assert "length 2: logits differ by nan" in unlike(wanted * np.nan, wanted, "length 2")[0]
    assert np.isnan(most((1.0, float("nan")))) and most(()) == 0
    row = table({"llama": [Result(1e-6, 0.1, 0.1, False, False), Result(np.nan, np.nan, 0.1, False, False)]}, {})
    assert row.splitlines()[-1] == "| llama | 0 | 0 | 0 | nan | nan | 1.0e-01 | 0 |"


def test_a_token_with_other_experts_does_not_count_in_bfloat16_and_a_difference_of_all_tokens_does():
    wanted = np.random.default_rng(0).standard_normal((1, 5, 7))
    one, all_tokens = wanted.copy(), wanted * 1.1
    one[0, 3] *= -1
    assert difference(one, wanted) == 0 and 0.05 < difference(all_tokens, wanted) < 0.15


def test_the_table_has_the_largest_differences_of_a_family_and_how_many_models_are_wrong():
    results = {"llama": [Result(1e-6, 0.02, 0.03, True, False), Result(2e-6, 0.01, 0.01, True, True)]}
    lines = table(results, {"llama-0-0": [], "llama-0-1": [], "llama-0-2": ["missing"]}).splitlines()
    assert lines[-1] == "| llama | 3 | 2 | 1 | 2.0e-06 | 2.0e-02 | 3.0e-02 | 1 |"
