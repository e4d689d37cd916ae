"""Experts: the same numbers on every layout, and those of a float64 reference that exchanges nothing."""

from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import ParallelConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.choices.experts import sent_bytes
from jaxpar.training.run.progress import block_means
from tests.covering import covering_rows
from tests.given_weights import state_with
from tests.nonzero_gradients import HYBRID, moved_weights
from tests.reference import experts64
from tests.short_documents import into_documents
from tests.small_run import SmallRun, small, worst_difference
from tests.training.parity.one_device import TOLERANCE, assert_close, assert_equals_one_device

AXES = ("expert", "fsdp", "tensor", "context", "replica")
DEVICES = 8
WIDTH = 16
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax_top_k": {"per_token": 3, "balance_loss": 0.1},
    "top_k_softmax": {"per_token": 2, "balance_loss": 0.1, "z_loss": 0.01},
    "switch": {"per_token": 1, "balance_loss": 0.1},
    "gshard": {"per_token": 2, "balance_loss": 1.0},
    "noisy_top_k": {"per_token": 2, "balance_loss": 0.1},
    "sigmoid": {"per_token": 2, "balance_loss": 0.1, "router_options": {"scale": 1.7}},
    "biased_softmax": {"per_token": 2, "balance_loss": 0.1},
    "groups": {"router": "sigmoid", "per_token": 2, "router_options": {"groups": 4, "groups_per_token": 2}},
    "k_top_1": {"per_token": 2, "balance_loss": 0.1},
    "hash": {"per_token": 2},
    "sequences": {"router": "softmax_top_k", "per_token": 2, "balance_loss": 0.0, "sequence_loss": 0.1},
    "drops": {"router": "top_k_softmax", "per_token": 2, "balance_loss": 0.1, "capacity_factor": 0.75},
    "sam": {"per_token": 2, "router_options": {"groups": 4}, "balance_loss": 0.1},
    "cosine": {"per_token": 1, "balance_loss": 0.1},
    "dense_to_sparse": {"per_token": 2, "router_options": {"anneal_steps": 10, "threshold": 0.05}, "balance_loss": 0.1},
    "base": {"per_token": 1},
    "expert_choice": {"per_token": 2, "router_options": {"force": True}},
}
"""`model.experts` by router; 8 experts each."""
OTHERS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"router": "top_k_softmax", "per_token": 2, "balance_loss": 0.1},
    "llama4": {"router": "sigmoid_top_k", "per_token": 2, "balance_loss": 0.1, "weigh_inputs": True},
    "compressed": {"router": "top_k_softmax", "per_token": 2, "clusters": {"share": 1.0, "hashes": 64}},
    "sparse_mixer": {"per_token": 2, "router_options": {"jitter": 0.2}, "balance_loss": 0.1},
    "best groups": {
        "router": "top_k_softmax", "per_token": 3, "balance_loss": 0.1,
        "router_options": {"groups": 4, "groups_per_token": 2, "group_best": 2, "scale": 1.7},
    },
}  # fmt: skip
"""Models whose layers have more that is particular; clusters of one token each, which change nothing; routers of few
models."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "router": tuple(ROUTERS),
    "expert": (1, 2, 4),
    "fsdp": (1, 2),
    "tensor": (1, 2),
    "context": (1, 2),
    "replica": (1, 2),
    "pipe": (
        "none", "gpipe", "1f1b", "branching", "interleaved", "breadth-first", "zb-uniform", "zb-h1", "zb-v",
        "dualpipe-v", "v-half",
    ),
    "exchange": ("all_to_all", "hierarchical", "all_gather"),
    "slices": (1, 2, 4),
    "capacity": (1.0, 4.0),
    "microbatches": (1, 4),
    "shared": (0, 2),
    "zero": (1, 0, 2, 3),
    "remat": ("none", "gemm_last", "full", "offload", "half offloaded"),
    "kinds": (False, True),
}  # fmt: skip
REMATS: dict[str, dict[str, Any]] = {
    "offload": {"remat": {"preset": "full", "layer_input": "offload", "expert_input": "offload"}},
    "half offloaded": {"offload_fraction": 0.5},
}
PIPES: dict[str, dict[str, Any]] = {
    "none": {},
    "gpipe": {"pipe": 2, "schedule": "gpipe"},
    "1f1b": {"pipe": 2},
    "branching": {"pipe": 2, "pipe_ticks": "branching"},
    "interleaved": {"pipe": 2, "schedule": "interleaved", "virtual_stages": 2},
    "breadth-first": {"pipe": 2, "schedule": "breadth-first", "virtual_stages": 2},
    "zb-uniform": {"pipe": 2, "schedule": "zb-uniform"},
    "zb-h1": {"pipe": 2, "schedule": "zb-h1"},
    "zb-v": {"pipe": 2, "schedule": "zb-v", "virtual_stages": 2, "pipe_ticks": "branching"},
    "dualpipe-v": {"pipe": 2, "schedule": "dualpipe-v", "virtual_stages": 2},
    "v-half": {"pipe": 2, "schedule": "v-half", "virtual_stages": 2, "pipe_ticks": "branching"},
}
KINDS = {"kinds": {"dense": {"experts": None}, "routed": {}}, "pattern": Pattern(prefix=("dense",), unit=("routed",))}


def _fits(row: dict[str, Any]) -> bool:
    pipe = PIPES[row.get("pipe", "none")].get("pipe", 1)
    least = 4 if row.get("exchange") == "hierarchical" else 2 if row.get("slices", 1) > 1 else 1
    expert, microbatches = row.get("expert", least), row.get("microbatches", 4 if pipe > 1 else 1)
    if expert < least or (pipe > 1 and microbatches == 1):
        return False
    data = expert * row.get("fsdp", 1) * row.get("replica", 1)
    return pipe * data * row.get("tensor", 1) * row.get("context", 1) <= DEVICES and microbatches * data <= 8


GPT_OSS = {
    "activation": "clamped_swiglu", "attention_sinks": True, "attention_bias": True, "mlp_bias": True,
    "kinds": {"local": {"window": 9}, "global": {}}, "pattern": Pattern(unit=("local", "global")),
}  # fmt: skip
"""Sinks, biases and windows; of tensor ranks, one adds an expert's bias, and each has the sinks of its heads."""
_PLAIN: dict[str, Any] = {name: values[0] for name, values in FACTORS.items()} | {"router": "gpt_oss"}
_OWN_FIRST = _PLAIN | {"own_rows": "first"}
"""Rows of a rank's own experts apart; with room for an even share, some of them come in later rounds."""
ROWS = [
    *covering_rows(FACTORS, _fits, seed=5),
    _PLAIN | {"expert": 2, "tensor": 2, "context": 2, "shared": 2},
    _PLAIN
    | {"pipe": "1f1b", "tensor": 2, "fsdp": 2, "exchange": "all_gather", "microbatches": 4, "zero": 3, "remat": "full"},
    _PLAIN | {"router": "llama4", "expert": 2, "tensor": 2, "slices": 2, "shared": 2, "remat": "full"},
    _PLAIN | {"router": "sparse_mixer", "expert": 2, "tensor": 2, "context": 2, "shared": 2},
    _PLAIN | {"router": "sparse_mixer", "kinds": True, "expert": 4, "fsdp": 2, "slices": 2, "remat": "full"},
    _PLAIN | {"router": "sparse_mixer", "pipe": "zb-h1", "expert": 2, "context": 2, "microbatches": 4, "zero": 3},
    _PLAIN | {"router": "best groups", "expert": 2, "tensor": 2, "context": 2, "remat": "gemm_last"},
    _PLAIN | {"router": "best groups", "expert": 4, "exchange": "hierarchical", "replica": 2, "zero": 2, "slices": 2},
    _PLAIN | {"router": "best groups", "pipe": "1f1b", "expert": 2, "tensor": 2, "microbatches": 4, "capacity": 4.0},
    _PLAIN | {"router": "switch", "kinds": True, "expert": 2, "tensor": 2, "remat": "full", "mlp_tiles": 3},
    _OWN_FIRST | {"router": "softmax_top_k", "expert": 4, "fsdp": 2, "slices": 2, "shared": 2},
    _OWN_FIRST | {"router": "groups", "expert": 2, "slices": 4, "context": 2, "remat": "full", "capacity": 4.0},
    _OWN_FIRST | {"expert": 4, "slices": 2, "exchange": "hierarchical", "replica": 2, "remat": "gemm_last"},
    _OWN_FIRST | {"pipe": "1f1b", "expert": 2, "slices": 2, "microbatches": 4, "zero": 3, "remat": "offload"},
    _OWN_FIRST | {"router": "drops", "pipe": "zb-v", "expert": 2, "slices": 2, "microbatches": 4},
    _PLAIN | {"router": "softmax_top_k", "kinds": "hybrid", "expert": 2, "context": 2, "tensor": 2, "shared": 2},
    _PLAIN | {"router": "sigmoid", "kinds": "hybrid", "pipe": "zb-h1", "fsdp": 2, "microbatches": 4, "zero": 3},
]


