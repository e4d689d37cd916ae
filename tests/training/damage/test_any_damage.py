"""Every file of a run's folder, damaged in every way: the run goes on rightly, or says in one sentence why it does not.

Checkpoints are damaged in `tests/checkpoint/test_damage.py` too, token folders in
`tests/data/tokens/test_token_folder.py`.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpar import report
from jaxpar.checkpoint.manifest import MANIFEST
from jaxpar.config import Config, UserError
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.plot import LossPlot
from jaxpar.observe.writers.summary import SummaryFile
from jaxpar.observe.writers.tensorboard import TensorBoard
from jaxpar.training.errors import TrainingError
from tests.same_bits import assert_same_bits
from tests.training.runs import Recorder, folder_of, losses, make_trainer, run_config, saved_state

STEPS, EVERY, SAVED = 6, 2, 4

READ = ("config.yaml", "plan.json", "metrics.jsonl", "events.jsonl", "summary.json")
WRITTEN_ONLY = ("loss.png", "tensorboard")
FILES = READ + WRITTEN_ONLY


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def flipped(place: float, bit: int = 0x80) -> Callable[[Path], None]:
    def flip(content: bytes) -> bytes:
        at = int(place * (len(content) - 1))
        return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]

    return changed(flip)


def replaced(by: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        by(path)

    return replace


def first_lines(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": changed(lambda content: b""),
    "cut": changed(lambda content: content[: len(content) // 2]),
    "cut at a line": changed(first_lines),
    "flipped at the start": flipped(0.0),
    "flipped in the middle": flipped(0.5),
    "flipped at the end": flipped(1.0),
    "a low bit flipped": flipped(1 / 3, 0x02),
    "nested": changed(lambda content: b"[" * 100_000 + b"\n{}\n"),
    "of another kind": changed(lambda content: b'{"steps": "many", "step": true}\n[1, 2]\nnull\n'),
    "a folder": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "a circle": replaced(lambda path: path.symlink_to(path.name)),
    "lost": Path.unlink,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A finished run with the checkpoints of steps 2, 4 and 6."""
    config = config_in(tmp_path_factory.mktemp("whole"))
    assert outcome(config)[0] == ""
    return config


def config_in(folder: Path) -> Config:
    return run_config(folder, STEPS, evaluation={"every": 3, "batches": 1}, checkpoint={"every": EVERY, "keep_last": 9})


def copy_of(whole: Config, folder: Path, *, finished: bool) -> Config:
    """A copy of the run, finished or as a kill after step 5 would have left it."""
    config = config_in(folder)
    shutil.copytree(folder_of(whole), folder_of(config))
    if not finished:
        shutil.rmtree(folder_of(config) / "checkpoints" / f"{STEPS:08d}")
        (folder_of(config) / "summary.json").unlink()
        metrics = folder_of(config) / "metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[: STEPS - 1]))
    return config


def file_of(config: Config, name: str) -> Path:
    """The file, or the only one in the folder of that name."""
    path = folder_of(config) / name
    return next(path.iterdir()) if path.is_dir() else path


def outcome(config: Config) -> tuple[str, list[str]]:
    """The sentence with which the command refuses or stops, and the messages before it."""
    recorded = Recorder()
    try:
        make_trainer(config).fit([JsonLines(), EventLog(), TensorBoard(), LossPlot(), SummaryFile(), recorded])
        return "", recorded.messages
    except (UserError, TrainingError) as error:
        message = str(error)
        assert message.isprintable() and len(message) < 1500, message
        return message, recorded.messages


