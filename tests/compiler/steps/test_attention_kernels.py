"""Programs whose attention is our kernels: the report knows their work."""

import re
from collections import Counter
from functools import partial
from typing import Any

import pytest

from jaxpar.compiler.program.costs.ops import Cost, costs
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.cost.operations import device_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import parse_cluster
from pallas_kernels.linear_attention import CHUNK
from tests.compiler.inspected import inspected, wide
from tests.compiler.program.programs import module

LAYERS, ROWS, TOKENS, HEADS, WIDTH = 1, 4, 256, 2, 64
PAIRS = ROWS * HEADS * TOKENS * (TOKENS + 1) // 2
"""Kept pairs of a layer, over all devices."""
PRODUCT = 2 * LAYERS * PAIRS * WIDTH / 8
"""FLOPs of one product of a step, on one of eight devices."""


def kernel(target: str, scopes: str, *, attention: str | None = None) -> Cost:
    """A launch over 2 rows of 1024 tokens: 8 query and 2 KV heads of width 192, values of 128."""
    q, k, v = ("bf16[2,1024,8,192]{3,2,1,0}", "bf16[2,1024,2,192]{3,2,1,0}", "bf16[2,1024,2,128]{3,2,1,0}")
    made = module(
        f"%q = {q} parameter(0)\n%k = {k} parameter(1)\n%v = {v} parameter(2)\n"
        f'%x = f32[2,1024,8,192]{{3,2,1,0}} custom-call(%q, %k, %v), custom_call_target="{target}", '
        f'metadata={{op_name="jit(f)/{scopes}/pallas_call"}}'
    )
    (found,) = costs(made, executions(made), attention=attention)
    assert not made.unknown.notes()
    return found