def config_of(row: dict[str, Any]) -> Any:
    kind = (ROUTERS | OTHERS)[row["router"]]
    own = {"count": 8, "router": row["router"], "shared": row["shared"], "width": WIDTH} | kind
    own["shared_router"] = row["shared"] > 0 and row["router"] in ("softmax_top_k", "gpt_oss")
    axes = {axis: row[axis] for axis in ("expert", "fsdp", "tensor", "context", "replica", "zero", "microbatches")}
    exchange = {key: row[key] for key in ("exchange", "slices", "capacity", "own_rows") if key in row}
    layers = 2 * PIPES[row["pipe"]].get("virtual_stages", 1)
    kinds = {False: {}, True: KINDS, "hybrid": HYBRID}[row["kinds"]]
    model = {"layers": layers, "experts": ExpertsConfig(**own)} | kinds
    model |= GPT_OSS if row["router"] == "gpt_oss" else {}
    return small(
        model=model,
        parallel=axes | {"experts": exchange} | PIPES[row["pipe"]],
        memory=REMATS.get(row["remat"], {"remat": row["remat"]}) | {"mlp_tiles": row.get("mlp_tiles")},
    )


def alone(row: dict[str, Any]) -> Any:
    """The configuration of the same model on one device, nothing recomputed."""
    model = {key: row[key] for key in ("router", "shared", "microbatches", "kinds", "pipe")} | dict.fromkeys(AXES, 1)
    config = config_of(model | {"exchange": "all_gather", "slices": 1, "capacity": 2.0, "zero": 1, "remat": "none"})
    return replace(config, parallel=replace(ParallelConfig(), microbatches=config.parallel.microbatches))


