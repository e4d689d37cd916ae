"""Options of `parallel.overlap`, and hpZ shards: initial weights, loss and gradients of one device on every layout."""

from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.mesh.rules import mesh_axes_of
from tests.nonzero_gradients import FAMILIES, gemma
from tests.sentences import named
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_equals_one_device

MODELS: dict[str, dict[str, Any]] = {
    "tied": {"tied": True},
    "positions": {"position": "learned", "max_positions": 64},
    "experts": {"experts": ExpertsConfig(count=4, per_token=2, width=32, shared=1)},
    "gemma3": gemma(layers=3),
    "gemma5": gemma(layers=5),
    "gemma7": gemma(layers=7),
    "indivisible": {"embed": 28, "head_dim": 8},
}
"""Models other than the small decoder; `indivisible` has no dim that replicas and shards divide together."""

ROWS, SHARED = "parallel.overlap.embedding_messages=rows", "parallel.overlap.shard_state_over_replicas=true"
PARTS, ON_HOST = "parallel.overlap.weight_prefetch=parts", "memory.optimizer_offload=host"
LAYOUTS = named("""
    rows of the embedding, ZeRO-3: ROWS | parallel.fsdp=4 | parallel.microbatches=2
    rows, tied, split vocabulary, context: tied | ROWS | parallel.fsdp=2 | parallel.tensor=2 | parallel.context=2
    rows, ZeRO-2, learned positions: positions | ROWS | parallel.fsdp=4 | parallel.zero=2 | parallel.microbatches=2
    rows, HSDP, scaled embeddings: gemma3 | ROWS | parallel.replica=2 | parallel.fsdp=2
    rows, state over replicas, split sequence: positions | ROWS | SHARED | parallel.replica=2 | parallel.fsdp=2 |
        parallel.tensor=2 | parallel.microbatches=2
    rows, experts: experts | ROWS | parallel.fsdp=2 | parallel.expert=2
    rows, layers in host memory: ROWS | parallel.fsdp=4 | parallel.microbatches=2 | ON_HOST |
        memory.weights_offload=host

    two layers a turn, four loops: model.layers=5 | parallel.overlap.layer_unroll=2 | parallel.fsdp=2 |
        parallel.microbatches=2
    three layers a turn, HSDP: model.layers=5 | parallel.overlap.layer_unroll=3 | parallel.replica=2 | parallel.fsdp=2
    more layers a turn than there are, offloaded, of two kinds: gemma7 | parallel.overlap.layer_unroll=8 |
        parallel.fsdp=2 | parallel.context=2 | memory.remat=gemm_last | memory.offload_fraction=0.5
    two layers a turn in a pipeline: model.layers=8 | parallel.overlap.layer_unroll=2 | parallel.pipe=2 |
        parallel.fsdp=2 | parallel.microbatches=4
    weights in parts, tiles: PARTS | parallel.overlap.layer_unroll=1 | parallel.fsdp=2 | parallel.context=2 |
        memory.remat=full | memory.mlp_tiles=2
    two layers a turn, weights in parts beside copies to the host: gemma5 | PARTS | parallel.overlap.layer_unroll=2 |
        parallel.fsdp=4 | parallel.microbatches=2 | memory.remat=gemm_last | memory.offload_fraction=0.5

    state over replicas, ZeRO-3: SHARED | parallel.replica=2 | parallel.fsdp=2 | parallel.microbatches=2
    state over replicas, ZeRO-1: SHARED | parallel.replica=2 | parallel.fsdp=2 | parallel.zero=1 |
        parallel.microbatches=2
    state over replicas, ZeRO-2, context, two kinds: gemma3 | SHARED | parallel.replica=2 | parallel.fsdp=2 |
        parallel.context=2 | parallel.zero=2
    state over replicas alone, tensor: tied | SHARED | parallel.replica=4 | parallel.tensor=2 | parallel.zero=1
    state over replicas, a pipeline: SHARED | parallel.pipe=2 | parallel.replica=2 | parallel.fsdp=2 |
        parallel.microbatches=2
    state over replicas, hpZ, two layers a turn: SHARED | PARTS | parallel.overlap.layer_unroll=2 |
        parallel.replica=2 | parallel.fsdp=4 | parallel.hpz=2
    state over replicas, experts, on the host: experts | SHARED | ON_HOST | parallel.replica=2 | parallel.fsdp=2 |
        parallel.expert=2
    state over replicas, experts: experts | SHARED | parallel.replica=2 | parallel.fsdp=2 | parallel.expert=2
    state over replicas, dims that do not divide: indivisible | SHARED | parallel.replica=4 | parallel.fsdp=2

    hpZ, accumulation, remat: tied | parallel.fsdp=4 | parallel.context=2 | parallel.hpz=4 | parallel.microbatches=2 |
        memory.remat=full
    hpZ in a pipeline: parallel.pipe=2 | parallel.fsdp=4 | parallel.hpz=2 | parallel.microbatches=2
    hpZ, layers on the host: parallel.fsdp=8 | parallel.hpz=2 | ON_HOST | memory.weights_offload=host
    hpZ, state on the host: parallel.fsdp=8 | parallel.hpz=2 | ON_HOST
    hpZ over ranks of experts: experts | parallel.fsdp=4 | parallel.expert=2 | parallel.hpz=4
    hpZ beside ranks of experts: experts | parallel.expert=2 | parallel.fsdp=2 | parallel.context=2 | parallel.hpz=2
""", ROWS=ROWS, SHARED=SHARED, PARTS=PARTS, ON_HOST=ON_HOST)  # fmt: skip


