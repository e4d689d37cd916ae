"""`python -m jaxpar.sweep`: points, names and refusals; signals reach a run; a sweep that is trained, and continued."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from jaxpar import sweep
from jaxpar.cli import run_command
from jaxpar.config import config_to_yaml, load_config
from jaxpar.config.reading.sweep_points import drawn, grid, suffixes, varied
from tests.sentences import refused_by_command

RATES = "optimizer.learning_rate=1e-3,3e-3"


def test_a_grid_has_all_combinations_and_values_with_commas_in_brackets_and_quotes():
    shared, keys = varied(["run.steps=5", "a.b=1,2", "a.list=[1,[2,3]],[4]", 'a.text="x,y",z'])
    assert shared == ["run.steps=5"]
    assert keys == {"a.b": ["1", "2"], "a.list": ["[1,[2,3]]", "[4]"], "a.text": ['"x,y"', "z"]}
    points = grid(keys)
    assert len(points) == 8 and points[0] == {"a.b": "1", "a.list": "[1,[2,3]]", "a.text": '"x,y"'}
    names = suffixes(points)
    assert len(set(names)) == 8 and names[0] == "b=1-list=_1_2_3_-text=_x_y_"
    assert suffixes(grid({"a.rate": ["1"], "b.rate": ["2"]})) == ["a.rate=1-b.rate=2"]


def test_random_points_are_in_their_ranges_evenly_by_logarithm_and_more_begin_with_fewer():
    _, keys = varied(["a.rate=1e-4..1e-2", "a.layers=2..9", "a.kind=x,y"])
    points = drawn(keys, 200, seed=1)
    assert drawn(keys, 20, seed=1) == points[:20] != drawn(keys, 20, seed=2)
    rates, layers = [float(one["a.rate"]) for one in points], {int(one["a.layers"]) for one in points}
    assert all(1e-4 <= rate <= 1e-2 for rate in rates) and 70 < sum(rate < 1e-3 for rate in rates) < 130
    assert layers == set(range(2, 10)) and {one["a.kind"] for one in points} == {"x", "y"}
    assert len({tuple(one.values()) for one in points}) == 200
    narrow = [float(one["a.rate"]) for one in drawn({"a.rate": ["1.0001e-3..1.001e-3"]}, 3, seed=0)]
    assert len(set(narrow)) == 3 and all(1.0001e-3 <= rate <= 1.001e-3 for rate in narrow)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("--set", "several values")),
        (["--set", "optimizer.learning_rate=1e-3,1e-3"], ("learning_rate", "different")),
        (["--set", "optimizer.learning_rate=1e-3,"], ("learning_rate", "empty")),
        (["--set", RATES, "--set", RATES], ("learning_rate", "twice")),
        (["--set", "optimizer.learning_rate=1e-4..1e-2"], ("range", "--random")),
        (["--set", "optimizer.learning_rate=1e-2..1e-4", "--random", "2"], ("1e-2..1e-4", "low < high")),
        (["--set", RATES, "--random", "3"], ("--random 3", "2")),
        (["--set", "run.name=a,b"], ("run.name", "one value")),
        (["--set", "optimizer.learning_rte=1,2"], ("learning_rte", "learning_rate")),
        (["--set", "run.profile=1:2,5000:6000"], ("run.profile", "5000:6000")),
    ],
)
def test_what_is_no_sweep_is_refused_before_a_run(arguments: list[str], parts: tuple[str, ...], capsys):
    refused_by_command(sweep.main(arguments), *capsys.readouterr(), *parts)


def test_a_job_of_a_slurm_array_becomes_the_training_of_its_point(monkeypatch: pytest.MonkeyPatch):
    became = list[list[str]]()
    monkeypatch.setattr(os, "execv", lambda _, words: (became.append(words), sys.exit(0)))
    monkeypatch.setenv(sweep.ARRAY_INDEX, "1")
    with pytest.raises(SystemExit):
        sweep.main(["--set", RATES, "--set", "run.name=first"])
    assert became[0][1:3] == ["-m", "jaxpar.train"] and became[0][-1] == "run.name=first-learning_rate=3e-3"


def test_a_point_that_a_slurm_array_does_not_have_is_refused(monkeypatch, capsys):
    monkeypatch.setenv(sweep.ARRAY_INDEX, "2")
    refused_by_command(sweep.main(["--set", RATES]), *capsys.readouterr(), sweep.ARRAY_INDEX, "--array=0-1")


def test_a_run_that_is_told_to_stop_saves_before_its_command_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "saves.py").write_text(
        "import pathlib, signal, time\n"
        "def save(*_): time.sleep(0.6); pathlib.Path('saved').touch(); raise SystemExit\n"
        "signal.signal(signal.SIGTERM, save); pathlib.Path('ready').touch(); time.sleep(60)\n"
    )
    monkeypatch.chdir(tmp_path)

    def terminate() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_command(["saves"])
    thread.join()
    assert (tmp_path / "saved").exists() and run_command(["no_such_module"]) == 1


class Trained:
    """A stand-in for training: which runs were started, and what each leaves in its folder."""

    def __init__(self, *codes: int):
        self.started = list[list[str]]()
        self.codes = list(codes)

    def __call__(self, words: list[str]) -> int:
        self.started.append(words)
        if words[0] == "jaxpar.report":
            return 0
        config = load_config(None, words[2::2])
        (folder := Path(config.run.dir) / config.run.name).mkdir(parents=True, exist_ok=True)
        if code := self.codes.pop(0) if self.codes else 0:
            return code
        (folder / "config.yaml").write_text(config_to_yaml(config))
        (folder / "metrics.jsonl").write_text(json.dumps({"step": config.run.steps, "eval_loss": 2.5}) + "\n")
        (folder / "events.jsonl").write_text('{"event": "start"}\n{"event": "end"}\n')
        return 0


def test_a_point_that_fails_does_not_stop_the_others_and_is_trained_by_the_next_sweep(tmp_path, monkeypatch, capsys):
    command, page = ["--set", f"run.dir={tmp_path}", "--set", RATES], str(tmp_path / "run-sweep.html")
    monkeypatch.setattr(sweep, "run_command", trained := Trained(1, 0))
    assert sweep.main(command) == 1
    assert "1 of 2 points failed: run-learning_rate=1e-3 (exit status 1)" in capsys.readouterr().out
    assert trained.started[-1] == ["jaxpar.report", str(tmp_path / "run-learning_rate=3e-3"), "--out", page]
    monkeypatch.setattr(sweep, "run_command", trained := Trained())
    assert sweep.main(command) == 0
    assert [words[0] for words in trained.started] == ["jaxpar.train", "jaxpar.report"]


def test_a_run_of_another_configuration_or_of_fewer_steps_is_not_done_and_not_compared(tmp_path, monkeypatch):
    command = ["--set", f"run.dir={tmp_path}", "--set", RATES]
    monkeypatch.setattr(sweep, "run_command", Trained())
    assert sweep.main(command) == 0
    monkeypatch.setattr(sweep, "run_command", longer := Trained())
    assert sweep.main([*command, "--set", "run.steps=2000"]) == 0
    assert [words[0] for words in longer.started] == ["jaxpar.train", "jaxpar.train", "jaxpar.report"]
    monkeypatch.setattr(sweep, "run_command", other := Trained(2, 2))
    assert sweep.main([*command, "--set", "data.batch_size=64", "--set", "run.steps=2000"]) == 1
    assert [words[0] for words in other.started] == ["jaxpar.train", "jaxpar.train"]


def test_a_page_that_cannot_be_written_is_refused_before_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (file := tmp_path / "mine.html").write_text("mine")
    refused_by_command(sweep.main(["--set", RATES, "--out", str(file)]), *capsys.readouterr(), "--out", "mine.html")


@pytest.mark.long
def test_a_sweep_trains_compares_and_continues_and_compiles_its_programs_once(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    config = {
        "run": {"steps": 2, "name": "tiny", "dir": str(tmp_path / "runs"), "compile_cache": str(tmp_path / "cache")},
        "model": {"layers": 1, "embed": 32, "heads": 2, "kv_heads": 2, "mlp": 64},
        "parallel": {"fsdp": -1},
        "data": {"batch_size": 8, "sequence_length": 32},
        "evaluation": {"sample_tokens": 0},
    }
    (file := tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert sweep.main(["--config", str(file), "--set", "optimizer.learning_rate=1e-3,1e-2"]) == 0
    programs = {one.name for one in (tmp_path / "cache").rglob("*-cache")}
    assert programs and (tmp_path / "runs/tiny-sweep.html").exists()
    capfd.readouterr()
    assert sweep.main(["--config", str(file), "--set", "optimizer.learning_rate=1e-3,1e-2,1e-1"]) == 0
    printed = capfd.readouterr().out
    assert "1 of 3: tiny-learning_rate=1e-3 is done" in printed and "3 of 3: python -m jaxpar.train" in printed
    assert {one.name for one in (tmp_path / "cache").rglob("*-cache")} == programs
    page = (tmp_path / "runs/tiny-sweep.html").read_text()
    assert all(f"tiny-learning_rate={rate}" in page for rate in ("1e-3", "1e-2", "1e-1"))
