"""Training on a sharded mesh is training: it follows a plain float64 trainer that shares no code with jaxpar.

On the layout everything is split: batch, weights and optimizer over fsdp (ZeRO-3), heads and vocabulary over tensor,
with fewer KV heads than ranks, the sequence over context. Rows hold many short documents, some padding, and nothing
that counts in one of them.
"""

from dataclasses import asdict
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.residual import AltUpConfig, ResidualConfig
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.reading.options import options_of
from tests.given_weights import state_with
from tests.reference import decoder64, trainer64
from tests.reference.options import DEFAULTS, spelled_out
from tests.reference.small import random_weights
from tests.short_documents import into_documents
from tests.small_run import SmallRun, small, worst_difference

SPLIT = {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}
GPT2 = {
    "norm": "layernorm", "position": "learned", "activation": "gelu", "attention_bias": True, "mlp_bias": True,
    "tied": True, "max_positions": 32,
}  # fmt: skip
STEPS = 20
SHAPE = {"layers": 2, "vocab": 61, "kv_heads": 1}

TOLERANCE = 1e-5
"""max|difference| / max|reference| of losses, gradients and norms in float32; about 1e-6 is what there is."""

TRAINED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama_adamw": ({"z_loss": 1e-3}, {}),
    "llama_tied_adamw": ({"tied": True, "qk_norm": True}, {"schedule": "wsd"}),
    # Without rotation the gradient of a key bias is zero but for rounding, which Adam would blow up to full steps.
    "gpt2_adamw": (GPT2 | {"kv_heads": 2}, {"options": {"epsilon": 1e-4}}),
    "llama_muon": ({}, {"name": "muon", "matrix_learning_rate": 0.01}),
}
"""Model and optimizer options that differ from `SHAPE` and `OPTIMIZER`."""

OPTIMIZER = {
    "learning_rate": 3e-3, "weight_decay": 0.1, "clip_norm": 0.5, "warmup_steps": 4, "options": {"epsilon": 1e-6},
}  # fmt: skip


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("name", TRAINED)
def test_twenty_steps_equal_the_float64_trainer(name: str):
    model, optimizer = TRAINED[name]
    run = SmallRun(small(model=SHAPE | model, parallel=SPLIT, optimizer=OPTIMIZER | optimizer, run={"steps": STEPS}))
    batches = [into_documents(run.rows(step), step) for step in range(STEPS)]
    state = run.step.residency.initial_state()
    initial, losses, norms = jax.device_get(state.master), [], []
    for rows in batches:
        state, metrics = run.step.train(state, run.place(rows), run.step.arguments)
        losses.append(float(metrics.loss))
        norms.append(float(metrics.grad_norm))

    options = asdict(run.config.model)
    steps = asdict(run.config.optimizer) | vars(options_of(run.config.optimizer)) | {"decay_steps": STEPS}
    wanted, wanted_losses, wanted_norms = trainer64.train(initial, options, steps, batches)
    assert min(wanted_norms) > steps["clip_norm"], "every step should be clipped"
    worst, leaf = worst_difference(jax.device_get(state.master), wanted)
    assert worst <= 1e-4, f"{leaf} differs by {worst:.1e}"
    np.testing.assert_allclose(norms, wanted_norms, rtol=TOLERANCE)
    if options["z_loss"]:  # The step reports the likelihood alone, the reference what it differentiates.
        wanted_losses = [decoder64.loss(initial, options | {"z_loss": 0.0}, batches[0])]
    np.testing.assert_allclose(losses[: len(wanted_losses)], wanted_losses, rtol=TOLERANCE)


