"""Multi-head latent attention: the gradients of a float64 reference, and the same numbers on every layout."""

from dataclasses import asdict
from math import prod
from typing import Any

import pytest

from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.schema.model import Pattern
from tests.covering import covering_rows
from tests.given_weights import state_with
from tests.nonzero_gradients import moved_weights
from tests.reference import decoder64
from tests.short_documents import into_documents
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close, assert_equals_one_device

DEVICES = 8
WIDTHS = {"kv_rank": 12, "rope_dim": 4, "nope_dim": 6, "value_dim": 5}
"""No two are alike, and values are narrower than keys."""
MODEL: dict[str, Any] = {"layers": 2, "kv_heads": None}
EXPERTS = {
    "experts": ExpertsConfig(count=4, per_token=2, router="sigmoid", shared=1, width=16),
    "kinds": {"dense": {"experts": None}, "routed": {}},
    "pattern": Pattern(prefix=("dense",), unit=("routed",)),
}
PLAIN: dict[str, Any] = {"kinds": {"wide": {}, "narrow": {"window": 9}}, "pattern": Pattern(("wide", "narrow"))}
MODELS = {"alike": {}, "windows": PLAIN, "experts": EXPERTS, "beside other attention": {
    "kinds": {"latent": {}, "plain": {"latent_attention": None}}, "pattern": Pattern(("latent", "plain")),
}}  # fmt: skip
PIPES: dict[str, dict[str, Any]] = {
    "none": {},
    "1f1b": {"pipe": 2, "microbatches": 2},
    "zb-h1": {"pipe": 2, "microbatches": 2, "schedule": "zb-h1"},
    "branching": {"pipe": 2, "microbatches": 2, "pipe_ticks": "branching"},
}
FACTORS: dict[str, tuple[Any, ...]] = {
    "query_rank": (None, 10),
    "model": tuple(MODELS),
    "fsdp": (1, 2),
    "tensor": (1, 2, 4),
    "context": (1, 2),
    "context_strategy": ("allgather", "ring", "ulysses"),
    "expert": (1, 2),
    "zero": (1, 3),
    "pipe": tuple(PIPES),
    "remat": ("none", "gemm_last", "full", "offload"),
    "tensor_overlap": ("plain", "ring"),
}
REMATS = {"offload": {"preset": "full", "kv_latent": "offload", "expanded_key": "save"}}


def _fits(row: dict[str, Any]) -> bool:
    pipe, ring = row.get("pipe", "none"), row.get("tensor_overlap") == "ring"
    sizes = [row.get(axis, 1) for axis in ("fsdp", "context", "expert")] + [row.get("tensor", 2 if ring else 1)]
    if pipe == "branching" and (row.get("context_strategy") == "ring" or ring):
        return False  # permutes
    if ring and row.get("tensor") == 1:
        return False
    return PIPES[pipe].get("pipe", 1) * prod(sizes) <= DEVICES


ROWS = covering_rows(FACTORS, _fits, seed=11)


def model_of(row: dict[str, Any]) -> dict[str, Any]:
    return (
        MODEL
        | MODELS[row["model"]]
        | {"latent_attention": LatentAttentionConfig(query_rank=row["query_rank"], **WIDTHS)}
    )


def config_of(row: dict[str, Any]) -> Any:
    axes = {name: row[name] for name in ("fsdp", "tensor", "context", "context_strategy", "expert", "zero")}
    axes |= {"overlap": {"tensor": row["tensor_overlap"]}} | PIPES[row["pipe"]]
    return small(model=model_of(row), parallel=axes, memory={"remat": REMATS.get(row["remat"], row["remat"])})


def _name(row: dict[str, Any]) -> str:
    axes = "-".join(f"{axis}{row[axis]}" for axis in ("fsdp", "tensor", "context", "expert") if row[axis] > 1)
    rank = "" if row["query_rank"] is None else "compressed-"
    return f"{rank}{row['model']}-{axes or 'one'}-{row['context_strategy']}-{row['pipe']}-{row['remat']}"


@pytest.mark.matrix(quick=(), ci=2)
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_loss_and_gradients_equal_one_device(row: dict[str, Any]):
    # The losses of experts are counted by microbatch.
    microbatches = PIPES[row["pipe"]].get("microbatches", 1) if row["model"] == "experts" else 1
    alone = small(model=model_of(row), parallel={"microbatches": microbatches}, memory={"remat": "none"})
    assert_equals_one_device(SmallRun(config_of(row)), alone)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("query_rank", [None, 10], ids=["direct", "compressed"])
def test_loss_and_gradients_equal_float64(query_rank: int | None):
    latent = LatentAttentionConfig(query_rank=query_rank, **WIDTHS)
    more = {"attention_softcap": 3.0} if query_rank else {"attention_temperature": AttentionTemperature(3, 0.5)}
    model = MODEL | {"latent_attention": latent} | more
    run = SmallRun(small(model=model, parallel={"tensor": 2, "context": 2, "context_strategy": "ring"}))
    weights = moved_weights(run.by_layer(run.step.residency.initial_state().master))
    rows = into_documents(run.rows(0), seed=7)
    loss, gradients = run.step.gradients(state_with(run.step, run.by_row(weights)), run.place(rows))
    wanted_loss, wanted = decoder64.loss_and_gradients(weights, asdict(run.config.model), rows)
    assert_close(loss, wanted_loss, run.by_layer(gradients), wanted)
