"""Weights & Biases, for real but offline: what it keeps in the run's folder is read back."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpar.observe.writers.wandb import WeightsAndBiases
from tests.observe.records import run_info
from tests.patience import seconds
from tests.sentences import refused

OPENING = """
import sys
from pathlib import Path
import psutil
import jaxpar.observe.writers.wandb
from jaxpar.config import UserError
from jaxpar.observe.events import Listener, Listeners
from jaxpar.observe.writers.wandb import WeightsAndBiases
from tests.observe.records import record, run_info, summary
folder = Path(sys.argv[1])
"""


def alone(folder: Path, program: str, **environment: str) -> str:
    """The output of `program` in a process of its own: W&B starts a service, and announces it to later processes."""
    elsewhere = {f"WANDB_{name}_DIR": str(folder.parent) for name in ("CACHE", "CONFIG", "DATA")}
    done = subprocess.run(
        [sys.executable, "-c", OPENING + program, str(folder)],
        env={**os.environ, "WANDB_MODE": "offline", "HOME": str(folder.parent), **elsewhere, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(120),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept(folder: Path) -> list[Any]:
    """The records of the offline runs under `folder`, oldest run first.

    A file has a header of 7 bytes, then LevelDB's log format: blocks of 32 KiB, in which a piece of a record has a
    checksum (4 bytes), its length (2) and a type (1 whole, 2 first, 3 middle, 4 last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    records, whole = [], b""
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        content, place = file.read_bytes(), 7
        while place + 7 <= len(content):
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            length, kind = struct.unpack_from("<HB", content, place + 4)
            whole += content[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):
                records.append(Record.FromString(whole))
                whole = b""
    return records


def identity(folder: Path) -> str:
    return json.loads((folder / "wandb.json").read_text())["id"]


def history(folder: Path) -> list[dict[str, Any]]:
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in found.history.item}
        for found in kept(folder)
        if found.WhichOneof("record_type") == "history"
    ]


def test_an_offline_run_holds_steps_evaluations_configuration_and_summary(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    printed = alone(
        folder,
        """
writer = WeightsAndBiases("a-project")
print(writer.start(run_info(folder)))
writer.step(record(10, memory_bytes=2**30))
writer.evaluation(20, 1.9, 2.3)
writer.step(record(20, eval_loss=1.9))
writer.sample("def", " main")
writer.end(summary())
writer.close()
""",
    )
    assert printed.count("\n") == 1
    (place,) = folder.glob("wandb/offline-run-*")
    assert f"wandb sync {place}" in printed, "where it writes, and how it is sent"
    lines = history(folder)
    assert [line["step"] for line in lines if "train/loss" in line] == [10, 20]
    assert lines[0]["train/loss"] == pytest.approx(2.9) and lines[0]["memory/device_bytes"] == 2**30
    assert next(line for line in lines if "eval/loss" in line)["eval/baseline_loss"] == 2.3
    records = kept(folder)
    begun = next(found.run for found in records if found.WhichOneof("record_type") == "run")
    assert (begun.project, begun.display_name) == ("a-project", "first")
    assert begun.run_id == identity(folder)
    assert any(item.key == "run" and "steps" in item.value_json for item in begun.config.update)
    final = [item.key or item.nested_key[0] for found in records for item in found.summary.update]
    assert "final/eval_loss" in final


def test_a_run_that_goes_on_is_the_same_run_there_and_another_project_is_not(tmp_path: Path) -> None:
    printed = alone(
        run_folder(tmp_path),
        """
for first_step, project in ((1, "a-project"), (11, "a-project"), (21, "another")):
    writer = WeightsAndBiases(project)
    writer.start(run_info(folder, first_step=first_step))
    writer.close()
    print((folder / "wandb.json").read_text(), end="")
""",
    )
    first, second, third = (json.loads(line)["id"] for line in printed.splitlines())
    assert first == second != third


def test_when_it_dies_the_others_are_notified_once_and_the_run_goes_on(tmp_path: Path) -> None:
    printed = alone(
        run_folder(tmp_path),
        """
class Heard(Listener):
    def step(self, record):
        print("step", record.step)
    def message(self, text):
        print(text)
everyone = Listeners([WeightsAndBiases("a-project"), Heard()])
everyone.start(run_info(folder))
[service] = [child for child in psutil.Process().children() if "wandb-core" in child.name()]
service.kill()
service.wait()
for step in (1, 2, 3):
    everyone.step(record(step))
everyone.end(summary())
everyone.close()
""",
    )
    place, reported, *steps = printed.splitlines()
    assert "wandb sync" in place
    assert steps == ["step 1", "step 2", "step 3"]
    assert reported.startswith("WeightsAndBiases: nothing more is sent to run.wandb (")
    assert reported.endswith("training goes on.")


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "wandb.json").write_text("[1")
    with refused("wandb.json", "expected an object", "project and id"):
        WeightsAndBiases("a-project").start(run_info(folder))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WANDB_API_KEY": "", "NETRC": "/nowhere"}, "No API key configured"),
        ({"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}, "deadline exceeded"),
    ],
)
def test_a_refusal_or_a_server_that_does_not_answer_is_one_sentence(tmp_path, environment, expected):
    program = """
jaxpar.observe.writers.wandb.INIT_PATIENCE_S = 3
try:
    WeightsAndBiases("a-project").start(run_info(folder))
except UserError as error:
    print(error)
"""
    printed = alone(run_folder(tmp_path), program, WANDB_MODE="online", **environment)
    assert printed.startswith("run.wandb: 'a-project' cannot be used (")
    assert expected in printed
    assert printed.count("\n") == 1


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpar.observe.writers.wandb.find_spec", lambda name: None)
    with refused("run.wandb: 'a-project'", "package wandb", "[wandb]"):
        WeightsAndBiases("a-project")
