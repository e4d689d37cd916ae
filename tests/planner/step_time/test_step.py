"""The time model: what it is built from, and what must follow from that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.config.schema import Config, ModelConfig, OptimizerConfig
from jaxpar.cost.hardware_model import AMPERE, HardwareModel, described, hardware_of
from jaxpar.cost.messages import network_of, overlapped
from jaxpar.cost.operations import device_of
from jaxpar.cost.wire_messages import WireMessages
from jaxpar.hardware.catalogue import GPUS, gpu_named
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.model import Steps, StepTime, step_time
from jaxpar.planner.step_time.pipeline import chunk_layers
from jaxpar.planner.step_time.update import ADAMW, Update, update_of
from tests.sentences import refused

MODEL = PRESETS["llama3-8b"]
CLUSTER = parse_cluster("h100:4x8")
BASE = Layout(fsdp=32, zero=3)


def seconds(layout: Layout = BASE, batch: int = 64, vocab: int = 32000) -> StepTime:
    return step_time(replace(MODEL, vocab=vocab), 8192, batch, layout, CLUSTER)


def test_the_breakdown_adds_up():
    for layout in (
        BASE,
        Layout(pipe=4, fsdp=4, tensor=2, zero=1, schedule="1f1b", remat="full"),
        Layout(fsdp=4, context=4, tensor=2, zero=2, context_strategy="ring", offload_fraction=0.5),
    ):
        step = seconds(layout)
        assert sum(step.breakdown.values()) == pytest.approx(step.seconds)
        assert all(value >= -1e-9 for value in step.breakdown.values()), step.breakdown


def test_throughput_and_mfu_are_those_of_the_step():
    step = seconds()
    assert step.tokens_per_s_per_gpu == pytest.approx(64 * 8192 / step.seconds / 32)
    assert 0.2 < step.mfu < 0.65


def test_recomputing_more_takes_longer():
    times = [seconds(replace(BASE, remat=preset)).seconds for preset in ("none", "gemm_last", "selective", "full")]
    assert times == sorted(times) and times[-1] > 1.2 * times[0]


def test_a_remat_map_of_a_preset_takes_as_long_as_the_preset():
    names = ("attention_input", "mlp_input", "mlp_activated", "mlp_hidden")
    runs = ((32, tuple((name, "recompute") for name in names)),)
    assert seconds(replace(BASE, remat=runs)).seconds == pytest.approx(
        seconds(replace(BASE, remat="gemm_last")).seconds
    )


def test_half_the_layers_recomputed_takes_half_the_time_of_it():
    whole, none = seconds(replace(BASE, remat="full")), seconds(BASE)
    every = "attention_input query key value attention_output attention_residual mlp_input mlp_gate mlp_activated"
    names = tuple((name, "recompute") for name in (*every.split(), "mlp_up", "mlp_hidden"))
    half = seconds(replace(BASE, remat=((16, names), (16, ())))).breakdown["recomputation"]
    assert half == pytest.approx(whole.breakdown["recomputation"] / 2)
    assert none.breakdown["recomputation"] == 0


def test_more_microbatches_shrink_the_bubble():
    pipeline = Layout(pipe=4, fsdp=8, zero=1, schedule="1f1b")
    few, many = (seconds(pipeline, batch=batch, vocab=1024) for batch in (32, 256))
    assert few.breakdown["bubble"] / few.seconds > 2 * many.breakdown["bubble"] / many.seconds


def test_virtual_stages_shrink_the_bubble():
    pipeline = Layout(pipe=4, fsdp=8, zero=1, schedule="1f1b")
    interleaved = replace(pipeline, schedule="interleaved", virtual_stages=4)
    assert _bubble(interleaved) < 0.5 * _bubble(pipeline)


def test_a_large_vocabulary_holds_up_the_last_stage():
    assert _bubble(Layout(pipe=4, fsdp=8, zero=1, schedule="1f1b"), vocab=128256) > 1.3 * _bubble(
        Layout(pipe=4, fsdp=8, zero=1, schedule="1f1b")
    )


def _bubble(layout: Layout, vocab: int = 1024) -> float:
    return seconds(layout, vocab=vocab).breakdown["bubble"]


def test_tensor_ranks_over_a_slow_network_cost_more():
    inside, across = (Layout(fsdp=32 // tensor, tensor=tensor, zero=1) for tensor in (8, 16))
    assert seconds(across).breakdown["tensor"] > 2 * seconds(inside).breakdown["tensor"]


def test_rows_of_the_embedding_are_timed_in_place_of_its_table():
    """Of many tokens they take longer, and of a tied table, which the head
    needs, they save nothing."""
    model = replace(MODEL, vocab=128256)
    base = Layout(fsdp=8, replica=4, zero=3)

    def saved(layout: Layout, model: ModelConfig = model) -> float:
        """Share of the seconds of messages of weights; both layouts are of the same `Steps`."""
        steps = Steps(model, 8192, 2048, CLUSTER, None, ADAMW)
        table, rows = (steps.time(replace(layout, embedding_messages=sent)) for sent in ("table", "rows"))
        return 1 - rows.breakdown["data"] / table.breakdown["data"]

    assert saved(base) > 0.02
    assert saved(replace(base, microbatch=64)) < 0
    assert saved(replace(base, zero=2)) > 0.02
    assert saved(base, model=replace(model, tied=True)) < 0
    assert 0 < saved(base, model=replace(model, position="learned", max_positions=8192)) < saved(base)


def test_a_window_makes_attention_cheaper():
    short = step_time(replace(MODEL, window=1024), 8192, 64, BASE, CLUSTER)
    long = step_time(MODEL, 8192, 64, BASE, CLUSTER)
    assert short.breakdown["attention"] < 0.5 * long.breakdown["attention"]


def test_offloading_more_than_the_link_carries_is_not_free():
    layout = Layout(fsdp=32, zero=3, offload_fraction=0.1)
    slow = parse_cluster("h100:4x8")
    group = slow.groups[0]
    group = replace(group, host=replace(group.host, bandwidth=1e9))
    slow = replace(slow, groups=(group,))
    assert step_time(MODEL, 8192, 64, layout, slow).breakdown["offload"] > 10 * seconds(layout).breakdown["offload"]


def test_large_matmuls_reach_their_share_and_thin_ones_do_not():
    device = device_of(gpu_named("h100"), hardware_of(gpu_named("h100")))
    flops = lambda m, n, k: 2 * m * n * k / device.matmul(m, n, k) / device.peak
    assert flops(16384, 16384, 16384) == pytest.approx(device.model.matmul_share, rel=0.03)
    assert flops(16384, 16384, 64) < 0.6 * device.model.matmul_share
    assert flops(16, 16384, 16384) < 0.1 * device.model.matmul_share


@pytest.mark.parametrize(
    ("gpu", "generation", "published", "error"),
    [("h100", "mosaic", 640, 0.02), ("h100", "triton", 350, 0.135), ("a100-80", "triton", 200, 0.08)],
)
def test_attention_kernels_reach_what_is_published(gpu: str, generation: str, published: float, error: float):
    """TFLOP/s forward, causal, width 128 at 8k: cuDNN on Hopper 640 (NVIDIA), FlashAttention-2 about 350 and 200.

    The first is from that table (631). The share of FlashAttention-2 is fitted to whole steps (395 and 215), in which
    it also takes what the model has wrong about its backward.
    """
    device = device_of(gpu_named(gpu), hardware_of(gpu_named(gpu)))
    forward, _ = device.flash(1, 64, 8192, 4096.5, 128, generation)
    assert 4 * 128 * 64 * 8192 * 4096.5 / forward / 1e12 == pytest.approx(published, rel=error)


@pytest.mark.parametrize(("ranks", "size", "microseconds"), [(8, 2**30, 8193), (4, 2**28, 1929), (8, 2**23, 134.3)])
def test_all_reduces_of_one_host_take_as_long_as_measured(ranks: int, size: int, microseconds: float):
    """nccl-tests on A100, from VIA-Research/vTrain@f8dda84 trace/."""
    ring = network_of(parse_cluster("a100-80:1x8"), AMPERE).ring(ranks, 1)
    assert ring.reduce(size) * 1e6 == pytest.approx(microseconds, rel=0.2)


def test_a_ring_between_hosts_uses_the_cards_of_all_its_members():
    network = network_of(CLUSTER, hardware_of(CLUSTER.gpu))
    alone, shared = network.ring(4, 8), network.ring(32, 1)
    assert shared.across == pytest.approx(8 * alone.across)
    assert alone.hosts == shared.hosts == 4


def test_overlap_is_never_faster_than_its_parts_nor_slower_than_their_sum():
    for compute, message in ((1.0, 0.0), (1.0, 0.3), (0.2, 2.0)):
        assert max(compute, message) <= overlapped(compute, message, 0.2) <= compute + message


def test_chunks_share_layers_evenly():
    assert chunk_layers(10, 4) == (2, 3, 3, 2)
    assert sum(chunk_layers(126, 16)) == 126


def test_every_gpu_of_the_catalogue_has_a_model_within_its_datasheet():
    for gpu in GPUS:
        model = hardware_of(gpu)
        assert 0 < model.matmul_share <= 1 and 0 < model.memory_share <= 1 and 0 < model.network_share <= 1
        assert model.multiprocessors == gpu.multiprocessors
        assert ("float8" in gpu.peaks) == (model.float8_share > 0)
    with refused("X100", "h100, h800", "rtx5090"):
        hardware_of(replace(gpu_named("h100"), short="x100", name="X100"))


def test_every_parameter_states_what_it_means():
    rows = described(AMPERE)
    assert len(rows) <= 14 and all(meaning for _, _, _, meaning in rows)
    assert {name for name, *_ in rows} | {"measured"} == set(HardwareModel.__dataclass_fields__)


def test_a_shift_between_hosts_goes_over_one_card_whatever_sits_beside_it():
    """Each rank of 8 in a host sends to the next; a single pair crosses, and all wait for it."""
    model = hardware_of(CLUSTER.gpu)
    network = network_of(CLUSTER, model)
    card = CLUSTER.bandwidth(True) * network.share(4)
    for ring in (network.ring(32, 1), network.ring(4, 8)):
        assert ring.shift(2**30) == pytest.approx(2**30 / card, rel=0.01)
    inside = CLUSTER.bandwidth(False) * model.node_share
    assert network.ring(8, 1).shift(2**30) == pytest.approx(2**30 / inside, rel=0.02)


def test_an_all_to_all_between_hosts_sends_each_rank_s_own_bytes_over_its_own_card():
    model = hardware_of(CLUSTER.gpu)
    network = network_of(CLUSTER, model)
    ring = network.ring(32, 1)
    leaves = 2**30 * 24 / 32
    assert ring.exchange(2**30) == pytest.approx(leaves / (CLUSTER.bandwidth(True) * network.share(4)), rel=0.01)
    assert ring.exchange(2**30) > 4 * ring.gather(2**30), "a gather sends each byte to another host once"


def test_usp_exchanges_inside_a_host_and_shifts_between_hosts():
    """16 context ranks of a model with 32 heads, 8 of keys: groups of 8, two of them."""
    times = {
        strategy: seconds(Layout(fsdp=2, context=16, zero=3, context_strategy=strategy), batch=2).breakdown
        for strategy in ("ring", "ulysses", "usp")
    }
    part = 2 * 8192 // 16 * 8 * 128 * 2
    query = 8192 // 16 * 32 * 128 * 2
    network = network_of(CLUSTER, hardware_of(CLUSTER.gpu))
    inside, between = network.ring(8, 1), network.ring(2, 8)
    exchanged = 2 * inside.exchange(query) + inside.exchange(part)
    layers = MODEL.layers * (2 * exchanged + between.shift(part) + between.shift(3 * part))
    assert times["usp"]["context"] == pytest.approx(layers)
    assert times["usp"]["context"] < min(times["ring"]["context"], times["ulysses"]["context"])


def test_zero_2_reduces_gradients_once_a_microbatch_and_zero_1_once_a_step():
    once, often = (seconds(Layout(fsdp=32, zero=zero), batch=128).breakdown["data"] for zero in (1, 2))
    alone = seconds(Layout(fsdp=32, zero=2), batch=32).breakdown["data"]
    assert alone == pytest.approx(seconds(Layout(fsdp=32, zero=1), batch=32).breakdown["data"])
    scatter = network_of(CLUSTER, hardware_of(CLUSTER.gpu)).ring(32, 1).gather(4.0 * _parameters())
    assert often - once == pytest.approx(3 * scatter, rel=0.01)


def test_under_a_pipeline_zero_2_takes_as_long_as_zero_1():
    pipeline = Layout(pipe=4, fsdp=8, schedule="1f1b")
    one, two = (seconds(replace(pipeline, zero=zero)) for zero in (1, 2))
    assert two.seconds == pytest.approx(one.seconds)


def test_replicas_hold_whole_copies_of_the_optimizer_s_state():
    """Only fsdp, expert and context shard it: a replica more makes no update shorter, and adds a sum over replicas."""
    update = lambda layout: seconds(layout).breakdown["optimizer"]
    assert update(Layout(replica=4, fsdp=8, zero=1)) == pytest.approx(4 * update(Layout(fsdp=32, zero=1)))
    assert update(Layout(replica=32, zero=1)) == pytest.approx(update(Layout(replica=32, zero=0)))
    assert update(Layout(fsdp=8, context=4, zero=1)) == pytest.approx(update(Layout(fsdp=32, zero=1)))


def test_sums_over_replicas_after_the_backward_are_waited_for():
    early = Layout(replica=4, fsdp=8, zero=3)
    data = [seconds(layout).breakdown["data"] for layout in (early, replace(early, sums_early=False))]
    assert data[1] > 1.05 * data[0]
    alone = Layout(fsdp=32, zero=3)
    assert seconds(alone).seconds == seconds(replace(alone, sums_early=False)).seconds


def test_state_over_replicas_shortens_the_update_and_sends_three_quarters_of_the_bytes():
    """In place of a sum of float32, half of it, and a gather of bfloat16, half as large."""
    whole = Layout(replica=32, zero=1, sums_early=False)
    apart, split = (seconds(replace(whole, shard_state=own)).breakdown for own in (False, True))
    assert split["data"] == pytest.approx(0.75 * apart["data"], rel=0.03)
    early = replace(whole, shard_state=True, sums_early=True)
    assert seconds(early).breakdown["data"] < 0.4 * apart["data"]
    update = lambda **own: seconds(Layout(zero=3, **own)).breakdown["optimizer"]
    assert update(replica=4, fsdp=8, shard_state=True) == pytest.approx(update(fsdp=32))


def _parameters() -> int:
    """Of the model with the vocabulary of `seconds`: its matrices."""
    own = MODEL.embed * (2 * MODEL.embed + 2 * 1024 + 3 * MODEL.mlp)
    return MODEL.layers * own + 2 * 32000 * MODEL.embed


def test_float32_multiplies_at_the_peak_of_float32():
    half, whole = (seconds(replace(BASE, precision=p)).breakdown for p in ("bfloat16", "float32"))
    peaks = CLUSTER.gpu.peaks
    ratio = peaks["bfloat16"] / peaks["float32"]
    assert whole["matmuls"] == pytest.approx(ratio * half["matmuls"], rel=0.05)
    assert whole["attention"] > 0.7 * ratio * half["attention"]


def test_an_update_takes_as_long_as_what_its_rule_reads_and_writes():
    config = Config(model=MODEL)
    rule = lambda name, moments="float32": update_of(
        replace(
            config,
            optimizer=replace(config.optimizer, name=name),
            precision=replace(config.precision, moments=moments),
        )
    )
    assert rule("adamw") == ADAMW
    assert rule("adafactor").moved < rule("lion").moved < rule("adamw").moved
    assert rule("adamw", "int8").moved < rule("adamw", "bfloat16").moved < rule("adamw").moved
    layout = Layout(fsdp=32, zero=1)
    took = {name: _optimizer(layout, rule(name)) for name in ("adamw", "lion")}
    assert took["lion"] == pytest.approx(took["adamw"] * rule("lion").moved / ADAMW.moved)


def test_muon_pays_for_its_matmuls():
    """4 l s^2 + 2 s^3 FLOPs a matrix and iteration, a layer on each of 32 ranks; in float32 at float32's speed."""
    of = lambda dtype: update_of(Config(model=MODEL, optimizer=OptimizerConfig(name="muon", matrix_dtype=dtype)))
    muon = replace(of("float32"), moved=ADAMW.moved)
    embed, kv, mlp = MODEL.embed, 1024, MODEL.mlp
    flops = sum(
        4 * max(a, b) * min(a, b) ** 2 + 2 * min(a, b) ** 3
        for a, b in [(embed, embed)] * 2 + [(embed, kv)] * 2 + [(embed, mlp)] * 3
    )
    layout = Layout(fsdp=32, zero=1)
    reached = hardware_of(CLUSTER.gpu).matmul_share * CLUSTER.gpu.peaks["float32"]
    matmuls = _optimizer(layout, muon) - _optimizer(layout, ADAMW)
    assert matmuls > 5 * flops / reached
    assert matmuls == pytest.approx(5 * flops / reached, rel=0.35)
    assert _optimizer(Layout(replica=32), muon) > 20 * matmuls, "copies repeat each other's work"
    assert muon.matrix_bytes == 4
    assert of("auto").matrix_bytes == of("bfloat16").matrix_bytes == 2
    half = _optimizer(layout, replace(muon, matrix_bytes=2)) - _optimizer(layout, ADAMW)
    assert half < 0.25 * matmuls