CAUSAL = 2 * 2 * 8 * (1024 * 1025 // 2)
"""FLOPs of a product, for each element of a head."""


@pytest.mark.parametrize("target", ["__gpu$xla.gpu.triton", "mosaic_gpu_v2"])
def test_a_launch_is_counted_by_the_scope_that_it_runs_in(target: str) -> None:
    forward = kernel(target, "jvp(attention.scores.output.causal)/attention_forward")
    assert (forward.kind, forward.arithmetic) == ("attention", "bfloat16")
    assert (forward.flops, forward.recomputed_flops) == (CAUSAL * (192 + 128), 0)
    again = kernel(target, "rematted_computation/attention.scores.output.causal/attention_forward")
    assert again.recomputed_flops == again.flops == forward.flops
    backward = kernel(target, "transpose(jvp())/attention.scores.slopes.dv.dk.causal/attention_dkv")
    assert (backward.flops, backward.recomputed_flops) == (CAUSAL * 2 * (192 + 128), CAUSAL * (192 + 128))


def test_launches_that_stand_in_for_cudnn_count_five_products_as_wide_as_keys_and_each_exponential_once() -> None:
    launch = partial(kernel, "__gpu$xla.gpu.triton", attention="cudnn")
    forward = launch("jvp(attention.scores.output.causal)/attention_forward")
    assert forward.flops == CAUSAL * 2 * 192
    scopes = "attention.scores.slopes.dq.causal/attention_dq", "attention.scores.slopes.dv.dk.causal/attention_dkv"
    queries, keys = (launch(f"transpose(jvp())/{scope}") for scope in scopes)
    assert queries.flops + keys.flops == CAUSAL * 5 * 192
    assert queries.recomputed_flops + keys.recomputed_flops == CAUSAL * 192
    assert seconds(forward, queries, keys) == pytest.approx(flash("cudnn"))


@pytest.mark.parametrize("target", ["__gpu$xla.gpu.triton", "mosaic_gpu_v2"])
def test_launches_take_as_long_as_their_implementation_in_a_layout(target: str) -> None:
    scopes = {
        "jvp(attention.scores.output.causal)": 0,
        "transpose(jvp())/attention.scores.slopes.dq.causal": 1,
        "transpose(jvp())/attention.scores.slopes.dv.dk.causal": 1,
    }
    name = "triton" if "triton" in target else "mosaic_deterministic"
    assert seconds(*(kernel(target, scope, attention=name) for scope in scopes)) == pytest.approx(flash(name))
    forward, *rest = (kernel(target, scope) for scope in scopes)
    assert seconds(*rest) == pytest.approx(flash(name)[1:])
    if "mosaic" in target:
        whole = kernel(target, "transpose(jvp())/attention.scores.slopes.dv.dk.dq.causal")
        assert seconds(forward, whole) == pytest.approx(flash("mosaic"))


TIMER = StepTimer(gpu_named("h100"), parse_cluster("h100:1x8"), HOPPER)


def flash(kernels: str) -> tuple[float, ...]:
    """Seconds of the attention of `kernel` in a layout, forward and backward."""
    return device_of(TIMER.gpu, HOPPER).flash(2, 8, 1024, 1025 / 2, 192, kernels, 2, 128)


def seconds(*launches: Cost) -> tuple[float, ...]:
    """Seconds of launches, forward (if there are such) and backward."""
    backward = [any(getattr(one.shape, "backward", 0) for one in launch.products) for launch in launches]
    return tuple(
        sum(TIMER.kernel(launch) for launch, back in zip(launches, backward, strict=True) if back == of)
        for of in sorted({*backward})
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("cluster", "strategy", "name", "products", "repeated"),
    [("h100:1x8", "ring", "mosaic", 2 + 5, 1), ("a100-80:1x8", "ulysses", "triton", 2 + 3 + 4, 3)],
)
def test_the_work_of_attention_kernels_is_known(
    cluster: str, strategy: str, name: str, products: int, repeated: int
) -> None:
    sections: dict[str, Any] = {
        "model": {"layers": LAYERS, "heads": HEADS, "kv_heads": HEADS, "embed": HEADS * WIDTH},
        "parallel": {"context": 2, "context_strategy": strategy, "fsdp": 4},
        "attention": {"backend": name},
        "data": {"sequence_length": TOKENS, "batch_size": ROWS},
    }
    analysis, report = inspected(wide(**sections), cluster)
    # Some are inside a fusion that writes their result where it belongs.
    found = [cost for cost in analysis.costs if cost.kind == "attention" and cost.flops]
    assert {cost.arithmetic for cost in found} == {"bfloat16"}
    flops = sum(cost.flops * cost.executions for cost in found)
    again = sum(cost.recomputed_flops * cost.executions for cost in found)
    # Each part of a ring counts as if the diagonal cut it, which is the mean of an empty and a full one.
    assert flops == pytest.approx(products * PRODUCT, rel=0.01)
    assert again == pytest.approx(repeated * PRODUCT, rel=0.01)
    assert report.flops_by_kind["attention"] == flops


MIXERS, STATES, STATE_WIDTH, STATE_ROWS, STATE_TOKENS = 2, 2, 64, 2, 160
CHUNKS = -(-STATE_TOKENS // CHUNK)


@pytest.mark.long
@pytest.mark.parametrize(("mixer", "products"), [("gated_deltanet", 3), ("gla", 2)])
def test_the_kernels_are_in_the_step_and_their_products_are_counted(mixer: str, products: int):
    """A chunk has so many products with a state and one of its tokens with each other, and as many in the backward,
    before which the forward runs once more for the states."""
    linear = LinearAttentionConfig(heads=STATES, key_dim=STATE_WIDTH, value_dim=STATE_WIDTH)
    config = wide(
        model={"layers": MIXERS, "mixer": mixer, "linear_attention": linear},
        attention={"linear_backend": "mosaic"},
        data={"sequence_length": STATE_TOKENS, "batch_size": STATE_ROWS},
        memory={"remat": "none"},
    )
    analysis, _ = inspected(config, "h100:1x1")
    each = 2 * STATE_ROWS * STATES * CHUNKS * CHUNK * (products * STATE_WIDTH * STATE_WIDTH + CHUNK * STATE_WIDTH)
    runs: Counter[tuple[str, float]] = Counter()
    for cost in analysis.costs:
        if cost.flops and (name := re.search(r"linear_attention_(\w+)", cost.op.op_name)):
            runs[name[1], cost.flops / each] += int(cost.executions)
    assert runs == {("forward", 1): 2 * MIXERS, ("backward", 1): MIXERS}