def _name(row: dict[str, Any]) -> str:
    axes = "-".join(f"{axis}{row[axis]}" for axis in AXES if row[axis] > 1)
    pipe = f"-{row['pipe']}" if row["pipe"] != "none" else ""
    own = f"-own-{row['own_rows']}" if "own_rows" in row else ""
    exchange = f"{row['exchange']}-{row['slices']}{own}-{row['capacity']:g}"
    hybrid = "-hybrid" if row["kinds"] == "hybrid" else ""
    return f"{row['router']}-{axes or 'one'}{pipe}-{exchange}-{row['remat']}{hybrid}"


def test_every_row_is_a_configuration():
    """Also those that only some commits run."""
    for row in ROWS:
        config = config_of(row)
        validate(config)
        asked = config.parallel.experts
        assert (asked.exchange, asked.slices, asked.capacity) == (row["exchange"], row["slices"], row["capacity"])


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_loss_and_gradients_equal_one_device(row: dict[str, Any]):
    run = SmallRun(config_of(row), 2 * row["context"] * row["tensor"])  # two expert ranks in a node
    assert_equals_one_device(run, alone(row))


UNLIKE_FLOAT64 = ("noisy_top_k", "dense_to_sparse", "base", "drops")
"""What draws, or solves a problem that the reference does not: their own tests are in
`tests/layers/experts`, `test_drawing_routers.py` and `test_routers.py`."""