def _optimizer(layout: Layout, update: Update) -> float:
    return step_time(replace(MODEL, vocab=32000), 8192, 64, layout, CLUSTER, None, update).breakdown["optimizer"]


def test_experts_without_neighbours_that_share_them_have_no_secondary_shard():
    """They are gathered between nodes by each microbatch; with neighbours, between nodes once a step."""
    model, cluster = replace(PRESETS["mixtral-8x7b"], vocab=32000), parse_cluster("h100:8x8")
    gathered = {}
    for expert, secondary in ((8, 1), (8, 8), (8, 16), (2, 8)):
        wire = Transport(secondary=secondary)
        layout = Layout(fsdp=64 // expert, expert=expert, zero=3, microbatch=1, remat="full", wire=wire)
        step = Steps(model, 4096, 256, cluster, None, ADAMW).step(layout)
        of = step.messages.expert_shards
        gathered[expert, secondary] = of.gather(1e9), of.gather_once(1e9)
    assert gathered[8, 8] == gathered[8, 1] and gathered[8, 1][1] == 0
    assert gathered[8, 16][0] < gathered[8, 1][0] and gathered[8, 16][1] > 0
    assert gathered[2, 8][1] > 0


def test_the_copy_of_experts_between_nodes_is_a_part_of_the_step(monkeypatch: pytest.MonkeyPatch):
    model, cluster = replace(PRESETS["mixtral-8x7b"], vocab=32000), parse_cluster("h100:8x8")
    layout = Layout(fsdp=32, expert=2, zero=3, microbatch=1, remat="full", wire=Transport(secondary=8))
    step_of = lambda: Steps(model, 4096, 256, cluster, None, ADAMW).step(layout)
    step = step_of()
    dense, experts = step.rest.own_layers()
    sent = step.messages
    copies = sent.shards.gather_once(dense + 2 * 32000 * model.embed) + sent.expert_shards.gather_once(experts)
    monkeypatch.setattr(WireMessages, "gather_once", lambda self, elements, coded=0.0: 0.0)
    assert step.spent["data"] - step_of().spent["data"] == pytest.approx(copies)
