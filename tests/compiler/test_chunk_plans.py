"""`python -m jaxpar.inspect --chunks`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.inspect import main
from tests.sentences import refused_by_command

LLAMA = Path(__file__).parents[2] / "configs" / "llama3_8b.yaml"
GIB = 2**30


def run(*arguments: str) -> int:
    return main(["--config", str(LLAMA), "--cluster", "h100:1x8", *arguments])


def found(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run("--json", *arguments) == 0
    return json.loads(capfd.readouterr().out)


def test_whole_weights_stay_within_the_budget_and_the_rest_moves(capfd: pytest.CaptureFixture[str]):
    """Master weights and two moments in float32 of 8.03 billion parameters, over 8 GPUs."""
    plan = found(capfd, "--chunks", "6GiB")
    groups = plan["groups"]
    assert sum(groups.values()) == pytest.approx(12 * 8.03e9 / 8, rel=0.001)
    kept = sum(groups[name] for name in plan["stays"])
    assert kept <= 6 * GIB
    assert plan["bytes_in"] == plan["bytes_out"] == sum(groups.values()) - kept
    assert "layers.mlp.up" in plan["stays"] and plan["loads"] is None
    assert run("--chunks", "6GiB") == 0
    printed = capfd.readouterr().out
    assert "layers.mlp.gate, layers.mlp.up" in printed and "memory.optimizer_resident: 6442450944" in printed


def test_what_fits_beside_everything_else_need_not_move(capfd: pytest.CaptureFixture[str]):
    plan = found(capfd, "--chunks")
    assert plan["budget"] > sum(plan["groups"].values()) and plan["stays"] == list(plan["groups"])
    assert (plan["bytes_in"], plan["bytes_out"]) == (0, 0)
    assert run("--chunks") == 0
    assert "All of it fits: memory.optimizer_offload: none" in capfd.readouterr().out


def test_without_a_budget_all_of_it_moves(capfd: pytest.CaptureFixture[str]):
    plan = found(capfd, "--chunks", "0GiB")
    assert not plan["stays"] and plan["bytes_in"] == sum(plan["groups"].values())
    assert run("--chunks", "0GiB") == 0
    assert "stays on the device   nothing" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--chunks", "6GB"], "--chunks: expected bytes, as in 25165824, 24MiB or 6GiB, got '6GB'"),
        (["--chunks", "--out", "page.html"], "--out: expected no --chunks with it"),
        (["--chunks", "--remat-frontier"], "--chunks: expected no --remat-frontier with it"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], expected: str, capfd: pytest.CaptureFixture[str]):
    refused_by_command(run(*arguments), *capfd.readouterr(), expected)


def test_of_weights_and_gradients_the_program_keeps_the_last_layers(capfd: pytest.CaptureFixture[str]):
    """2 + 4 bytes a parameter of 218 million in a layer. An offloaded one is fetched with 4 for each forward and
    backward of 8 microbatches; its gradients are written back 8 times and fetched 8 times (the first for nothing)."""
    settings = ("--set", "memory.optimizer_offload=host", "--set", "memory.weights_offload=host")
    plan = found(capfd, *settings, "--chunks", "3GiB")
    layer = 218_112_000 / 8
    assert list(plan["groups"].values()) == pytest.approx([6 * layer] * 32, rel=0.001)
    stay, times = int(3 * GIB // (6 * layer)), 8
    offloaded = 32 - stay
    assert plan["stays"] == [f"layer {number}" for number in range(32 - stay, 32)]
    assert plan["loads"] == 2 * times * offloaded
    assert plan["bytes_in"] == pytest.approx(offloaded * 4 * layer * (2 * times + times), rel=0.001)
    assert plan["bytes_out"] == pytest.approx(offloaded * 4 * layer * times, rel=0.001)
    assert run(*settings, "--chunks", "3GiB") == 0
    printed = capfd.readouterr().out
    assert (
        f"layers {32 - stay}-31" in printed
        and "memory.weights_offload: host with memory.weights_resident: 3221225472" in printed
    )