SPLIT = {"expert": 2, "tensor": 2, "context": 2, "experts": {"exchange": "all_to_all"}}


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("router", [*(name for name in ROUTERS if name not in UNLIKE_FLOAT64), *OTHERS])
def test_loss_and_gradients_equal_float64(router: str):
    more = GPT_OSS | {"kinds": {}, "pattern": None, "window": 9} if router == "gpt_oss" else {}
    own: dict[str, Any] = {"count": 8, "router": router, "shared": 1, "width": WIDTH} | (ROUTERS | OTHERS)[router]
    run = SmallRun(small(model={"layers": 2, "experts": ExpertsConfig(**own)} | more, parallel=SPLIT))
    weights = moved_weights(run.by_layer(run.step.residency.initial_state().master))
    rows = into_documents(run.rows(0), seed=7)
    loss, gradients = run.step.gradients(state_with(run.step, run.by_row(weights)), run.place(rows))
    wanted_loss, wanted, chosen = experts64.loss_and_gradients(weights, asdict(run.config.model), rows)
    assert abs(float(loss) - wanted_loss) <= TOLERANCE * wanted_loss
    found = run.by_layer(gradients)
    if own["router"] in ("sigmoid", "biased_softmax"):
        wanted["layers"]["all"]["mlp"]["bias"] = chosen / (rows["segments"] > 0).sum()
    worst, leaf = worst_difference(found, wanted)
    assert worst <= TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    "parallel",
    [
        {"fsdp": 2, "microbatches": 4},
        {"pipe": 2, "expert": 2, "tensor": 2, "microbatches": 4, "schedule": "zb-h1"},
        {"pipe": 2, "expert": 2, "context": 2, "microbatches": 2, "pipe_ticks": "branching"},
    ],
    ids=["accumulation", "uniform stages", "branching stages"],
)
def test_losses_of_routers_are_means_over_routed_tokens_where_the_loss_counts_three_of_one_microbatch(
    parallel: dict[str, Any],
):
    """The losses are those that do not depend on the microbatches."""
    own: dict[str, Any] = {"router": "softmax_top_k", "balance_loss": 0.0, "sequence_loss": 0.1, "z_loss": 0.01}
    run = SmallRun(small(model={"layers": 2, "experts": ExpertsConfig(4, 2, WIDTH, **own)}, parallel=parallel))
    weights = moved_weights(run.by_layer(run.step.residency.initial_state().master))
    rows = into_documents(run.rows(0), seed=7)
    rows["mask"] = np.where(np.cumsum(rows["mask"]).reshape(rows["mask"].shape) <= 3, rows["mask"], 0)
    loss, gradients = run.step.gradients(state_with(run.step, run.by_row(weights)), run.place(rows))
    wanted_loss, wanted, _ = experts64.loss_and_gradients(weights, asdict(run.config.model), rows)
    assert_close(loss, wanted_loss, run.by_layer(gradients), wanted)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    "layout",
    [
        {"microbatches": 4},
        {"fsdp": 2, "zero": 2, "microbatches": 2},
        {"pipe": 2, "schedule": "zb-h1", "fsdp": 2, "zero": 3, "microbatches": 4},
        {"pipe": 2, "schedule": "breadth-first", "virtual_stages": 2, "fsdp": 2, "zero": 3, "microbatches": 4},
        {"microbatches": 4, "memory": {"optimizer_offload": "host", "weights_offload": "host"}},
    ],
    ids=["accumulation", "sharded", "pipeline", "chunks gathered once", "layers on the host"],
)
def test_tokens_of_experts_are_counted_exactly_where_gradients_accumulate_in_bfloat16(layout: dict[str, Any]):
    """The gradient of a bias is an expert's share of the tokens; bfloat16 has no such fractions, nor sums above 256."""
    parallel = {name: value for name, value in layout.items() if name != "memory"}
    layers = 2 * layout.get("virtual_stages", 1)
    model = {"layers": layers, "experts": ExpertsConfig(count=8, per_token=2, router="sigmoid", width=WIDTH)}
    precision = {"compute": "bfloat16", "gradient": "bfloat16"}
    data, memory = {"sequence_length": 66}, layout.get("memory", {})
    run = SmallRun(small(model=model, parallel=parallel, precision=precision, data=data, memory=memory))
    _, gradients = run.loss_and_gradients()
    counts = gradients["layers"]["all"]["mlp"]["bias"] * (8 * 66)
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)
    np.testing.assert_array_equal(np.round(counts).sum(axis=1), 2 * 8 * 66)


@pytest.mark.long
@pytest.mark.parametrize("memory", [{}, {"optimizer_offload": "host"}], ids=["device", "host"])
def test_biases_are_read_in_float32(memory: dict[str, Any]):
    """The last two choose all tokens; in bfloat16 all biases would be 4096."""
    model = {"layers": 2, "experts": ExpertsConfig(count=8, per_token=2, router="sigmoid", width=WIDTH)}
    run = SmallRun(small(model=model, precision={"compute": "bfloat16"}, memory=memory))
    residency = run.step.residency
    state = residency.initial_state()
    weights = jax.device_get(state.master)
    weights["layers"]["all"]["mlp"]["bias"] = np.tile(4096 + 1.5 * np.arange(8, dtype=np.float32), (2, 1))
    state = residency.with_weights(state, jax.tree.map(lambda leaf: leaf.__getitem__, weights))
    counts = jax.device_get(run.step.gradients(state, run.batch(0))[1]["layers"]["all"]["mlp"]["bias"])
    np.testing.assert_allclose(counts, [[0, 0, 0, 0, 0, 0, 1, 1]] * 2, atol=1e-6)


