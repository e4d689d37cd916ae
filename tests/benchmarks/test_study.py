"""Studies of validation losses: the settings of each run, what is not run again, and the table."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import jaxpar
from benchmarks import quantized
from benchmarks.fp8 import __main__ as fp8
from benchmarks.fp8 import branched
from jaxpar.config import load_config


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that were trained, in order; the loss of a run is 2, and 1% more if anything is quantized."""
    found = []

    def run(command: list[str], **_: Any) -> None:
        config = load_config(Path(command[command.index("--config") + 1]), command[command.index("--config") + 3 :: 2])
        found.append(config)
        sent = config.parallel.quantized
        exact = sent.weights is None and sent.gradients is None and config.precision.matmul is None
        folder = Path(config.run.dir) / str(config.run.name)
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"eval_loss": 2.0 if exact else 2.02}))

    monkeypatch.setattr(subprocess, "run", run)
    return found


def test_each_seed_is_compared_with_the_exact_run_of_its_own(trained: list[Any], tmp_path, capsys):
    arguments = ["--folder", str(tmp_path), "--seeds", "2", "--steps", "7", "--messages", "exact", "both int8"]
    quantized.main(arguments)
    assert [(c.run.seed, c.parallel.quantized.weights, c.parallel.quantized.gradients) for c in trained] == [
        (0, None, None), (0, "int8", "int8"), (1, None, None), (1, "int8", "int8"),
    ]  # fmt: skip
    assert all(config.run.steps == 7 and config.parallel.fsdp == 4 for config in trained)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].split() == ["both", "int8", "2.0200", "+1.00%", "+1.00%,", "+1.00%"]
    quantized.main(arguments)
    assert len(trained) == 4, "what is in the folder is not run again"


def test_an_outlier_is_planted_in_quantized_runs_alone(trained: list[Any], tmp_path: Path):
    fp8.main(["--folder", str(tmp_path), "--seeds", "1", "--recipes", "none", "fp8_block", "--outlier", "64"])
    exact, block = trained
    assert block.run.name == "fp8_block-128-outlier64-400-0" and block.precision.matmul == "fp8_block"
    assert block.precision.matmul_options.first_layers == 0 and exact.precision.matmul is None


def test_all_recipes_go_on_from_the_weights_of_one_bfloat16_run(trained: list[Any], tmp_path, monkeypatch, capsys):
    class Fake:
        def __init__(self, path: Path, overrides: list[str]) -> None:
            self.config, self.steps = load_config(path, overrides), 0
            branches.append(self)

        def evaluate(self) -> float:
            return 2.0 + (0.02 * self.steps if self.config.precision.matmul else 0.0)

        def step(self) -> None:
            self.steps += 1

    branches: list[Fake] = []
    monkeypatch.setattr(jaxpar, "Trainer", Fake)
    branched.main(["--folder", str(tmp_path), "--seeds", "2", "--recipes", "fp8_block", "--after", "3"])
    assert [(c.run.seed, c.precision.compute) for c in trained] == [(0, "bfloat16"), (1, "bfloat16")]
    found = [(one.config.precision.matmul, Path(str(one.config.run.init_from)).name, one.steps) for one in branches]
    sources = "bfloat16-400-0", "bfloat16-400-1"
    assert found == [(recipe, source, 3) for source in sources for recipe in (None, "fp8_block")]
    assert len({(one.config.run.seed, one.config.optimizer) for one in branches}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "+0.000%" in lines[-4] and lines[-1].split() == ["fp8_block", "2.0600", "+3.000%", "+3.000%,", "+3.000%"]


def test_what_no_run_can_be_trained_with_is_one_sentence(trained: list[Any], tmp_path, capsys):
    for arguments, sentence in ((["--seeds", "0"], "--seeds: expected"), (["--embed", "100"], "model.embed: 100")):
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(fp8.main(["--folder", str(tmp_path), *arguments]))
        errors = capsys.readouterr().err
        assert ended.value.code == 2 and sentence in errors and "Traceback" not in errors
    assert not trained
