"""Same numbers on every layout: loss and gradients equal the one-device run, for every feature that a plan can name.

The matrix covers every pair of values of its factors (not their product): each combination of two features runs on
some layout.
"""

from __future__ import annotations

import itertools
import zlib
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from tests.short_documents import into_documents
from tests.small_run import SmallRun, small, worst_difference

FACTORS: dict[str, tuple[Any, ...]] = {
    "replica": (1, 2),
    "fsdp": (1, 2, 4),
    "expert": (1, 2),
    "tensor": (1, 2, 4),
    "context": (1, 2, 4),
    "zero": (0, 1, 2, 3),
    "microbatches": (1, 2),
    "kv_heads": (8, 2),
    "packed": (True, False),
    "tied": (False, True),
    "remat": ("none", "selective", "full"),
    "dropout": (0.0, 0.1),
    "vocab": (64, 61),
    "family": ("llama", "gpt2", "qwen3", "mistral"),
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"z_loss": 1e-3},
    "gpt2": {
        "norm": "layernorm",
        "position": "learned",
        "activation": "gelu",
        "attention_bias": True,
        "mlp_bias": True,
        "max_positions": 64,
    },
    "qwen3": {"qk_norm": True, "rope_base": 1e6, "head_dim": 8},
    "mistral": {"window": 11, "activation": "relu2", "logit_softcap": 5.0, "attention_softcap": 3.0},
}

DEVICES = 8
TOLERANCE = 1e-5
"""max|difference| / max|reference| in float32, for the loss and for every gradient."""


def _fits(row: dict[str, Any]) -> bool:
    used = [row.get(axis, 1) for axis in ("replica", "fsdp", "expert", "tensor", "context")]
    rows_per_rank = 8 // (
        row.get("replica", 1) * row.get("fsdp", 1) * row.get("expert", 1) * row.get("microbatches", 1)
    )
    return int(np.prod(used)) <= DEVICES and rows_per_rank >= 1


def covering_rows(seed: int = 3) -> list[dict[str, Any]]:
    """Rows such that every feasible pair of values occurs in one; greedy and deterministic."""
    pairs = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(FACTORS, 2)
        for x in FACTORS[a]
        for y in FACTORS[b]
        if _fits({a: x, b: y})
    }
    draw, rows = np.random.default_rng(seed), []
    while pairs:
        best: dict[str, Any] = {}
        gained: set[frozenset[Any]] = set()
        for _ in range(60):
            first = sorted(pairs, key=lambda pair: sorted(map(repr, pair)))[int(draw.integers(len(pairs)))]
            row = dict(sorted(first))
            for name in draw.permutation([name for name in FACTORS if name not in row]):
                options = [value for value in FACTORS[name] if _fits({**row, name: value})]
                hits = [sum(frozenset([(name, v), item]) in pairs for item in row.items()) for v in options]
                row[name] = options[int(np.argmax(hits + draw.random(len(options)) / 2))]
            covered = {frozenset(two) for two in itertools.combinations(row.items(), 2)} & pairs
            if len(covered) > len(gained):
                best, gained = row, covered
        rows.append(best)
        pairs -= gained
    return rows


ROWS = covering_rows()


def config_of(row: dict[str, Any], **more: dict[str, Any]) -> Any:
    model = {name: row[name] for name in ("kv_heads", "tied", "dropout", "vocab")} | FAMILIES[row["family"]]
    axes = {name: row[name] for name in ("replica", "fsdp", "expert", "tensor", "context", "zero", "microbatches")}
    sections = {"model": model, "parallel": axes, "memory": {"remat": row["remat"]}, "data": {"packed": row["packed"]}}
    return small(**{name: sections.get(name, {}) | more.get(name, {}) for name in sections | more})


def lively_gradients(run: SmallRun) -> tuple[float, Any]:
    """Loss and gradients where everything counts: short documents, padding, no bias 0 and no norm scale 1."""
    rows = run.rows(0)
    documents = into_documents(rows, seed=7)
    if not run.config.data.packed:
        documents |= {name: rows[name] for name in ("segments", "positions")}
    state = run.step.initial_state()

    def moved(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if "bias" not in name and "norm" not in name:
            return leaf
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        value = np.asarray(leaf) + 0.3 * draw.standard_normal(leaf.shape).astype(np.float32)
        return jax.device_put(value, leaf.sharding)

    state = state._replace(master=jax.tree_util.tree_map_with_path(moved, state.master))
    loss, gradients = run.step.gradients(state, run.place(documents))
    return float(loss), jax.device_get(gradients)


@cache
def _reference(model: tuple[tuple[str, Any], ...]) -> tuple[float, Any, Any]:
    alone = {"replica": 1, "fsdp": 1, "expert": 1, "tensor": 1, "context": 1, "zero": 0, "microbatches": 1}
    run = SmallRun(config_of(dict(model) | alone | {"remat": "none"}))
    return *lively_gradients(run), jax.device_get(run.step.initial_state().master)


def reference(row: dict[str, Any]) -> tuple[float, Any, Any]:
    """Loss, gradients and initial weights of the same model on one device, nothing sharded, recomputed or split."""
    model = ("kv_heads", "packed", "tied", "dropout", "vocab", "family")
    return _reference(tuple((name, row[name]) for name in model))


def test_the_matrix_covers_every_feasible_pair():
    for (a, x), (b, y) in itertools.combinations([(n, v) for n, values in FACTORS.items() for v in values], 2):
        if a != b and _fits({a: x, b: y}):
            assert any(row[a] == x and row[b] == y for row in ROWS), f"{a}={x} with {b}={y}"


def _name(row: dict[str, Any]) -> str:
    axes = "-".join(
        f"{axis}{row[axis]}" for axis in ("replica", "fsdp", "expert", "tensor", "context") if row[axis] > 1
    )
    return f"{axes or 'one'}-zero{row['zero']}-{row['family']}-{row['remat']}"


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_loss_and_gradients_equal_one_device(row: dict[str, Any]):
    loss, gradients, weights = reference(row)
    run = SmallRun(config_of(row))
    initial = jax.device_get(run.step.initial_state().master)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, initial, weights))), "initial weights differ in some bit"
    found_loss, found = lively_gradients(run)
    assert abs(found_loss - loss) <= TOLERANCE * abs(loss)
    worst, leaf = worst_difference(found, gradients)
    assert worst <= TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"