OPTIONS: dict[str, dict[str, Any]] = {
    "window_biases": {
        "window": 3, "attention_softcap": 1.5, "rope": RopeConfig(scaling="linear", factor=3.0), "attention_bias": True,
        "mlp_bias": True, "kv_heads": 4,
    },
    "llama3_scaling": {
        "rope": RopeConfig(base=20.0, partial=0.5, scaling="llama3", factor=4.0, original_length=12), "qk_norm": True,
        "head_dim": 8,
    },
    "capped_logits": {"logit_softcap": 2.0, "z_loss": 1e-2, "activation": "relu2", "norm_epsilon": 0.1, "tied": True},
    "gpt2": GPT2,
    "olmo2": {"norm_placement": "post", "qk_norm": "projection", "norm_epsilon": 0.1},
    "hunyuan": {"qk_norm": "rotated", "norm_epsilon": 0.1},
    "llama4": {
        "chunk": 5, "attention_temperature": AttentionTemperature(3, 0.4, 1), "qk_norm": "unweighted",
        "norm_epsilon": 0.1,
    },
    "minimax": {"norm_placement": "stream", "residual": ResidualConfig(3.0, 0.75, 2.5, 1.25)},
    "command_r": {
        "norm": "unbiased_layernorm", "norm_placement": "parallel", "qk_norm": "layernorm", "attention_bias": True,
        "norm_epsilon": 0.1, "logit_divisor": 0.25,
    },
    "neox": {
        "norm": "layernorm", "norm_placement": "parallel_norms", "activation": "exact_gelu",
        "residual": ResidualConfig(3.0, 0.75, 2.5, 1.25),
    },
    "olmo": {
        "norm": "weightless_layernorm", "qkv_clip": 0.5, "attention_temperature": AttentionTemperature(3, 0.5),
    },
    "apertus": {"activation": "xielu", "qk_norm": True, "tied": True},
    "phi4_mini": {
        "rope": RopeConfig(
            20.0, scaling="longrope", factor=4.0, original_length=12, short_factors=(1.0, 1.0), long_factors=(1.5, 2.5)
        ),
    },
    # Scores grow with the square of the last factor: with 1.5, half an ulp of the weights moves the exact gradients, in
    # float64, by 1e-5.
    "qwen2": {
        "attention_bias": "qkv", "head_dim": 8, "rope": RopeConfig(
            100.0, scaling="yarn", factor=4.0, original_length=40, beta_fast=3.0, truncate=False, attention_factor=1.1
        ),
    },
    "gemma3n": {
        "altup": AltUpConfig(3, 1), "laurel_rank": 6, "norm_placement": "sandwich", "activation": "geglu",
        "activation_sparsity": 0.7, "value_norm": True, "norm_epsilon": 0.1,
    },
    "gemma": {
        "norm_placement": "sandwich", "norm": "zero_centered_rmsnorm", "activation": "geglu", "embedding_scale": True,
        "attention_scale": 1.1, "attention_softcap": 3.0, "logit_softcap": 4.0, "qk_norm": True, "tied": True,
        "logit_divisor": 0.25,
    },
}  # fmt: skip
NEUTRAL = {
    "window": None, "chunk": None, "attention_temperature": None,
    "attention_softcap": None, "logit_softcap": None, "rope_scaling": "none", "qk_norm": False,
    "z_loss": 0.0, "norm_epsilon": 1e-5, "attention_bias": False, "mlp_bias": False,
    "embedding_scale": False, "attention_scale": None, "norm": "rmsnorm", "rope_base": 1e4, "rope_factor": 2.0,
    "altup": None, "activation_sparsity": 0.0, "laurel_rank": None, "value_norm": False,
    "qkv_clip": None, "rope_partial": 1.0, "residual_mixer_stream": 1.0,
    "residual_mixer_output": 1.0, "residual_mlp_stream": 1.0, "residual_mlp_output": 1.0, "logit_divisor": 1.0,
}  # fmt: skip


def option_case(name: str) -> tuple[SmallRun, dict[str, Any], Any, dict[str, np.ndarray]]:
    """The run, its model options, weights whose norms and biases are not at their neutral values, and a batch."""
    run = SmallRun(small(model=SHAPE | OPTIONS[name], parallel=SPLIT))
    options = asdict(run.config.model)
    weights = random_weights(options, padded_vocab=64, positions=options["max_positions"])
    return run, options, weights, into_documents(run.rows(0), 0)


@pytest.mark.matrix(quick=1, ci=1)
@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradients_of_options_equal_float64(name: str):
    run, options, weights, rows = option_case(name)
    loss, gradients = jax.device_get(run.step.gradients(state_with(run.step, weights), run.place(rows)))
    wanted_loss, wanted = decoder64.loss_and_gradients(weights, options, rows)
    if options["z_loss"]:
        wanted_loss = decoder64.loss(weights, options | {"z_loss": 0.0}, rows)
    assert abs(float(loss) - wanted_loss) <= TOLERANCE * wanted_loss
    if options["position"] == "learned":  # Zero but for rounding: it adds the same to all scores of a query.
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
        assert np.abs(gradients["layers"]["all"]["attention"].pop("key_bias")).max() <= 1e-6 * largest
        wanted["layers"]["all"]["attention"].pop("key_bias")
    worst, leaf = worst_difference(gradients, wanted)
    assert worst <= TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_of_these_options_changes_the_loss_by_far_more_than_the_tolerance(name: str):
    _, options, weights, rows = option_case(name)
    loss = decoder64.loss(weights, options, rows)
    others = NEUTRAL | {"activation": "gelu" if options["activation"] == "relu2" else "relu2"}
    if options["norm_placement"] in ("stream", "parallel_norms"):  # other placements have other weights
        others["norm_placement"] = "pre"
    if options["norm"].endswith("layernorm"):
        del others["norm"]
    options = spelled_out(options)
    inside = {
        key for key, usual in DEFAULTS.items() if key.startswith(("rope_", "residual_")) and options[key] != usual
    }
    for option in (OPTIONS[name].keys() | inside) & others.keys():
        without = decoder64.loss(weights, options | {option: others[option]}, rows)
        assert abs(without - loss) > 100 * TOLERANCE * loss, option
