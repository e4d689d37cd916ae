"""`python -m jaxpar.doctor`: a report, an exit code, and one sentence when it cannot begin."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpar.checkup.finding import Finding
from jaxpar.checkup.report import show
from jaxpar.doctor import main
from tests.processes import run_python
from tests.sentences import refused_by_command

ROOT = Path(__file__).parents[1]
CHECKS = ["python", "packages", "ptxas", "host", "devices", "layout", "collectives", "run.dir", "room", "step"]


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_a_machine_that_is_well_is_code_0_and_one_that_is_not_is_code_1(capsys, tmp_path):
    code, printed = report(capsys, "--set", f"run.dir={tmp_path}")
    found = {finding["check"]: finding for finding in printed["findings"]}
    assert [check for check in found if check != "plugin"] == CHECKS
    assert (code, printed["status"]) == (0, "ok" if all(each["status"] == "ok" for each in found.values()) else "warn")
    assert "uniform predictions: 4.159" in found["step"]["found"]
    code, printed = report(capsys, "--set", "run.dir=/proc/nothing", "--set", "parallel.fsdp=4")
    found = {finding["check"]: finding for finding in printed["findings"]}
    assert (code, printed["status"]) == (1, "fail")
    assert (found["run.dir"]["status"], found["layout"]["status"]) == ("fail", "fail")
    assert all(found[check]["mend"] for check in ("run.dir", "layout"))


def test_what_native_code_prints_is_not_among_the_json(capfd, monkeypatch):
    def counting_connections(config: object) -> tuple[list[Finding], bool]:
        os.write(1, b"[Gloo] Rank 1 is connected to 1")
        return [Finding("python", "ok", "3.12")], True

    monkeypatch.setattr("jaxpar.checkup.checkup.check_all", counting_connections)
    assert main(["--json"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["status"] == "ok"
    assert "connected to 1" in printed.err


def test_the_screen_states_what_is_wrong_and_how_to_mend_it(capsys: pytest.CaptureFixture[str]):
    found = [
        Finding("packages", "ok", "all there"),
        Finding("driver", "warn", "old", "bring it up to date"),
        Finding("run.dir", "fail", "/x cannot be written", "choose another run.dir", "process 3 on node-b"),
    ]
    show(found, 12.3)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[1:4] == [
        "ok     packages  all there",
        "warn   driver    old",
        "WRONG  run.dir   process 3 on node-b: /x cannot be written",
    ]
    assert lines[4:] == [
        "To fix",
        "driver: bring it up to date",
        "run.dir: choose another run.dir",
        "1 of 3 checks found something wrong (12.3 s)",
    ]


MODEL = ["--set", "lora.rank=2", "--set", "lora.targets=[quary]", "--set", "run.init_from=hf"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [(["--config", "no-such.yaml"], ("no-such.yaml", "no such file")), (MODEL, ("lora.targets", "quary"))],
)
def test_a_mistake_is_one_sentence(arguments: list[str], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    refused_by_command(main(arguments), *capsys.readouterr(), *parts)


@pytest.mark.long
def test_a_coordinator_that_cannot_be_reached_is_one_sentence_and_code_2():
    job = ["coordinator=127.0.0.1:9", "processes=2", "process_id=1", "timeout_s=1"]
    settings = [part for key in job for part in ("--set", f"distributed.{key}")]
    ran = run_python("-m", "jaxpar.doctor", *settings)
    parts = ("distributed.coordinator", "'127.0.0.1:9'", "process 1 of 2", "within 1 s", "process 0 is not there")
    refused_by_command(ran.returncode, ran.stdout, ran.stderr.splitlines()[-1], *parts)


@pytest.mark.long
def test_two_processes_check_their_collectives_and_one_reports(tmp_path: Path):
    doctor = [sys.executable, "-m", "jaxpar.doctor", "--json", "--set", f"run.dir={tmp_path}"]
    ran = run_python("launch/local.py", "--processes", 2, "--devices-per-process", 2, "--", *doctor)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert all(line.startswith("[0] ") for line in lines)
    found = {each["check"]: each for each in json.loads("\n".join(line[4:] for line in lines))["findings"]}
    assert "sums and a ring over 4 devices of 2 processes are right" in found["collectives"]["found"]
    assert found["devices"]["found"].startswith("4 x cpu, 2 in each of 2 processes")
    assert found["shared folder"]["status"] == "ok"


def test_devices_that_cannot_be_used_are_a_finding_beside_the_others():
    ran = run_python("-m", "jaxpar.doctor", "--json", JAX_PLATFORMS="rocm")
    assert ran.returncode == 1
    found = json.loads(ran.stdout)["findings"]
    assert [finding["check"] for finding in found][:2] == ["python", "packages"]
    assert (found[-1]["check"], found[-1]["status"]) == ("devices", "fail")
    assert "rocm" in found[-1]["found"] and "JAX_PLATFORMS" in found[-1]["mend"]
