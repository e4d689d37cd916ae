"""The folder of a run: what it promises to hold, when a run may go on in it, and that nothing in it is lost."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import Config, load_config
from jaxpar.layout.plan_file import PlanFile, read
from jaxpar.observe.writers.default import default_listeners
from jaxpar.observe.writers.jsonl import read_metrics
from jaxpar.training.run_folder.folder import RunFolder
from tests.sentences import refused
from tests.training.runs import fit, folder_of, losses, make_trainer, run_config

METRICS = {"step", "loss", "grad_norm", "learning_rate", "tokens_per_second", "step_time_s"}
ON: dict[str, Any] = {
    "evaluation": {"every": 2, "batches": 1, "sample_tokens": 3},
    "checkpoint": {"every": 2},
}
SUMMARY = {"steps", "loss", "eval_loss", "baseline_loss", "tokens", "train_seconds", "compile_seconds", "peak_bytes"}


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time of change and its bytes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run with everything on, at its end."""
    config = run_config(tmp_path_factory.mktemp("finished"), 4, **ON)
    make_trainer(config).fit()
    return config


def test_a_run_leaves_the_promised_files_and_keys(finished: Config):
    folder = folder_of(finished)
    names = {"config.yaml", "plan.json", "metrics.jsonl", "summary.json", "tensorboard", "loss.png", "checkpoints"}
    names |= {"events.jsonl", "environment.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name.split(".")[:3] for path in (folder / "tensorboard").iterdir()] == [["events", "out", "tfevents"]]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["00000002", "00000004"]
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert all(record.keys() >= METRICS for record in records)
    assert not any("matrix_learning_rate" in record for record in records), "only Muon has one"
    assert [record["step"] for record in records if "eval_loss" in record] == [2, 4]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.keys() >= SUMMARY
    assert (summary["steps"], summary["loss"]) == (4, records[-1]["loss"])
    assert summary["eval_loss"] == records[-1]["eval_loss"]
    assert all(summary[key] > 0 for key in SUMMARY)


@pytest.mark.long
def test_a_muon_run_logs_both_learning_rates(tmp_path: Path):
    rates = {"learning_rate": 1e-2, "matrix_learning_rate": 4e-2}
    config = run_config(tmp_path, 3, optimizer={"name": "muon", "warmup_steps": 3, **rates})
    fit(config)
    records = read_metrics(folder_of(config) / "metrics.jsonl")
    for name, peak in rates.items():
        assert [record[name] for record in records] == pytest.approx([peak / 3, 2 * peak / 3, peak]), name


def test_the_plan_and_the_configuration_in_the_folder_are_those_of_the_trainer(finished: Config):
    trainer, folder = make_trainer(finished), folder_of(finished)
    assert read(folder / "plan.json") == PlanFile(trainer.config, trainer.plan)
    assert load_config(folder / "config.yaml") == trainer.config


def test_a_finished_run_started_again_reports_it_and_changes_nothing(
    finished: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = folder_of(finished)
    before = contents(folder)
    trainer = make_trainer(finished)
    summary = trainer.fit(default_listeners(trainer.config))
    assert "already has its 4 steps, and nothing was changed; raise run.steps" in capsys.readouterr().out
    assert contents(folder) == before
    assert (summary.steps, summary.loss) == (4, losses(finished)[4])
    assert trainer.evaluate() == summary.eval_loss, "the trained weights are there to be used"


def test_a_finished_run_asked_for_something_else_states_how_to_get_it_and_changes_nothing(finished: Config):
    before = contents(folder_of(finished))
    parallel = replace(finished.parallel, fsdp=2)
    another = replace(finished, parallel=parallel, checkpoint=replace(finished.checkpoint, keep_last=1))
    with refused(
        "run.name is 'run'", "already has its 4 steps", "parallel.", "another run.name", "raise run.steps"
    ) as error:
        fit(another)
    assert "keep_last" not in str(error.value), "how many are kept asks nothing of a run that is done"
    assert contents(folder_of(finished)) == before
    fit(replace(finished, checkpoint=another.checkpoint))


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path: Path):
    config = run_config(tmp_path, 2)
    folder_of(config).mkdir()
    (folder_of(config) / "thesis.tex").write_text("years of work")
    before = contents(tmp_path)
    with refused("not a run of jaxpar", "no config.yaml"):
        fit(config)
    assert contents(tmp_path) == before


def test_a_folder_in_which_a_kill_left_only_the_beginning_of_a_file_is_new(tmp_path: Path):
    config = run_config(tmp_path, 1)
    folder_of(config).mkdir()
    (folder_of(config) / f".config.yaml.{'0' * 32}.tmp").write_text("run:\n  na")
    (folder_of(config) / ".notes.tmp").write_text("not ours")
    summary, _ = fit(config)
    assert summary.steps == 1
    assert [path.name for path in folder_of(config).iterdir() if path.name.startswith(".")] == [".notes.tmp"]


@pytest.fixture
def saved(finished: Config, tmp_path: Path) -> Config:
    """A copy of the finished run, to be continued."""
    shutil.copytree(folder_of(finished), tmp_path / "runs" / "run")
    return run_config(tmp_path / "runs", 5, **ON)


def check_refused(config: Config, *parts: str) -> None:
    """The run does not start, with a sentence that names these, and writes nothing."""
    before = contents(folder_of(config).parents[1])
    with refused(*parts):
        fit(config)
    assert contents(folder_of(config).parents[1]) == before


@pytest.mark.parametrize("left", ["nothing", "an empty mount point", "a half-written one"])
def test_a_run_whose_checkpoints_are_gone_does_not_overwrite_its_records(saved: Config, left: str):
    checkpoints = folder_of(saved) / "checkpoints"
    checkpoints.rename(away := folder_of(saved).parents[1] / "away")
    if left != "nothing":
        checkpoints.mkdir()
    if left == "a half-written one":
        (checkpoints / "00000004" / "state").mkdir(parents=True)
    found = "missing" if left == "nothing" else "no complete checkpoint"
    mend = ("mount", "move them back", "another run.name", f"move {folder_of(saved)} away")
    check_refused(saved, "run.name is 'run'", f"{checkpoints} ", found, "events.jsonl", "step 4", *mend)
    (folder_of(saved) / "events.jsonl").unlink()
    check_refused(saved, "summary.json", "step 4", *mend)
    if left != "nothing":
        shutil.rmtree(checkpoints)
    away.rename(checkpoints)
    assert [record.step for record in fit(saved)[1].records] == [5]


def test_a_run_that_was_killed_before_its_first_save_starts_over(saved: Config):
    shutil.rmtree(folder_of(saved) / "checkpoints")
    (folder_of(saved) / "summary.json").unlink()
    events = folder_of(saved) / "events.jsonl"
    lines = [line for line in events.read_text().splitlines(keepends=True) if '"saved"' not in line]
    events.write_text("".join(lines) + '{"event": "message", "text": "\\"saved\\""}\n{"event": "saved", "chec')
    assert [record.step for record in fit(saved)[1].records] == [1, 2, 3, 4, 5]


def test_checkpoints_on_a_larger_disk_are_found_through_a_symlink(saved: Config, tmp_path: Path):
    checkpoints, disk = folder_of(saved) / "checkpoints", tmp_path / "disk"
    checkpoints.rename(disk)
    checkpoints.symlink_to(disk)
    assert [record.step for record in fit(saved)[1].records] == [5]
    assert (disk / "00000005" / "manifest.json").exists()
    disk.rename(tmp_path / "elsewhere")
    longer = run_config(tmp_path / "runs", 6, **ON)
    check_refused(longer, "run.name is 'run'", f"{checkpoints} is a symlink to {disk}", "mount it")


@pytest.mark.parametrize("whose", ["beside it", "another name", "another model", "a copy"])
def test_a_symlink_to_the_checkpoints_of_another_run_is_not_followed(saved: Config, tmp_path: Path, whose: str):
    checkpoints, disk = folder_of(saved) / "checkpoints", tmp_path / "disk"
    checkpoints.rename(disk)
    checkpoints.symlink_to(disk)
    owner = f"the run in {tmp_path / 'other' / 'run'}"
    if whose == "beside it":
        folder_of(saved).rename(tmp_path / "kept")
        shutil.copytree(tmp_path / "kept", tmp_path / "other" / "run")
        shutil.copytree(tmp_path / "kept", folder_of(saved), symlinks=True)
        checkpoints.unlink()
        checkpoints.symlink_to(disk := tmp_path / "other" / "run" / "checkpoints")
    elif whose == "a copy":
        shutil.copytree(folder_of(saved), tmp_path / "other" / "run", symlinks=True)
        change_facts(disk, "run", "dir", str(tmp_path / "other"))
    else:
        section, key, value = {"another name": ("run", "name", "b"), "another model": ("model", "mlp", 64)}[whose]
        change_facts(disk, section, key, value)
        owner = "run 'b'" if key == "name" else "a run with another configuration (model.mlp: 64 -> 48)"
    check_refused(saved, f"{checkpoints} is a symlink to {disk}", owner, "this run's checkpoints")


def change_facts(folder: Path, section: str, key: str, value: Any) -> None:
    """Change the configuration that the newest checkpoint was saved with."""
    file = max(folder.iterdir()) / "facts.json"
    facts = json.loads(file.read_text())
    facts["config"][section][key] = value
    file.write_text(json.dumps(facts))


@pytest.mark.parametrize("place", ["the run's folder", "its parent"])
def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("kept")
    keys = {"dir": str(tmp_path), "name": "file"} if place == "the run's folder" else {"dir": str(tmp_path / "file")}
    with refused("run.dir", str(tmp_path / "file"), "Not a directory"):
        fit(run_config(tmp_path, 2, run=keys))
    assert (tmp_path / "file").read_text() == "kept"


def test_layouts_that_a_run_had_are_kept_beside_the_newest(tmp_path: Path):
    for layout in ({"fsdp": 2}, {"tensor": 2}, {"context": 2}):
        config = run_config(tmp_path, 4, parallel=layout)
        RunFolder(config).write(make_trainer(config).plan, step=2)
    folder = folder_of(config)
    kept = read(folder / "plan-until-2.json").plan
    assert kept.axes.fsdp == 2, "the layout that made the steps, not the one that was only tried"
    assert load_config(folder / "config-until-2.yaml").parallel.fsdp == 2
    assert read(folder / "plan.json").plan.axes.context == 2


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    fit(run_config(Path("~/my-runs"), 1))
    assert (tmp_path / "my-runs" / "run" / "metrics.jsonl").exists()