@pytest.mark.long
def test_no_token_is_dropped_when_all_go_to_one_expert():
    """The same numbers as with room for all, in as many rounds as the fullest rank needs and in no more memory; and it
    is reported."""
    model = {"layers": 1, "experts": ExpertsConfig(count=8, per_token=1, router="sigmoid", width=WIDTH)}
    found = {}
    for capacity in (1.0, 8.0):
        parallel = {"expert": 4, "experts": {"capacity": capacity, "exchange": "all_to_all"}}
        run = SmallRun(small(model=model, parallel=parallel))
        weights = run.by_layer(run.step.residency.initial_state().master)
        weights["layers"]["all"]["mlp"]["bias"][:, 3] = 100.0
        state = state_with(run.step, run.by_row(weights))
        found[capacity] = *jax.device_get(run.step.gradients(state, run.batch(0))), state, run
    for one, other in zip(jax.tree.leaves(found[1.0][:2]), jax.tree.leaves(found[8.0][:2]), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE * max(1e-3, float(np.abs(other).max())))
    *_, state, run = found[1.0]
    even = state_with(run.step, run.by_row(run.by_layer(run.step.residency.initial_state().master)))
    run.step.gradients(even, run.batch(0))
    assert run.step.gradients._cache_size() == 1, "one program, whose memory is its own, for any routing"
    _, metrics = run.step.train(state, run.batch(0), run.step.arguments)
    report = block_means({name: float(value) for name, value in metrics.report.items()})["experts"]
    assert report["dropped"] == 0 and report["overflows"] == 1 and report["load"] == pytest.approx(8)
    assert report["rank_load"] == pytest.approx(4)


@pytest.mark.long
def test_tokens_beyond_the_capacity_of_an_expert_are_dropped_and_counted():
    """All tokens choose one of 8 experts, which computes an even share of them."""
    own = ExpertsConfig(count=8, per_token=1, router="sigmoid", width=WIDTH, capacity_factor=1.0)
    run = SmallRun(small(model={"layers": 1, "experts": own}, parallel={"expert": 2, "fsdp": 2}))
    weights = run.by_layer(run.step.residency.initial_state().master)
    weights["layers"]["all"]["mlp"]["bias"][:, 3] = 100.0
    _, metrics = run.step.train(state_with(run.step, run.by_row(weights)), run.batch(0), run.step.arguments)
    report = block_means({name: float(value) for name, value in metrics.report.items()})["experts"]
    assert report["dropped"] == pytest.approx(7 / 8) and report["load"] == pytest.approx(8)


@pytest.mark.long
def test_clusters_are_fewer_than_choices_and_counted_and_evaluations_send_each_token():
    own = ExpertsConfig(count=8, per_token=2, width=WIDTH)
    parallel = {"expert": 2, "experts": {"exchange": "all_to_all", "slices": 2}}
    model = {"layers": 1, "experts": replace(own, clusters={"share": 0.25})}
    run = SmallRun(small(model=model, parallel=parallel))
    exact = SmallRun(small(model={"layers": 1, "experts": own}, parallel=parallel))
    state = run.step.residency.initial_state()
    weights = run.step.residency.readable(state.master)
    sums, other = (float(one.step.evaluate(weights, one.batch(1))[0]["loss"]) for one in (run, exact))
    assert sums == pytest.approx(other, rel=1e-6)
    (kind,) = run.step.layout.plan.experts
    sent, all_sent = (sent_bytes(one.config, one.step.layout.plan, kind) for one in (run, exact))
    assert sent == all_sent / 2
    _, metrics = run.step.train(state, run.batch(0), run.step.arguments)
    report = block_means({name: float(value) for name, value in metrics.report.items()})["experts"]
    assert report["dropped"] == 0 and 0.3 < report["clusters"] <= 0.5 and report["merged"] > 0
