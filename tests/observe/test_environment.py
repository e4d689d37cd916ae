"""environment.json: what a run was started with."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxpar import __version__
from jaxpar.observe.environment import EnvironmentFile, git_state
from tests.observe.records import run_info


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one\n")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


def test_it_states_what_ran_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "jaxpar.train", "--config", "a b.yaml"])
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    EnvironmentFile().start(run_info(tmp_path))
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["command"] == "python -m jaxpar.train --config 'a b.yaml'" and found["jaxpar"] == __version__
    assert found["packages"]["jax"] == jax.__version__ and found["devices"]["count"] == len(jax.devices())
    assert found["devices"]["kind"] == jax.devices()[0].device_kind and found["host"]["memory_bytes"] > 2**28
    assert found["variables"]["NCCL_DEBUG"] == "INFO"
    assert "secret" not in (tmp_path / "environment.json").read_text()


def test_a_start_with_another_environment_keeps_the_earlier_one_beside_it(tmp_path, monkeypatch):
    EnvironmentFile().start(run_info(tmp_path))
    before = (tmp_path / "environment.json").read_text()
    EnvironmentFile().start(run_info(tmp_path, first_step=11))
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"], "nothing changed"
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    EnvironmentFile().start(run_info(tmp_path, first_step=21))
    assert (tmp_path / "environment-until-20.json").read_text() == before
    assert (tmp_path / "environment.json").read_text() != before


def test_the_commit_and_whether_files_differ_from_it(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert git_state(repository) == {"commit": commit, "changed": False}
    (repository / "file").write_text("two\n")
    assert git_state(repository) == {"commit": commit, "changed": True}


def test_where_there_is_no_commit_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert git_state(tmp_path) is None, "a repository without a commit"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None, "a machine without git"


def test_a_git_that_hangs_delays_nothing(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpar.observe.environment.GIT_PATIENCE_S", 0.5)
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text('#!/bin/sh\ncase "$*" in *status*) exec sleep 60 ;; *) echo 0123 ;; esac\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=":")
    assert git_state(repository) == {"commit": "0123", "changed": None}
