"""A run that stops and goes on is the run that never stopped: on the same mesh bit for bit, on another to rounding."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from tests.same_bits import assert_same_bits
from tests.training.parity.test_kinds import MODEL as KINDS
from tests.training.runs import MESH, fit, folder_of, losses, run_config, saved_state

STOPPED, MORE = 4, 10
FOUR = {"layers": 4}
TOLERANCE = 1e-5
"""Relative difference of a loss, in float32."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor2-context2-fsdp2-zero1-accumulating": {**MESH, "zero": 1, "microbatches": 2},
    "hsdp-zero2": {"replica": 2, "fsdp": 2, "expert": 2, "zero": 2},
    "one-device": {"zero": 0},
    "interleaved-pipeline": {
        "pipe": 2,
        "fsdp": 2,
        "tensor": 2,
        "microbatches": 2,
        "schedule": "interleaved",
        "virtual_stages": 2,
    },
    "uneven-pipeline": {"pipe": 2, "fsdp": 2, "microbatches": 4, "stage_layers": (1, 3), "zero": 1},
}


@pytest.mark.matrix(quick=("adamw-mesh0",), ci=1)
@pytest.mark.parametrize(("optimizer", "mesh"), [("adamw", MESH), ("muon", {"fsdp": 2, "microbatches": 2})])
def test_a_continued_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path, optimizer: str, mesh: dict[str, int]):
    def config(name: str, steps: int) -> Config:
        return run_config(tmp_path, steps, run={"name": name}, parallel=mesh, optimizer={"name": optimizer})

    whole, _ = fit(config("whole", 8))
    fit(config("parts", 4))
    summary, recorded = fit(config("parts", 8))
    assert [record.step for record in recorded.records] == [5, 6, 7, 8]
    assert recorded.messages[0] == "Continuing with changes: run.steps: 4 -> 8."
    assert losses(config("parts", 8)) == losses(config("whole", 8))
    assert_same_bits(saved_state(config("parts", 8), 8), saved_state(config("whole", 8), 8))
    assert (summary.steps, summary.loss, summary.tokens) == (8, whole.loss, whole.tokens)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Fourteen steps over fsdp=8, ZeRO-3, with the checkpoint of step 4 kept."""
    sections: dict[str, Any] = {
        "model": FOUR,
        "parallel": {"fsdp": 8},
        "checkpoint": {"every": STOPPED, "keep_last": 9},
    }
    config = run_config(tmp_path_factory.mktemp("uninterrupted"), STOPPED + MORE, **sections)
    fit(config)
    return config


def copy_until(config: Config, step: int, folder: Path) -> None:
    """The run's folder as it was when it had saved `step`."""
    shutil.copytree(folder_of(config), folder / config.run.name)
    for checkpoint in (folder / config.run.name / "checkpoints").iterdir():
        if int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)


def assert_close(found: dict[int, float], wanted: dict[int, float], tolerance: float = TOLERANCE) -> None:
    assert found.keys() == wanted.keys()
    worst = max(abs(found[step] - loss) / abs(loss) for step, loss in wanted.items())
    assert worst <= tolerance, f"a loss differs by {worst:.1e}"


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_run_goes_on_with_another_mesh_zero_stage_and_microbatch_count(
    tmp_path: Path, uninterrupted: Config, layout: dict[str, int]
):
    copy_until(uninterrupted, STOPPED, tmp_path)
    config = run_config(tmp_path, STOPPED + MORE, model=FOUR, parallel=layout, checkpoint={"every": 9})
    _, recorded = fit(config)
    assert "parallel.fsdp: 8 -> " in recorded.messages[0]
    assert recorded.records[0].step == STOPPED + 1
    assert_close(losses(config), losses(uninterrupted))
    assert (folder_of(config) / f"plan-until-{STOPPED}.json").exists(), "the plan of the first steps is kept"
    if layout == LAYOUTS["uneven-pipeline"]:  # And from layers with padding between them to layers in order.
        back = run_config(tmp_path, STOPPED + MORE, model=FOUR, parallel=MESH, checkpoint={"every": 9})
        shutil.rmtree(folder_of(config) / "checkpoints" / f"{STOPPED + MORE:08d}")
        _, recorded = fit(back)
        assert recorded.records[0].step == 10
        assert_close(losses(back), losses(uninterrupted))


SHARING = {"overlap": {"shard_state_over_replicas": True}}
MOVED: dict[str, tuple[dict[str, Any], list[tuple[int, dict[str, Any]]], float]] = {
    "experts on fewer ranks, Muon, clipped": (
        {
            "model": {
                "layers": 2, "experts": ExpertsConfig(count=4, shared=1, router="sigmoid", width=16),
            },
            "optimizer": {"name": "muon", "matrix_learning_rate": 0.01, "clip_norm": 0.1},
        },
        [(2, {"expert": 4}), (4, {"expert": 2, "fsdp": 2})],
        TOLERANCE,
    ),
    "kinds of layers, another pipeline": (
        {"model": KINDS | {"layers": 5}},
        [(2, {"pipe": 2, "microbatches": 4, "stage_layers": (2, 3)}), (4, {"fsdp": 2, "tensor": 2})],
        TOLERANCE,
    ),
    "moments in 8 bits": (
        {
            "model": {"layers": 2, "embed": 64, "heads": 2, "kv_heads": 2, "mlp": 256},
            "precision": {"moments": "int8"},
        },
        [(3, {"fsdp": 2, "tensor": 2}), (6, {"pipe": 2, "microbatches": 2})],
        1e-4,
    ),
    "state over replicas": (
        {},
        [
            (2, {"fsdp": 2, "replica": 2} | SHARING),
            (4, {"fsdp": 2, "replica": 4, "zero": 1} | SHARING),
            (6, {"fsdp": 2}),
            (8, {"fsdp": 2, "replica": 2} | SHARING),
        ],
        TOLERANCE,
    ),
}  # fmt: skip
"""Sections of the configuration, the last step on each of several meshes, and the tolerance of a loss."""


@pytest.mark.long
@pytest.mark.parametrize("name", MOVED)
def test_a_run_with_other_state_goes_on_with_other_meshes(tmp_path: Path, name: str):
    """Checkpoints hold layers, experts and parts of the state by number, whatever splits or pads them."""
    sections, meshes, tolerance = MOVED[name]

    def config(run: str, steps: int, parallel: dict[str, Any]) -> Config:
        return run_config(tmp_path, steps, **sections, run={"name": run}, parallel=parallel)

    fit(whole := config("whole", meshes[-1][0], {}))
    for before, (steps, parallel) in zip([0, *(steps for steps, _ in meshes)], meshes, strict=False):
        _, recorded = fit(parts := config("parts", steps, parallel))
        assert [record.step for record in recorded.records] == [*range(before + 1, steps + 1)]
    assert_close(losses(parts), losses(whole), tolerance)
