"""FP8 matmuls in whole runs: checkpoints, adapters, preferences, and what an evaluation or generation multiplies in."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, LoraConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.generation.layout import generation_config
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.training.run_folder.same_run import forbidden_changes
from tests.data.preference_files import prepared_pairs
from tests.same_bits import apart, assert_same_bits
from tests.small_run import SmallRun, small
from tests.training.parity.test_lora import adapted, lively
from tests.training.parity.test_preferences import batch_of, of_pairs
from tests.training.runs import fit, losses, run_config, saved_state

EXCEPTED = MatmulOptions(exclude=("head", "router"), first_layers=0, last_layers=0)
MODEL: dict[str, Any] = {"layers": 2, "embed": 32, "mlp": 64, "kv_heads": 8}
SPLIT = {"fsdp": 2, "tensor": 2, "context": 2, "microbatches": 2}


def fp8(recipe: str, **other: Any) -> dict[str, Any]:
    return {"matmul": recipe, "matmul_options": replace(EXCEPTED, **other)}


HISTORIES: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, int]]] = {
    "dense": (MODEL, {"fsdp": 2, "tensor": 2}, {"pipe": 2, "context": 2, "microbatches": 2}),
    "experts": (
        MODEL | {"experts": ExpertsConfig(count=4, per_token=2, router="hash", width=32)},
        {"expert": 2, "tensor": 2},
        {"pipe": 2, "expert": 2, "microbatches": 2},
    ),
}
"""By what is multiplied: a model, the axes of a mesh, and those of another one."""


@pytest.mark.long
@pytest.mark.parametrize("name", HISTORIES)
def test_a_run_goes_on_with_its_history_bit_for_bit_and_on_another_mesh(name: str, tmp_path: Path):
    """The window of magnitudes is restored with the weights: on the same mesh the run has the bits of one that was not
    interrupted, and on another one it starts from the same magnitudes."""
    model, first, other = HISTORIES[name]

    def config(name: str, steps: int, **parallel: int) -> Config:
        sections = {"run": {"name": name}, "checkpoint": {"every": 2, "keep_last": 9}}
        precision = fp8("fp8_delayed", history=3)
        return run_config(tmp_path, steps, model=model, precision=precision, parallel=parallel, **sections)

    fit(config("whole", 4, **first))
    for name, rest in (("parts", first), ("moved", other)):
        fit(config(name, 2, **first))
        fit(config(name, 4, **rest))
    whole, parts, moved = (saved_state(config(name, 4, **first), 4) for name in ("whole", "parts", "moved"))
    assert_same_bits(parts, whole)
    (_, _, oldest), before = moved.carried["matmuls"], saved_state(config("moved", 2, **first), 2).carried["matmuls"]
    np.testing.assert_array_equal(oldest, before[0])
    assert (before[:2] > 0).all() and not before[2].any()
    wanted, found = losses(config("whole", 4, **first)), losses(config("moved", 4, **first))
    assert all(found[step] == pytest.approx(loss, rel=1e-4) for step, loss in wanted.items())


REMEDIES: dict[str, tuple[dict[str, Any], bool]] = {
    "recipe": (fp8("fp8_current"), False),
    "history": (fp8("fp8_delayed", history=5), False),
    "layers": (fp8("fp8_delayed", history=3, first_layers=1), True),
    "groups": (fp8("fp8_delayed", history=3, exclude=("mlp_out",)), False),
}
"""Hints for a run that warns of its FP8 codes, and whether the window of magnitudes is still that of its tensors."""


def test_all_keys_of_matmuls_may_change_in_a_run_and_other_precision_may_not():
    old = small(precision={"matmul": None})
    assert forbidden_changes(old, small(precision=fp8("fp8_block", backend="xla"))) == []
    assert forbidden_changes(old, small(precision=fp8("fp8_delayed", history=4))) == []
    assert forbidden_changes(old, small(precision={"moments": "bfloat16"})) == [
        "precision.moments: float32 -> bfloat16"
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", REMEDIES)
def test_a_run_goes_on_with_a_remedy(name: str, tmp_path: Path):
    changed, same_window = REMEDIES[name]
    precision = fp8("fp8_delayed", history=3)
    config = lambda steps, own: run_config(tmp_path, steps, model=MODEL, precision=own, parallel={"fsdp": 2})
    fit(config(1, precision))
    had = saved_state(config(1, precision), 1).carried["matmuls"]
    after = config(2, precision | changed)
    _, recorded = fit(after)
    found = saved_state(after, 2).carried.get("matmuls")
    assert [record.step for record in recorded.records] == [2]
    assert any("window" in text for text in recorded.messages) == (not same_window and name != "recipe")
    if name == "recipe":
        assert found is None
        return
    assert found.shape == (5 if name == "history" else 3, 2, len(tensor_names(after)))
    if same_window:
        np.testing.assert_array_equal(found[1], had[0])
    else:
        assert found[0].any() and not found[1:].any()


@pytest.mark.long
def test_a_run_returns_to_scales_of_earlier_steps_with_an_empty_window(tmp_path: Path):
    of = lambda steps, own: run_config(tmp_path, steps, model=MODEL, precision=own, parallel={"fsdp": 2})
    fit(of(1, {}))
    _, recorded = fit(of(2, fp8("fp8_delayed", history=3)))
    assert any("begins anew" in text for text in recorded.messages)


@pytest.mark.long
def test_adapters_are_exact_beside_frozen_matrices_in_fp8():
    """Gradients of the factors change by what the rounding of frozen matrices changes, on layouts alike; factors whose
    second is zero add nothing."""
    found: dict[str, tuple[float, Any]] = {}
    for name, recipe, parallel in (
        ("one", "fp8_current", {"microbatches": 2}),
        ("split", "fp8_current", SPLIT),
        ("exact", None, {"microbatches": 2}),
    ):
        precision = {} if recipe is None else fp8(recipe)
        run = SmallRun(adapted(LoraConfig(rank=4), model=MODEL, parallel=parallel, precision=precision))
        loss, gradients = run.step.gradients(lively(run), run.batch(0))
        found[name] = float(loss), run.by_layer(gradients)
        if name == "one":
            zeros = float(run.step.gradients(run.step.residency.initial_state(), run.batch(0))[0])
    base = SmallRun(small(model=MODEL, parallel={"microbatches": 2}, precision=fp8("fp8_current")))
    assert float(base.loss_and_gradients()[0]) == zeros
    rounding = apart(found["one"][1], found["exact"][1])
    assert 0.03 < rounding < 0.2 and apart(found["split"][1], found["one"][1]) < rounding / 3
    assert found["split"][0] == pytest.approx(found["one"][0], rel=1e-4)


@pytest.mark.long
def test_preferences_are_learnt_alike_on_every_layout(tmp_path: Path):
    tokens = str(prepared_pairs(tmp_path / "pairs").path)
    found = []
    for recipe, parallel in (
        ("fp8_current", {"fsdp": 1}),
        ("fp8_current", {"fsdp": 2, "tensor": 2}),
        (None, {"fsdp": 1}),
    ):
        config = of_pairs(tokens, parallel=parallel, precision={} if recipe is None else fp8(recipe))
        run = SmallRun(replace(config, model=replace(config.model, mlp=64, kv_heads=8)))
        loss, gradients = run.step.gradients(run.step.residency.initial_state(), run.place(batch_of(run)))
        found.append((float(loss), run.by_layer(jax.device_get(gradients))))
    (one, of_one), (split, of_split), (_, of_exact) = found
    rounding = apart(of_one, of_exact)
    assert split == pytest.approx(one, rel=1e-4)
    assert 0.02 < rounding < 0.3 and apart(of_split, of_one) < rounding / 3


def test_generation_multiplies_in_the_compute_dtype_and_sends_exact_tokens():
    precision = fp8("fp8_delayed") | {"compute": "bfloat16"}
    config = small(precision=precision, parallel={"quantized": {"tokens": "float8_e4m3fn"}})
    config = generation_config(config, rows=2, tokens=16, zero=0)
    found = config.precision.matmul, config.parallel.quantized.tokens, config.precision.compute
    assert found == (None, None, "bfloat16")