def config_of(cells: list[str]) -> Config:
    """The small decoder with the models and overrides that `cells` name."""
    model = {key: value for cell in cells for key, value in MODELS.get(cell, {}).items()}
    return with_overrides(small(model=model), [cell for cell in cells if cell not in MODELS])


@pytest.mark.matrix(
    quick=("rows of the embedding, ZeRO-3", "two layers a turn, four loops", "state over replicas, ZeRO-3"), ci=9
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_one_device(layout: str):
    cells = LAYOUTS[layout]
    config = config_of(cells)
    run = SmallRun(config, node_devices=4 if config.parallel.pipe == 1 else 2)
    asked, step = config.parallel.overlap, run.step.layout
    for key in ("embedding_messages", "layer_unroll", "weight_prefetch"):
        assert getattr(asked, key) in ("auto", getattr(step.plan, key).name), key
    if asked.shard_state_over_replicas is True:
        leaves = jax.tree.leaves(step.master, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        assert any("replica" in mesh_axes_of(where) for where in leaves) == ("indivisible" not in cells)
    assert_equals_one_device(run, config_of([cell for cell in cells if cell in MODELS or cell.startswith("model.")]))


RINGS = named("""
    fsdp, full remat: parallel.fsdp=2 | parallel.zero=3 | memory.remat=full
    two chunks, split backward: parallel.overlap.tensor_chunks=2 | parallel.pipe=2 | parallel.microbatches=4 |
        parallel.schedule=zb-h1 | memory.remat=gemm_last
    four ranks, nothing recomputed: parallel.tensor=4 | parallel.overlap.tensor_chunks=1 | memory.remat=none
    ring attention: parallel.overlap.tensor_chunks=4 | parallel.context=2 | parallel.context_strategy=ring |
        memory.remat=selective
    ulysses, padded stages: parallel.context=2 | parallel.context_strategy=ulysses | parallel.pipe=2 |
        parallel.microbatches=2 | parallel.zero=2 | parallel.stage_layers=[1, 3] | memory.remat=full
    three chunks, v-shaped pipeline: parallel.overlap.tensor_chunks=3 | parallel.pipe=2 | parallel.microbatches=4 |
        parallel.schedule=zb-v | data.sequence_length=48
    tiles of the feed-forward: parallel.tensor=4 | parallel.fsdp=2 | memory.remat=full | memory.mlp_tiles=3
""")
"""Layouts of two tensor ranks or more."""


def ring_config(family: str, *overrides: str) -> Config:
    model = {"layers": 4, "kv_heads": 2 if family == "llama" else 8} | FAMILIES[family]
    return with_overrides(small(model=model, data={"packed": True}), overrides)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", RINGS)
def test_rings_between_tensor_ranks_give_the_numbers_of_one_device(name: str, family: str):
    """With every feature that a layer's matmuls meet."""
    run = SmallRun(ring_config(family, "parallel.tensor=2", "parallel.overlap.tensor=ring", *RINGS[name]))
    assert {own.algorithm.name for own in run.step.layout.plan.tensor_overlap.values()} == {"ring"}
    assert_equals_one_device(run, ring_config(family, *(own for own in RINGS[name] if own.startswith("data."))))