@pytest.mark.matrix(ci=3)
@pytest.mark.parametrize("finished", [False, True], ids=["interrupted", "finished"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_no_trouble_or_named(tmp_path: Path, whole: Config, name: str, finished: bool):
    kinds = DAMAGES if name in READ else ("cut", "a folder", "lost")
    for number, kind in enumerate(kinds):
        config, damage = copy_of(whole, tmp_path / str(number), finished=finished), DAMAGES[kind]
        file = file_of(config, name)
        if not file.exists():
            assert name == "summary.json" and not finished
            continue
        damage(file)
        message, reported = outcome(config)
        if message:
            assert str(folder_of(config)) in message, (kind, message)
            assert outcome(config)[0] == message, "the same again, until it is mended"
        elif finished and name != "summary.json":
            assert "already has its 6 steps" in reported[-1], (kind, reported)
        else:
            assert json.loads((folder_of(config) / "summary.json").read_text())["steps"] == STEPS, kind
            if name != "metrics.jsonl":
                assert losses(config) == losses(whole), kind
            again, reported = outcome(config)
            assert not again and "already has its 6 steps" in reported[-1], (kind, again, reported)
        shutil.rmtree(tmp_path / str(number))


SENTENCES: dict[tuple[str, str], str] = {
    ("config.yaml", "empty"): r"the record of what was run is damaged \(.*/config\.yaml: empty\); put a copy of config",
    ("config.yaml", "cut"): r"belongs to a run with another configuration|the record of what was run is damaged",
    ("config.yaml", "flipped in the middle"): r"damaged \(.*/config\.yaml: not text in UTF-8",
    ("config.yaml", "nested"): r"damaged \(.*/config\.yaml:1: not valid YAML \(nested more than 20 deep\)\)",
    ("config.yaml", "a folder"): r"damaged \(.*/config\.yaml: cannot be read \(Is a directory\)\)",
    ("config.yaml", "lost"): r"exists and is not a run of jaxpar \(it has no config\.yaml\)",
    ("metrics.jsonl", "flipped at the start"): r"metrics\.jsonl: line 1 is not a JSON object with a step; move",
    ("metrics.jsonl", "nested"): r"metrics\.jsonl: line 1 is not a JSON object with a step",
    ("metrics.jsonl", "a folder"): r"metrics\.jsonl of run 'run' cannot be used \(Is a directory\)",
    ("events.jsonl", "a folder"): r"events\.jsonl of run 'run' cannot be used \(Is a directory\)",
    ("plan.json", "a folder"): r"run.dir is .*/run cannot be written \(Is a directory\)",
}


@pytest.mark.parametrize(("name", "kind"), SENTENCES)
def test_what_cannot_be_used_is_named_with_what_to_do(tmp_path: Path, whole: Config, name: str, kind: str):
    config = copy_of(whole, tmp_path, finished=False)
    DAMAGES[kind](file_of(config, name))
    message, _ = outcome(config)
    assert re.search(SENTENCES[name, kind], message), message


@pytest.mark.parametrize("kind", ["empty", "cut", "of another kind", "nested", "lost"])
def test_a_summary_that_is_damaged_or_lost_is_written_again(tmp_path: Path, whole: Config, kind: str):
    config = copy_of(whole, tmp_path, finished=True)
    summary = folder_of(config) / "summary.json"
    wanted = json.loads(summary.read_text())
    DAMAGES[kind](summary)
    _, reported = outcome(config)
    assert kind == "lost" or reported[0] == f"{summary} is damaged: it is not used, and is written again."
    assert reported[-1] == "All 6 steps are done; only the end of the run was left undone."
    found = json.loads(summary.read_text())
    same = ("steps", "loss", "eval_loss", "baseline_loss", "tokens")
    assert {key: found[key] for key in same} == {key: wanted[key] for key in same}


@pytest.mark.parametrize(("kind", "ends"), [("empty", "is empty"), ("cut at a line", "ends with step 2")])
def test_metrics_that_do_not_reach_the_checkpoint_are_reported(tmp_path: Path, whole: Config, kind: str, ends: str):
    config = copy_of(whole, tmp_path, finished=False)
    metrics = folder_of(config) / "metrics.jsonl"
    DAMAGES[kind](metrics)
    message, reported = outcome(config)
    lost = f"{metrics} {ends}, and the checkpoint is of step 4: what lies between is lost to the record."
    assert (message, reported[0]) == ("", lost)
    wanted = losses(whole)
    assert {step: losses(config)[step] for step in (5, 6)} == {step: wanted[step] for step in (5, 6)}


def test_steps_out_of_order_are_damage(tmp_path: Path, whole: Config):
    config = copy_of(whole, tmp_path, finished=False)
    metrics = folder_of(config) / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines[:2], lines[0], *lines[3:]]))
    assert re.search(r"line 3 is of step 1 and comes after step 2; move the file away to go on", outcome(config)[0])


@pytest.mark.parametrize("name", FILES)
def test_a_report_of_a_damaged_folder_states_what_is_wrong_and_shows_the_rest(
    tmp_path: Path, whole: Config, name: str, capsys: pytest.CaptureFixture[str]
):
    for number, (kind, damage) in enumerate(DAMAGES.items()):
        config = copy_of(whole, tmp_path / str(number), finished=True)
        damage(file_of(config, name))
        code = report.main([str(folder_of(config))])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, ""), kind
        assert (folder_of(config) / "report.html").stat().st_size > 10_000


def flip_a_bit(checkpoint: Path) -> None:
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    flipped(0.5, 1)(max(files, key=lambda path: path.stat().st_size))


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
    tmp_path: Path, whole: Config, damage: Callable[[Path], None], why: str
):
    config = copy_of(whole, tmp_path, finished=False)
    newest = folder_of(config) / "checkpoints" / f"{SAVED:08d}"
    damage(newest)
    _, messages = outcome(config)
    [named] = [text for text in messages if "is skipped" in text]
    assert named.startswith(f"checkpoint {newest} is skipped, because ") and named.endswith(why)
    assert losses(config) == losses(whole)
    assert_same_bits(saved_state(config, STEPS), saved_state(whole, STEPS))
    assert newest.with_name(f"{newest.name}.broken-1").is_dir(), "the damaged one is kept for a person to look at"


def test_a_run_with_no_usable_checkpoint_does_not_overwrite_its_record(tmp_path: Path, whole: Config):
    config = copy_of(whole, tmp_path, finished=False)
    for checkpoint in (folder_of(config) / "checkpoints").iterdir():
        flip_a_bit(checkpoint)
    before = (folder_of(config) / "metrics.jsonl").read_text()
    message, _ = outcome(config)
    assert all(part in message for part in ("no checkpoint that can be used", "step 4", "repair"))
    assert (folder_of(config) / "metrics.jsonl").read_text() == before


def test_a_run_killed_in_its_first_save_starts_over(tmp_path: Path, whole: Config):
    config = copy_of(whole, tmp_path, finished=False)
    shutil.rmtree(folder_of(config) / "checkpoints" / f"{SAVED:08d}")
    delete_the_manifest(folder_of(config) / "checkpoints" / f"{EVERY:08d}")
    (folder_of(config) / "events.jsonl").unlink()  # which would have told of a save
    assert outcome(config)[0] == ""
    assert losses(config) == losses(whole)
