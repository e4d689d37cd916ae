"""The learning-rate finder: what it measures, writes and suggests."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from jaxpar.config import Config, OptimizerConfig
from jaxpar.find_lr import main
from jaxpar.training.rate_sweep import diverged, judge
from tests.sentences import refused_by_command
from tests.training.runs import MESH, folder_of, run_config, write_config

RATES = np.geomspace(1e-6, 1.0, 120).tolist()


def curve(steepest: float, lowest: float, noise: float = 0.0) -> list[float]:
    """Losses that fall from 5 to 3 in an S around `steepest`, and rise beyond `lowest`."""
    x = np.log10(RATES)
    fall = 5 - 2 / (1 + np.exp(-4 * (x - np.log10(steepest))))
    rise = np.maximum(0, x - np.log10(lowest)) ** 2 * 3
    return (fall + rise + noise * np.random.default_rng(0).standard_normal(len(x))).tolist()


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_rate_is_suggested_at_which_the_loss_falls_fastest(noise: float):
    sweep = judge(RATES, curve(1e-3, 1e-1, noise), "it took all steps", Config())
    assert sweep.suggestion is not None
    assert 5e-4 < sweep.suggestion.rate < 2e-3
    assert 3e-2 < sweep.suggestion.lowest < 2e-1
    assert sweep.suggestion.settings == {"optimizer.learning_rate": sweep.suggestion.rate}


def test_muons_own_rate_keeps_its_proportion():
    config = Config(optimizer=OptimizerConfig(name="muon", learning_rate=1e-3, matrix_learning_rate=2e-2))
    sweep = judge(RATES, curve(1e-3, 1e-1), "it took all steps", config)
    assert sweep.suggestion is not None
    rates = sweep.suggestion.settings
    assert rates["optimizer.matrix_learning_rate"] == pytest.approx(20 * rates["optimizer.learning_rate"], rel=0.05)


def test_a_jump_after_the_lowest_point_is_not_mistaken_for_the_fall():
    losses = curve(1e-3, 1e-2)
    losses[100:] = [9.0, 9.0, 9.0, 4.0, 4.0, 9.0, *losses[106:]]
    sweep = judge(RATES, losses, "it took all steps", Config())
    assert sweep.suggestion is not None
    assert 5e-4 < sweep.suggestion.rate < 2e-3


@pytest.mark.parametrize("seed", range(20))
def test_batches_that_differ_do_not_end_a_sweep_whose_rate_is_still_too_low(seed: int):
    losses = 7 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(120))
    assert not any(diverged(losses[:number]) for number in range(1, 121))


def test_a_loss_that_rose_ends_the_sweep():
    fallen = [5.0] * 50 + [3.0] * 50
    assert not diverged([*fallen, 5.5, 5.5])
    assert diverged([*fallen, 5.5, 5.5, 5.5])
    assert not diverged([5.0] * 5 + [9.0] * 5), "too few to decide"


def test_losses_that_do_not_fall_suggest_nothing():
    sweep = judge(RATES, [5.0] * 120, "it took all its 120 steps", Config())
    assert sweep.suggestion is None and "did not fall" in sweep.ended
    assert judge(RATES, [5.0, np.inf], "loss was not finite", Config()).ended.endswith("lower --low")


def test_a_loss_that_still_falls_at_the_end_reports_it():
    falling = np.linspace(5, 3, 120).tolist()
    suggestion = judge(RATES, falling, "it took all steps", Config()).suggestion
    assert suggestion is not None and "a larger --high may find a higher rate" in suggestion.reason


@pytest.mark.long
def test_the_command_sweeps_draws_and_suggests_and_leaves_the_run_alone(tmp_path, capsys):
    config = run_config(tmp_path, 50, parallel=MESH, optimizer={"ema": 0.9}, evaluation={"ema": True})
    file = str(write_config(config, tmp_path / "run.yaml"))
    folder = tmp_path / "run-learning-rate"
    folder.mkdir()
    (folder / "learning-rate.png").write_bytes(b"earlier")
    assert main(["--config", file, "--steps", "40", "--low", "1e-4", "--high", "30"]) == 0
    printed = capsys.readouterr().out
    numbers = json.loads((folder / "learning-rate-2.json").read_text())
    used = len(numbers["rates"])
    np.testing.assert_allclose(numbers["rates"], np.geomspace(1e-4, 30, 40)[:used], rtol=1e-5)
    assert numbers["losses"][0] == pytest.approx(4.43, abs=0.01), "the initial weights"
    assert min(numbers["smooth"]) < 4.2
    assert f"--set optimizer.learning_rate={numbers['suggestion']['rate']:g}" in printed
    assert numbers["config"]["optimizer"]["learning_rate"] == config.optimizer.learning_rate
    picture = Image.open(io.BytesIO((folder / "learning-rate-2.png").read_bytes()))
    assert picture.size == (1280, 720)
    assert not folder_of(config).exists()
    assert (folder / "learning-rate.png").read_bytes() == b"earlier", "nothing is written over"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--low", "1", "--high", "0.1"], "--low and --high: expected 0 < low < high, got 1 and 0.1"),
        (["--low", "0"], "--low and --high: expected 0 < low < high, got 0 and 1"),
        (["--steps", "5"], "--steps: expected at least 20, got 5"),
        (["--out", "file/inside"], "--out: file/inside cannot be written"),
    ],
)
def test_a_sweep_that_cannot_be_made_is_one_sentence(arguments, expected, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert refused_by_command(main(arguments), *capsys.readouterr()).startswith(f"jaxpar: {expected}")
