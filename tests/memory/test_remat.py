"""Remat presets as maps, and what they make a training step run again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from jaxpar.memory.remat import PRESETS, remat_map, remat_policy
from jaxpar.model.activations import ACTIVATIONS
from tests.small_run import SmallRun, small
from tests.traced import operations


@pytest.mark.parametrize(
    ("preset", "recomputed"),
    [
        ("none", set()),
        ("selective", {"attention_input", "mlp_input", "mlp_hidden"}),
        ("full", set(ACTIVATIONS)),
    ],
)
def test_a_preset_says_what_happens_to_every_activation(preset: str, recomputed: set[str]):
    treatments = remat_map(preset, ACTIVATIONS)
    assert list(treatments) == list(ACTIVATIONS)
    assert {name for name, treatment in treatments.items() if treatment == "recompute"} == recomputed
    assert (remat_policy(treatments) is None) == (not recomputed)


def test_presets_are_those_that_a_configuration_can_name():
    assert set(PRESETS) == {"none", "selective", "full"}


FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "llama": ({"tied": True}, 8),
    "qwen3": ({"qk_norm": True}, 8),
    "gpt2": (
        {"norm": "layernorm", "position": "learned", "activation": "gelu", "attention_bias": True, "mlp_bias": True},
        7,
    ),
    "mistral": ({"activation": "relu2", "window": 5, "attention_softcap": 3.0}, 7),
}
"""Model options, and a layer's matmuls whose output a gradient needs: query, key, value, the two of attention, its
output, (gate) and up. `down` ends the layer."""


def step_counts(remat: str, model: dict[str, Any]) -> Counter[str]:
    """How often each operation runs in a training step of two layers."""
    run = SmallRun(small(model={"layers": 2} | model, memory={"remat": remat}))
    counts: Counter[str] = Counter()
    for equation, times in operations(run.step.train, run.step.abstract_state(), run.step.abstract_batch()):
        counts[equation.primitive.name] += times
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_selective_runs_no_matmul_twice_and_full_runs_all_but_the_last_again(family: str):
    model, needed = FAMILIES[family]
    none, selective, full = (step_counts(remat, model) for remat in ("none", "selective", "full"))
    assert selective["dot_general"] == none["dot_general"]
    assert full["dot_general"] == none["dot_general"] + 2 * needed
    # The elementwise work that is cheap to bring back: the norms' rsqrt, twice a layer.
    assert selective["rsqrt"] > none["rsqrt"]
