"""The folder of runs is tried out, and nothing is left in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxpar.checkup import disk
from jaxpar.checkup.finding import Finding
from jaxpar.config import Config, ModelConfig, RunConfig


def findings(folder: Path, model: ModelConfig | None = None) -> dict[str, Finding]:
    config = Config(run=RunConfig(dir=str(folder)), model=model or ModelConfig())
    return {finding.check: finding for finding in disk.check_disk(config, 0)}


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "TRIED_BYTES", 2**21)
    monkeypatch.setattr(disk, "SLOW_BYTES_PER_S", 1.0)


def test_a_folder_that_is_not_there_yet_is_tried_where_it_will_be(tmp_path: Path):
    found = findings(tmp_path / "new" / "runs")
    assert found["run.dir"].found.startswith(f"{tmp_path}: ") and found["run.dir"].status == "ok"
    assert "shared folder" not in found
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_wrong():
    found = findings(Path("/proc/nothing"))
    assert list(found) == ["run.dir"]
    assert found["run.dir"].status == "fail" and found["run.dir"].found.startswith("/proc cannot be written (")


def test_a_slow_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "SLOW_BYTES_PER_S", 1e18)
    assert findings(tmp_path)["run.dir"].status == "warn"


def test_room_for_checkpoints_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = ModelConfig(preset="llama3-8b")  # its sizes are not filled in here, and 12 bytes a weight are
    assert findings(tmp_path, model)["room"].status == "ok"
    usage = type("Usage", (), {"free": 5 * 10**7})
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    small = findings(tmp_path, replace(model, layers=1, embed=64, mlp=64))["room"]
    assert (small.status, findings(tmp_path, model)["room"].status) == ("ok", "fail")


@pytest.mark.parametrize("shared", [True, False])
def test_another_process_states_whether_it_sees_what_process_0_writes(tmp_path, shared: bool, monkeypatch):
    token = tmp_path / "token-1" if shared else Path("/elsewhere/token-1")
    if shared:
        token.touch()
    monkeypatch.setattr(disk.jax, "process_count", lambda: 2)
    monkeypatch.setattr(disk, "run_on_process_0", lambda work: str(token))
    monkeypatch.setattr(disk, "gather", lambda text: None)
    own = tmp_path / "own"
    own.mkdir()
    config = Config(run=RunConfig(dir=str(own)))
    found = {each.check: each for each in disk.check_disk(config, 1)}
    assert found["shared folder"].status == ("ok" if shared else "fail")
