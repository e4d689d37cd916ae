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


def test_gradients_are_those_of_full_fine_tuning_projected():
    """With G the gradient of the merged matrix W + s A B: dA = s G B^T and dB = s A^T G, so that at full rank the
    gradient on the product, s (dA B + A dB), is s^2 (G B^T B + A A^T G)."""
    lora = LoraConfig(rank=32, alpha=16.0)
    run = SmallRun(adapted(lora, model={"layers": 2, "kv_heads": 4}))
    state = lively(run)
    loss, found = loss_and_gradients(run)
    scale, factors, frozen = 0.5, jax.device_get(state.master)["layers"]["all"], jax.device_get(state.frozen)
    merged: dict[str, Any] = {"attention": {}, "mlp": {}}
    products: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {"attention": {}, "mlp": {}}
    for part, own in products.items():
        for name in [name.removesuffix("_lora_a") for name in factors[part] if name.endswith("_a")]:
            w = frozen["layers"]["all"][part][name]
            a, b = factors[part][f"{name}_lora_a"], factors[part][f"{name}_lora_b"]
            own[name] = a.reshape(2, -1, 32), b.reshape(2, 32, -1)
            merged[part][name] = w + scale * (own[name][0] @ own[name][1]).reshape(w.shape)
    full = SmallRun(small(model={"layers": 2, "kv_heads": 4}))
    whole = merge(frozen, {"layers": {"all": merged}})
    wanted_loss, gradients = full.step.gradients(state_with(full.step, whole), full.batch(0))
    assert loss == pytest.approx(float(wanted_loss), rel=TOLERANCE)
    assert sum(map(len, products.values())) == 7
    for part, own in products.items():
        for name, (a, b) in own.items():
            g = np.asarray(gradients["layers"]["all"][part][name]).reshape(2, a.shape[1], -1)
            da, db = (
                found["layers"]["all"][part][f"{name}_{end}"].reshape(of.shape)
                for end, of in (("lora_a", a), ("lora_b", b))
            )
            at, bt = a.transpose(0, 2, 1), b.transpose(0, 2, 1)
            for what, got, wanted in (
                ("dA", da, scale * g @ bt),
                ("dB", db, scale * at @ g),
                ("the product", scale * (da @ b + a @ db), scale**2 * (g @ bt @ b + a @ at @ g)),
            ):
                assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max(), (part, name, what)


@pytest.mark.long
def test_experts_with_factors_are_the_merged_experts():
    """Each expert's matrix is W + s A B, with s = 2: loss, and gradients of the factors of the experts, from those of
    the merged matrices G: dA = s G B^T and dB = s A^T G."""
    lora, scale = LoraConfig(rank=8, alpha=16.0), 2.0
    model = {"layers": 2, "experts": ExpertsConfig(count=4, per_token=2, width=24, shared=1)}
    run = SmallRun(adapted(lora, model=model))
    state = lively(run)
    loss, found = loss_and_gradients(run)
    factors, frozen = jax.device_get((state.master, state.frozen))
    merged: dict[str, dict[str, np.ndarray]] = {}
    for part, own in factors["layers"]["all"].items():
        names = [name.removesuffix("_lora_a") for name in own if name.endswith("_a")]
        merged[part] = {name: frozen["layers"]["all"][part][name] for name in names}
        for name, w in merged[part].items():
            left, right = own[f"{name}_lora_a"], own[f"{name}_lora_b"]
            lead = left.shape[: left.ndim - 2] if left.ndim == 4 and w.ndim == 4 and part == "mlp" else left.shape[:1]
            left, right = left.reshape(*lead, -1, lora.rank), right.reshape(*lead, lora.rank, -1)
            merged[part][name] = w + scale * (left @ right).reshape(w.shape)
    full = SmallRun(small(model=model))
    wanted_loss, gradients = full.step.gradients(
        state_with(full.step, merge(frozen, {"layers": {"all": merged}})), full.batch(0)
    )
    assert loss == pytest.approx(float(wanted_loss), rel=TOLERANCE)
    own, checked = factors["layers"]["all"]["mlp"], 0
    for name in ("up", "gate", "down"):
        g, a, b = np.asarray(gradients["layers"]["all"]["mlp"][name]), own[f"{name}_lora_a"], own[f"{name}_lora_b"]
        assert a.shape == (2, 4, g.shape[2], 8), "each expert has factors of its own"
        for end, wanted in (("a", scale * g @ b.swapaxes(2, 3)), ("b", scale * a.swapaxes(2, 3) @ g)):
            got = found["layers"]["all"]["mlp"][f"{name}_lora_{end}"]
            assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max(), (name, end)
            checked += 1
    assert checked == 6


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
