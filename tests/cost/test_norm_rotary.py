"""Norms of heads with rotary embeddings cost what they move: of XLA, and of a kernel that makes one pass of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.validation.mechanisms import GENERATIONS
from jaxpar.config.presets import PRESETS
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.layer import LayerTime, layer_time
from jaxpar.cost.layer_case import layer_case
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.search.candidate import Planned
from jaxpar.units import MIB
from tests.planner.spaces import model_of, search_of

HOST = parse_cluster("h100:1x8")
HARDWARE = hardware_of(HOST.gpu)
DEVICE = device_of(HOST.gpu, HARDWARE)
LLAMA = replace(PRESETS["llama3-8b"], qk_norm=True)


def time(model: Any, tokens: int, norm_rotary: str, does: str = "jaxpar") -> LayerTime:
    case = layer_case(
        model, tokens, 1, 1, 1, "allgather", False, "bfloat16", attention="flash3", norm_rotary=norm_rotary
    )
    return layer_time(case, DEVICE, network_of(HOST, HARDWARE), GENERATIONS[does])


def mebibytes(seconds: float) -> float:
    """What memory-bound work moves in so many seconds."""
    return seconds / DEVICE.bytes_seconds(1.0) / MIB


def more(norm_rotary: str) -> tuple[float, float]:
    """MiB that a layer of Llama 3 8B moves for norms of queries and keys, forward and backward."""
    normed, plain = time(LLAMA, 8192, norm_rotary), time(replace(LLAMA, qk_norm=False), 8192, norm_rotary)
    return mebibytes(normed.forward.other - plain.forward.other), mebibytes(
        normed.backward.other - plain.backward.other
    )


def saved(model: Any, tokens: int) -> float:
    xla, kernel = (time(model, tokens, name) for name in ("xla", "triton"))
    parts = (getattr(one, way).other for one in (xla, kernel) for way in ("forward", "backward"))
    forward, backward, kernel_forward, kernel_backward = parts
    return mebibytes(forward + backward - kernel_forward - kernel_backward)


def test_a_kernel_saves_what_compiled_programs_move_less():
    """docs/kernels.md: 412 MiB of a layer of Llama 3 8B, 8192 tokens; 624 MiB of Qwen3 0.6B, 16,384 tokens, whose
    program computes more of it again."""
    assert saved(LLAMA, 8192) == pytest.approx(412, rel=0.05)
    assert saved(PRESETS["qwen3-0.6b"], 16384) == pytest.approx(8418 - 7794, rel=0.25)


def test_of_queries_each_way_moves_what_its_passes_do():
    """Passes of docs/kernels.md, queries 64 MiB and keys 16 MiB. Forward: XLA 64 + 128 + 132 + 64, the kernel 64 + 64 +
    68 + 64. Backward without the rounding of attention's gradient, 128 + 64 or its half in XLA's reads: 846 - 64, and
    649 - 192. Without norms, 4 passes of each; beside them the planner counts the copies to kernels."""
    rotation = {"forward": 256.0, "backward": 256.0}
    account = {"xla": (388.0, 846.0 - 64), "triton": (260.0, 649.0 - 192)}
    for name, (forward, backward) in account.items():
        found = [64 / 80 * own for own in more(name)]
        assert rotation["forward"] + found[0] == pytest.approx(forward, rel=0.02)
        assert rotation["backward"] + found[1] == pytest.approx(backward, rel=0.20)


def test_without_norms_of_heads_it_makes_no_difference():
    for model in (replace(LLAMA, qk_norm=False), replace(LLAMA, qk_norm="projection")):
        assert time(model, 8192, "xla") == time(model, 8192, "triton")


def best(asked: str, qk_norm: bool = True) -> Planned:
    config = model_of(model={"qk_norm": qk_norm}, attention={"norm_rotary": asked})
    fixed = {"tensor": 1, "pipe": 1, "context": 1, "microbatch": 1, "remat": "none", "zero": 3}
    return search_of(config, "h100:1x4", **fixed).best(1)[0]


def test_a_plan_that_takes_the_kernel_is_timed_with_it():
    """`auto` takes XLA where the kernel was not verified."""
    kernel, xla, auto = (best(asked) for asked in ("triton", "xla", "auto"))
    for one in (kernel, xla, auto):
        assert one.candidate.layout.norm_rotary == one.plan.norm_rotary.name
    assert kernel.plan.norm_rotary.name == "triton" and xla.plan.norm_rotary.name == "xla"
    spent = [one.candidate.time.breakdown["other"] for one in (kernel, xla, best("auto", qk_norm=False))]
    assert spent[2] < spent[0] < spent[1]
    assert auto.candidate.seconds == (kernel if auto.plan.norm_rotary.name == "triton" else xla).candidate.seconds


def test_what_is_normed_again_in_the_backward_is_not_made_again_besides():
    """Making queries again takes the product and its layout; a backward norms and rotates them in any case."""
    for name in ("xla", "triton"):
        normed, plain = time(LLAMA, 8192, name), time(replace(LLAMA, qk_norm=False), 8192, name)
        again = [one.again(frozenset({"query"})).other for one in (normed, plain)]
        assert mebibytes(again[0]) == pytest.approx(128.0) and mebibytes(again[1]) == pytest.approx(256.0)
