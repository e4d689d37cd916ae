"""Low-rank factors: their gradients are those of full fine-tuning, projected; on every layout the same numbers."""

import zlib
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config import Config, LoraConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import shardings
from jaxpar.mesh.parameters import merge
from jaxpar.mesh.rules import mesh_axes_of
from tests.given_weights import state_with
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity import factor_layouts
from tests.training.parity.one_device import TOLERANCE, assert_close


def adapted(lora: LoraConfig, **sections: dict[str, Any]) -> Config:
    """The small decoder with factors. A step alone opens no model: its frozen weights are drawn."""
    return replace(small(run={"init_from": "not opened"}, **sections), lora=lora)


def lively(run: SmallRun) -> TrainState:
    """The state before the first step, but with factors of which none is zero: the same on every layout."""

    def drawn(path: Any, weight: np.ndarray) -> np.ndarray:
        draws = np.random.default_rng(zlib.crc32(jax.tree_util.keystr(path).encode()))
        return (0.1 * draws.standard_normal(weight.shape)).astype(np.float32)

    state = run.step.residency.initial_state()
    values = run.by_row(jax.tree_util.tree_map_with_path(drawn, run.by_layer(state.master)))
    placed = jax.tree.map(jax.device_put, values, shardings(run.step.mesh, run.step.layout.master))
    return state._replace(master=placed)


def loss_and_gradients(run: SmallRun) -> tuple[float, Any]:
    loss, gradients = run.step.gradients(lively(run), run.batch(0))
    return float(loss), run.by_layer(gradients)


MODELS: dict[str, tuple[LoraConfig, dict[str, Any], int]] = {
    "dense": (LoraConfig(rank=32, alpha=16.0), {"layers": 2, "kv_heads": 4}, 7),
    "experts": (
        LoraConfig(rank=8, alpha=16.0), {"layers": 2, "experts": ExpertsConfig(4, per_token=2, width=24, shared=1)}, 10,
    ),
}  # fmt: skip
"""Factors, a model, and how many of its matrices have some."""


@pytest.mark.parametrize("name", ["dense", pytest.param("experts", marks=pytest.mark.long)])
def test_gradients_are_those_of_full_fine_tuning_projected(name: str):
    """With G the gradient of the merged matrix W + s A B, of each expert: dA = s G B^T and dB = s A^T G, so that the
    gradient on the product, s (dA B + A dB), is s^2 (G B^T B + A A^T G)."""
    lora, model, count = MODELS[name]
    run, scale = SmallRun(adapted(lora, model=model)), lora.alpha / lora.rank
    state = lively(run)
    loss, found = loss_and_gradients(run)
    factors, frozen = jax.device_get((state.master["layers"]["all"], state.frozen))
    merged: dict[str, dict[str, np.ndarray]] = {part: {} for part in factors}
    matrices: list[tuple[str, str, np.ndarray, np.ndarray]] = []
    for part, own in factors.items():
        for matrix in [key.removesuffix("_lora_a") for key in own if key.endswith("_a")]:
            a, b = own[f"{matrix}_lora_a"], own[f"{matrix}_lora_b"]
            stacked = a.shape[: 2 if name == "experts" and matrix in ("up", "gate", "down") else 1]
            assert stacked in ((2,), (2, 4)), "each expert has factors of its own"
            a, b = a.reshape(*stacked, -1, lora.rank), b.reshape(*stacked, lora.rank, -1)
            w = frozen["layers"]["all"][part][matrix]
            merged[part][matrix] = w + scale * (a @ b).reshape(w.shape)
            matrices.append((part, matrix, a, b))
    assert len(matrices) == count
    full = SmallRun(small(model=model))
    whole = state_with(full.step, merge(frozen, {"layers": {"all": merged}}))
    wanted_loss, gradients = full.step.gradients(whole, full.batch(0))
    assert loss == pytest.approx(float(wanted_loss), rel=TOLERANCE)
    for part, matrix, a, b in matrices:
        g = np.asarray(gradients["layers"]["all"][part][matrix]).reshape(*a.shape[:-1], -1)
        of_factors = found["layers"]["all"][part]
        da, db = (of_factors[f"{matrix}_lora_{end}"].reshape(of.shape) for end, of in (("a", a), ("b", b)))
        at, bt = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
        for what, got, wanted in (
            ("dA", da, scale * g @ bt),
            ("dB", db, scale * at @ g),
            ("the product", scale * (da @ b + a @ db), scale**2 * (g @ bt @ b + a @ at @ g)),
        ):
            assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max(), (part, matrix, what)


