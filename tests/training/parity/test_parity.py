"""Same numbers on every layout: loss and gradients equal the one-device run, for every feature that a plan can name.

The matrix covers every pair of values of its factors (not their product): each combination of two features runs on
some layout.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.covering import covering_rows
from tests.nonzero_gradients import FAMILIES, HYBRID, gemma
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import TOLERANCE, assert_equals_one_device

FACTORS: dict[str, tuple[Any, ...]] = {
    "replica": (1, 2),
    "fsdp": (1, 2, 4),
    "expert": (1, 2),
    "tensor": (1, 2, 4),
    "context": (1, 2, 4),
    "context_strategy": ("allgather", "ring", "ulysses", "usp"),
    "context_order": ("auto", "contiguous", "striped"),
    "zero": (0, 1, 2, 3),
    "microbatches": (1, 2),
    "kv_heads": (8, 2),
    "packed": (True, False),
    "tied": (False, True),
    "remat": ("none", "gemm_last", "selective", "full", "per layer", "offload", "half offloaded"),
    "optimizer_offload": ("none", "host"),
    "loss_tiles": (1, 3),
    "mlp_tiles": (1, 3),
    "dropout": (0.0, 0.1),
    "vocab": (64, 61),
    "family": ("llama", "gpt2", "qwen3", "mistral", "qwen2", "olmo2", "gemma"),
}

REMATS: dict[str, dict[str, Any]] = {
    "per layer": {"remat": [{"layers": 0, "preset": "full"}, {"layers": 1, "preset": "none", "query": "recompute"}]},
    "offload": {"remat": {"preset": "full", "layer_input": "offload", "value": "offload"}},
    "half offloaded": {"offload_fraction": 0.5},
}
"""`memory` under the names that are no presets."""

DEVICES = 8


def _fits(row: dict[str, Any]) -> bool:
    strategy, order = row.get("context_strategy"), row.get("context_order", "auto")
    context = row.get("context", {"ulysses": 2, "usp": 4}.get(strategy or "", 1))
    used = [context, *(row.get(axis, 1) for axis in ("replica", "fsdp", "expert", "tensor"))]
    rows_per_rank = 8 // (
        row.get("replica", 1) * row.get("fsdp", 1) * row.get("expert", 1) * row.get("microbatches", 1)
    )
    if strategy == "ulysses" and (order == "striped" or context == 1):
        return False
    if strategy == "usp" and (context != 4 or row.get("tensor", 1) == 4):
        return False  # groups of 2 in a ring of 2, of more than one head
    return int(np.prod(used)) <= DEVICES and rows_per_rank >= 1


_HYBRID = {name: values[0] for name, values in FACTORS.items()} | {"family": "hybrid", "vocab": 61, "kv_heads": 2}
_OTHER = {name: values[0] for name, values in FACTORS.items()} | {"family": "cohere", "kv_heads": 2}
ROWS = [
    *covering_rows(FACTORS, _fits, seed=3),
    _HYBRID | {"tensor": 2, "context": 4, "context_strategy": "ring", "zero": 1, "microbatches": 2, "remat": "full"},
    _HYBRID | {"fsdp": 2, "expert": 2, "context": 2, "zero": 3, "packed": False, "remat": "selective", "loss_tiles": 3},
    _HYBRID
    | {"replica": 2, "tensor": 2, "context": 2, "context_strategy": "ulysses", "zero": 2, "remat": "half offloaded"}
    | {"optimizer_offload": "host", "dropout": 0.1, "mlp_tiles": 3},
    _OTHER | {"tensor": 4, "context": 2, "context_strategy": "ring", "zero": 1, "dropout": 0.1, "remat": "selective"},
    _OTHER | {"family": "olmo", "fsdp": 2, "tensor": 2, "context": 2, "zero": 3, "remat": "gemm_last", "mlp_tiles": 3},
    _OTHER | {"family": "gemma3n", "tensor": 4, "fsdp": 2, "zero": 3, "dropout": 0.1, "remat": "full", "mlp_tiles": 3},
    _OTHER
    | {"family": "gemma3n", "context": 2, "context_strategy": "ring", "replica": 2, "zero": 1, "remat": "offload"},
]
"""Neither a hybrid, which takes no striped order, nor a model of parallel blocks or of several residual streams is a
value of a factor."""


def config_of(row: dict[str, Any], **more: dict[str, Any]) -> Any:
    others = {"gemma": gemma(layers=3), "hybrid": HYBRID}
    family = others[row["family"]] if row["family"] in others else FAMILIES[row["family"]]
    model = {name: row[name] for name in ("kv_heads", "tied", "dropout", "vocab")} | family
    layout = ("replica", "fsdp", "expert", "tensor", "context", "context_strategy", "context_order")
    axes = {name: row[name] for name in (*layout, "zero", "microbatches")}
    sections = {
        "model": model,
        "parallel": axes,
        "memory": {name: row[name] for name in ("optimizer_offload", "loss_tiles", "mlp_tiles")}
        | REMATS.get(row["remat"], {"remat": row["remat"]}),
        "data": {"packed": row["packed"]},
    }
    return small(**{name: sections.get(name, {}) | more.get(name, {}) for name in sections | more})


def alone(row: dict[str, Any]) -> Any:
    """The configuration of the same model on one device, nothing sharded, recomputed or split."""
    axes = dict.fromkeys(("replica", "fsdp", "expert", "tensor", "context", "microbatches"), 1)
    axes |= {"context_strategy": "auto", "context_order": "auto", "zero": 0}
    return config_of(row | axes | {"loss_tiles": 1, "mlp_tiles": 1, "optimizer_offload": "none", "remat": "none"})


def _name(row: dict[str, Any]) -> str:
    axes = "-".join(
        f"{axis}{row[axis]}" for axis in ("replica", "fsdp", "expert", "tensor", "context") if row[axis] > 1
    )
    context = f"-{row['context_strategy']}-{row['context_order']}" if row["context"] > 1 else ""
    return f"{axes or 'one'}{context}-zero{row['zero']}-{row['family']}-{row['remat']}"


@pytest.mark.matrix(quick=("tensor2-context4-ring-striped-zero1-olmo2-selective",), ci=4)
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_loss_and_gradients_equal_one_device(row: dict[str, Any]):
    assert_equals_one_device(SmallRun(config_of(row)), alone(row))


TIERS: dict[str, dict[str, dict[str, Any]]] = {
    "auto, state in files": {
        "parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3},
        "memory": {"remat": "auto", "optimizer_offload": "file"},
    },
    "moments in 8 bits, state on the host": {
        "parallel": {"replica": 2, "fsdp": 2, "expert": 2, "zero": 1},
        "precision": {"moments": "int8"},
        "memory": {"optimizer_offload": "host"},
    },
    "moments in 16 bits, state in files, pipeline": {
        "parallel": {"pipe": 2, "fsdp": 2, "zero": 2, "microbatches": 2},
        "precision": {"moments": "bfloat16"},
        "memory": {"remat": "auto", "optimizer_offload": "file"},
    },
    "layers on the host": {
        "parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3, "microbatches": 2},
        "memory": {"optimizer_offload": "host", "weights_offload": "host"},
    },
}
"""What the matrix does not have, because gradients do not depend on it: they are seen in the losses of steps."""


@cache
def _losses(moments: str) -> list[float]:
    """Of one device, with its state there."""
    return _losses_of(small(model=WIDE, precision={"moments": moments}))


def _losses_of(config: Any) -> list[float]:
    return [float(metrics.loss) for metrics in SmallRun(config).advance(3)[1]]


WIDE = {"layers": 2, "embed": 64, "mlp": 128}
"""Matrices have blocks of 8 bits in it."""


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", TIERS)
def test_losses_of_steps_equal_one_device_wherever_the_state_is_stored(name: str, tmp_path: Path):
    """Updates may round a moment the other way on another layout, by a step of its dtype at most."""
    sections = TIERS[name] | {"model": WIDE, "run": {"dir": str(tmp_path)}}
    moments = sections.get("precision", {}).get("moments", "float32")
    np.testing.assert_allclose(_losses_of(small(**sections)), _losses(moments), rtol=TOLERANCE)
