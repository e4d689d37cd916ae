"""A run whose newest checkpoint is damaged names it, takes the one before, and ends as it would have."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpar.checkpoint.manifest import MANIFEST
from jaxpar.config import Config
from jaxpar.train import main
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.runs import MESH, fit, folder_of, losses, run_config, saved_state, write_config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run of eight steps with the checkpoints of steps 3, 6 and 8."""
    config = run_config(tmp_path_factory.mktemp("whole"), 8, parallel=MESH, checkpoint={"every": 3, "keep_last": 9})
    fit(config)
    return config


def interrupted(whole: Config, folder: Path) -> Config:
    """A copy of the run as a kill after step 7 would have left it."""
    config = run_config(folder, 8, parallel=MESH, checkpoint={"every": 3, "keep_last": 9})
    shutil.copytree(folder_of(whole), folder_of(config))
    shutil.rmtree(folder_of(config) / "checkpoints" / "00000008")
    metrics = folder_of(config) / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:7]))
    return config


def flip_a_bit(checkpoint: Path) -> None:
    largest = max(checkpoint.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def delete_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip_a_bit, "is corrupt (its digest is not the one in manifest.json)"),
        (delete_the_manifest, "it is half-written (it has no manifest.json)"),
    ],
    ids=["bit", "manifest"],
)
def test_a_damaged_newest_checkpoint_is_named_and_skipped(
    tmp_path: Path, whole: Config, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], why: str
):
    config = interrupted(whole, tmp_path)
    newest = folder_of(config) / "checkpoints" / "00000006"
    damage(newest)
    assert main(["--config", str(write_config(config, tmp_path / "run.yaml"))]) == 0
    shown = capsys.readouterr().out
    [named] = [line for line in shown.splitlines() if "is skipped" in line]
    assert named.startswith(f"- checkpoint {newest} is skipped, because ")
    assert named.endswith(why)
    assert "Continuing with step 4 of 8" in shown
    assert losses(config) == losses(whole)
    assert_same_bits(saved_state(config, 8), saved_state(whole, 8))
    assert (newest.parent / "00000006.broken-1").is_dir(), "the damaged one is kept for a person to look at"


def test_a_run_with_no_usable_checkpoint_does_not_overwrite_its_record(tmp_path: Path, whole: Config):
    config = interrupted(whole, tmp_path)
    for step in ("00000003", "00000006"):
        flip_a_bit(folder_of(config) / "checkpoints" / step)
    before = (folder_of(config) / "metrics.jsonl").read_text()
    with refused("no checkpoint that can be used", "step 6", "repair"):
        fit(config)
    assert (folder_of(config) / "metrics.jsonl").read_text() == before


def test_a_run_killed_in_its_first_save_starts_over(tmp_path: Path, whole: Config):
    config = interrupted(whole, tmp_path)
    shutil.rmtree(folder_of(config) / "checkpoints" / "00000006")
    delete_the_manifest(folder_of(config) / "checkpoints" / "00000003")
    _, recorded = fit(config)
    assert recorded.records[0].step == 1
    assert losses(config) == losses(whole)
