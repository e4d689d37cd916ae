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


def test_groups_are_layers_and_what_stays_under_each_rule_is_within_the_budget(capfd: pytest.CaptureFixture[str]):
    """Master weights and two moments in float32 of 8.03 billion parameters, over 8 GPUs."""
    plans = found(capfd, "--chunks", "6GiB")
    groups, ways = plans["groups"], {way["name"]: way for way in plans["ways"]}
    assert list(groups) == ["embedding", *(f"layer {number}" for number in range(32)), "head"]
    assert sum(groups.values()) == pytest.approx(12 * 8.03e9 / 8, rel=0.001)
    furthest, pinned, recent, program = ways.values()
    assert furthest["bytes_in"] < pinned["bytes_in"] < recent["bytes_in"] == sum(groups.values())
    assert sum(groups[name] for name in pinned["stays"]) <= 6 * GIB
    # Weights pass in pieces, so they need no room of two groups.
    assert sum(groups.values()) - 6 * GIB <= program["bytes_in"] < furthest["bytes_in"]
    assert "layers.mlp.up" in program["stays"]
    assert run("--chunks", "6GiB") == 0
    said = capfd.readouterr().out
    assert "layers 19-31, head" in said and "memory.optimizer_resident: 6442450944" in said


def test_what_fits_beside_everything_else_need_not_move(capfd: pytest.CaptureFixture[str]):
    plans = found(capfd, "--chunks")
    assert plans["budget"] > sum(plans["groups"].values()) and not plans["ways"]
    assert run("--chunks") == 0
    assert "All of it fits: memory.optimizer_offload: none" in capfd.readouterr().out


def test_a_budget_too_small_for_layers_leaves_what_programs_do(capfd: pytest.CaptureFixture[str]):
    plans = found(capfd, "--chunks", "1GiB")
    (program,) = plans["ways"]
    assert program["name"].startswith("the program: ") and program["stays"]
    assert sum(plans["groups"].values()) - GIB <= program["bytes_in"] < sum(plans["groups"].values())
    assert set(plans["missing"].values()) == {"embedding and head must be on the device together: 1.5 GiB"}
    assert run("--chunks", "1GiB") == 0
    said = capfd.readouterr().out
    assert "No layers, some pinned: embedding and head must be" in said and "the program: weights" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chunks", "6GB"], "--chunks 6GB: expected bytes, as in 6GiB"),
        (["--chunks", "--html", "page.html"], "--html: expected no --chunks with it"),
        (["--chunks", "--remat-front"], "--chunks: expected no --remat-front with it"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]):
    refused_by_command(run(*arguments), *capfd.readouterr(), said)


def test_of_weights_and_gradients_the_program_keeps_the_last_layers(capfd: pytest.CaptureFixture[str]):
    """2 + 4 bytes a parameter of 218 million in a layer. One that leaves comes with 4 for each forward and backward of
    8 microbatches; its gradients go 8 times and come 8, what the first brings for nothing."""
    settings = ("--set", "memory.optimizer_offload=host", "--set", "memory.weights_offload=host")
    plans = found(capfd, *settings, "--chunks", "3GiB")
    layer = 218_112_000 / 8
    assert list(plans["groups"].values()) == pytest.approx([6 * layer] * 32, rel=0.001)
    furthest, program = plans["ways"]
    stay, times = int(3 * GIB // (6 * layer)), 8
    away = 32 - stay
    assert program["stays"] == [f"layer {number}" for number in range(32 - stay, 32)]
    assert program["bytes_in"] == pytest.approx(away * 4 * layer * (2 * times + times), rel=0.001)
    assert program["bytes_out"] == pytest.approx(away * 4 * layer * times, rel=0.001)
    assert furthest["loads"] < program["loads"] == 2 * times * away
    assert furthest["bytes_in"] < program["bytes_in"] and furthest["bytes_out"] < program["bytes_out"]
    assert run(*settings, "--chunks", "3GiB") == 0
    assert "memory.weights_offload: host, memory.weights_resident: 3221225472" in capfd.readouterr().out
