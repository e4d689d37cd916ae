"""How a plan shares a row over context ranks: groups inside nodes, what would not be used, what is exchanged again."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.plan import Choice, Plan
from jaxpar.distributed.devices import devices_per_node
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.attention import unused_blocks
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.training.run import setup
from tests.sentences import refused
from tests.small_run import layout_of, small

LONG = {"sequence_length": 256}


def config_of(model: dict[str, Any] | None = None, memory: dict[str, Any] | None = None, **parallel: Any) -> Config:
    return small(model={"heads": 32, "head_dim": 2} | (model or {}), data=LONG, memory=memory or {}, parallel=parallel)


def plan_of(config: Config, node_devices: int | None = None) -> Plan:
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0], node_devices)


@pytest.mark.parametrize(
    ("cluster", "tensor", "groups"),
    [("h100:1x8", 1, 4), ("h100:4x8", 1, 8), ("h100:4x8", 2, 4), ("h100:8x4", 1, 4), ("h100:8x4", 2, 2)],
)
def test_ranks_exchange_heads_inside_a_node(cluster: str, tensor: int, groups: int) -> None:
    where = parse_cluster(cluster)
    config = config_of(context=where.devices // tensor, tensor=tensor, context_strategy="usp")
    _, plan = plan_for(config, where)
    assert plan.ulysses == groups


def test_a_trainer_looks_at_the_nodes_that_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "devices_per_node", lambda devices: len(devices) // 4)
    config = config_of(context=8, context_strategy="usp")
    assert setup.RunSetup(config, devices=jax.devices()[:8]).plan.ulysses == 2


def test_groups_that_the_user_names_may_span_nodes() -> None:
    assert plan_of(config_of(context=8, context_strategy="usp", ulysses=4), node_devices=2).ulysses == 4


def test_plain_attention_has_blocks_for_the_cache_of_a_cpu_and_larger_ones_on_gpus() -> None:
    on = lambda attention: plan_for(small(attention=attention, parallel={"fsdp": 8}), parse_cluster("h100:1x8"))[1]
    blocks = lambda plan: (plan.query_block, plan.kv_block)
    assert blocks(plan_of(small())) == (64, 64)
    assert blocks(on({"backend": "xla"})) == (512, 512)
    assert blocks(plan_of(small(attention={"kv_block": 512}))) == (64, 512)
    assert blocks(on({"backend": "xla", "query_block": 64})) == (64, 512)


def test_block_sizes_that_no_layer_uses_are_named() -> None:
    config = small(attention={"query_block": 64})
    plan = plan_of(config)
    assert (plan.attention["all"].name, unused_blocks(plan, config.attention)) == ("xla", [])
    on_gpu = replace(plan, attention={"all": Choice("cudnn", "", {})})
    assert unused_blocks(on_gpu, config.attention) == ["attention.query_block: 64"]
    assert unused_blocks(on_gpu, small().attention) == []
    kinds = {"local": Choice("cudnn", "", {}), "global": Choice("xla", "", {})}
    assert unused_blocks(replace(on_gpu, attention=kinds), config.attention) == []


HOPPER = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0")


@pytest.mark.parametrize(
    ("strategy", "packed", "chosen", "backend"),
    [
        ("allgather", False, "allgather", "xla"), ("ring", False, "ring", "xla"), ("usp", False, "usp", "xla"),
        ("ulysses", False, "ulysses", "cudnn"), ("ulysses", True, "ulysses", "cudnn"),
        ("auto", False, "ulysses", "cudnn"), ("auto", True, "ulysses", "cudnn"),
        ("allgather", True, "allgather", "xla"),
    ],
)  # fmt: skip
def test_only_ranks_that_see_whole_rows_in_order_have_cudnn(strategy: str, packed: bool, chosen: str, backend: str):
    config = config_of(model={"head_dim": 64}, context=8, context_strategy=strategy)
    config = replace(
        config, precision=replace(config.precision, compute="bfloat16"), data=replace(config.data, packed=packed)
    )
    plan = make_plan(resolve_config(config, 8), HOPPER)
    assert (plan.context_strategy.name, plan.attention["all"].name) == (chosen, backend)


def test_determinism_reaches_the_backends() -> None:
    model, precision = {"head_dim": 64}, {"compute": "bfloat16"}
    of = lambda **attention: small(model=model, precision=precision, attention=attention, parallel={"fsdp": 1})
    for asked, name in (("flash", "mosaic_deterministic"), ("auto", "xla")):
        config = of(backend=asked, deterministic=True)
        assert make_plan(resolve_config(config, 1), HOPPER).attention["all"].name == name
    with refused("attention.backend", "'mosaic'", "same bits in every run"):
        make_plan(resolve_config(of(backend="mosaic", deterministic=True), 1), HOPPER)
    assert make_plan(resolve_config(of(backend="mosaic"), 1), HOPPER).attention["all"].name == "mosaic"


@pytest.mark.parametrize(("strategy", "permutes"), [("ring", True), ("usp", True), ("ulysses", False)])
def test_nothing_permutes_in_the_branching_ticks_of_a_pipeline(strategy: str, permutes: bool) -> None:
    pipeline = {"pipe": 2, "microbatches": 2, "pipe_ticks": "branching", "context": 4, "context_strategy": strategy}
    config = config_of(**pipeline, ulysses=2 if strategy == "usp" else None)
    if not permutes:
        assert plan_of(config).context_strategy.name == strategy
        return
    with refused(f"parallel.context_strategy is '{strategy}'", "permutes"):
        plan_of(config)
    plan_of(replace(config, parallel=replace(config.parallel, pipe_ticks="uniform")))


@pytest.mark.parametrize(
    ("length", "parallel", "parts"),
    [
        (24, {"context_strategy": "ring", "context_order": "zigzag"}, ("24 tokens", "16 or 32 would")),
        (8, {"context_strategy": "ring", "context_order": "zigzag"}, ("8 tokens", "; 16 would")),
        (64, {"context_strategy": "ulysses", "context_order": "striped"}, ("auto or contiguous", "got striped")),
        (64, {"context_strategy": "usp", "ulysses": 3}, ("groups of 3", "do not divide parallel.context")),
    ],
)
def test_a_row_that_cannot_be_shared_so_is_refused(length: int, parallel: dict[str, Any], parts: tuple[str, ...]):
    config = config_of(context=8, **parallel)
    with refused(*parts):
        plan_of(replace(config, data=replace(config.data, sequence_length=length)))


def node_of(devices: list[dict[str, int]]) -> int:
    return devices_per_node([SimpleNamespace(**device) for device in devices])


def test_processes_of_one_machine_are_one_node() -> None:
    assert devices_per_node(jax.devices()) == len(jax.devices())
    assert node_of([{"process_index": process, "slice_index": process // 4} for process in range(8)]) == 4
    assert node_of([{"process_index": process, "partition_index": process // 4} for process in range(8)]) == 4
    assert node_of([{"process_index": process // 4} for process in range(8)]) == 4
    assert node_of([{"process_index": process} for process in (0, 0, 0, 1)]) == 1


@pytest.mark.parametrize("strategy", ["auto", "allgather", "ring", "ulysses"])
def test_groups_of_another_strategy_than_usp_are_refused(strategy: str) -> None:
    with refused("parallel.ulysses: 4", "would not be used", "context_strategy: usp"):
        plan_of(config_of(context=8, context_strategy=strategy, ulysses=4))


@pytest.mark.parametrize("strategy", ["allgather", "ring", "ulysses", "usp"])
def test_on_one_rank_every_strategy_and_order_leaves_the_row_as_it_is(strategy: str) -> None:
    config = small(data={"sequence_length": 63}, parallel={"context_strategy": strategy, "context_order": "zigzag"})
    plan = plan_of(config)
    assert (plan.context_strategy.name, plan.context_order.name, plan.ulysses) == (strategy, "contiguous", 1)