LAYOUTS = factor_layouts.LAYOUTS | {
    "stages that share the vocabulary": {
        "parallel": {"pipe": 2, "tensor": 2, "microbatches": 2, "pipe_ends": "shared"}, "model": {"tied": True}
    },
    "experts": {
        "parallel": {"expert": 2, "tensor": 2, "fsdp": 2},
        "model": {"experts": ExpertsConfig(count=4, per_token=2, width=24, shared=1)},
    },
    "held chunks": {
        "parallel": {"pipe": 2, "fsdp": 2, "microbatches": 4, "schedule": "breadth-first", "virtual_stages": 2},
        "model": {"layers": 4},
    },
    "rows of the embedding": {
        "parallel": {"fsdp": 4, "microbatches": 2, "overlap": {"embedding_messages": "rows"}},
    },
    "rows of the embedding, state over replicas": {
        "parallel": {
            "replica": 2, "fsdp": 2, "tensor": 2,
            "overlap": {"embedding_messages": "rows", "shard_state_over_replicas": True},
        },
    },
    "state over replicas": {
        "parallel": {"replica": 2, "fsdp": 2, "microbatches": 2, "overlap": {"shard_state_over_replicas": True}},
    },
}  # fmt: skip


@pytest.mark.matrix(quick=(), ci=2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_the_gradients_of_one_device(layout: str):
    sections, lora = LAYOUTS[layout], LoraConfig(rank=4, alpha=4.0)
    wanted_loss, wanted = loss_and_gradients(SmallRun(adapted(lora, model=sections.get("model", {}))))
    run = SmallRun(adapted(lora, **sections))
    loss, gradients = loss_and_gradients(run)
    overlap = sections.get("parallel", {}).get("overlap", {})
    if "embedding_messages" in overlap:
        assert run.step.layout.plan.embedding_messages.name == overlap["embedding_messages"]
        assert "embedding" not in gradients
    if overlap.get("shard_state_over_replicas"):
        state = jax.tree.leaves(run.step.layout.master, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        assert any("replica" in mesh_axes_of(where) for where in state)
    assert_close(loss, wanted_loss, gradients, wanted)


@pytest.mark.long
def test_steps_change_the_factors_and_no_bit_of_the_other_weights():
    """On a pipeline, in bfloat16, which the frozen weights are stored in, with weight decay and a moving average."""
    sections = {"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2}, "precision": {"compute": "bfloat16"}}
    run = SmallRun(adapted(LoraConfig(rank=4, targets=("query", "down")), optimizer={"ema": 0.9}, **sections))
    state = run.step.residency.initial_state()
    frozen, master = jax.device_get((state.frozen, state.master))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(frozen)} == {"bfloat16"}
    assert sorted(master["layers"]["all"]["mlp"]) == ["down_lora_a", "down_lora_b"]
    for step in range(3):
        state, _ = run.step.train(state, run.batch(step), run.step.arguments)
    assert_same_bits(jax.device_get(state.frozen), frozen)
    for before, after in zip(jax.tree.leaves(master), jax.tree.leaves(jax.device_get(state.master)), strict=True):
        assert not np.array_equal(before, after)


def test_a_schedule_that_splits_the_backward_is_refused():
    with refused("parallel.schedule", "zb-h1", "lora.rank", "1f1b"):
        SmallRun(adapted(LoraConfig(rank=4), parallel={"pipe": 2, "microbatches": 2, "schedule": "zb-h1"}))
