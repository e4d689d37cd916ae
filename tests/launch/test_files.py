"""The files for clusters parse, agree with themselves and with what the processes read."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxpar.config import load_config
from jaxpar.distributed.launchers import KUBERNETES_PORT, find_launch
from tests.launch.loading import ROOT

LAUNCH = ROOT / "launch"


@pytest.fixture(scope="module")
def jobset() -> dict[str, Any]:
    return yaml.safe_load((LAUNCH / "kubernetes.yaml").read_text())


def container(jobset: dict[str, Any]) -> dict[str, Any]:
    [job] = jobset["spec"]["replicatedJobs"]
    [found] = job["template"]["spec"]["template"]["spec"]["containers"]
    return found


def overrides(arguments: list[str]) -> tuple[str, list[str]]:
    """The configuration and the overrides that a command line gives."""
    assert len(arguments) % 2 == 0
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
    assert {name for name, _ in pairs} <= {"--config", "--set"}
    return next(value for name, value in pairs if name == "--config"), [v for name, v in pairs if name == "--set"]


def test_the_numbers_of_hosts_agree(jobset: dict[str, Any]):
    [job] = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    [processes] = [found["value"] for found in container(jobset)["env"] if found["name"] == "JAX_NUM_PROCESSES"]
    assert spec["parallelism"] == spec["completions"] == int(processes)
    assert (job["replicas"], spec["completionMode"]) == (1, "Indexed")
    assert (LAUNCH / "kubernetes.yaml").read_text().count("# HOSTS") == 3


def test_a_pod_finds_process_0_under_the_name_that_the_jobset_gives_it(jobset: dict[str, Any]):
    name, [job] = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    assert jobset["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    given = {found["name"]: found.get("value") for found in container(jobset)["env"]}
    assert given["JOBSET_NAME"] is None, "it comes from the annotation"
    pod = {"HOSTNAME": f"{name}-{job['name']}-0-1", "JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    found = find_launch(pod | {"JOBSET_NAME": name})
    assert found is not None
    assert (found.coordinator, found.process_id) == (f"{name}-{job['name']}-0-0.{name}:{KUBERNETES_PORT}", 1)
    assert {port["containerPort"] for port in container(jobset)["ports"]} == {KUBERNETES_PORT}


def test_the_pods_command_is_a_configuration(jobset: dict[str, Any]):
    file, written = overrides(container(jobset)["args"])
    config = load_config(ROOT / file, written)
    assert config.distributed.devices_per_process == container(jobset)["resources"]["limits"]["nvidia.com/gpu"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container(jobset)["volumeMounts"]}
    [job] = jobset["spec"]["replicatedJobs"]
    assert {volume["name"] for volume in job["template"]["spec"]["template"]["spec"]["volumes"]} == set(mounts)
    assert config.run.dir == mounts["runs"]


def test_the_batch_script_starts_one_process_per_node_with_all_its_gpus(tmp_path: Path):
    script = LAUNCH / "slurm.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.read_text(), re.MULTILINE))
    assert (asked["ntasks-per-node"], asked["gpus-per-node"]) == ("1", "8")
    srun = tmp_path / "srun"
    srun.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$PWD" "$@"\n')
    srun.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_CPUS_PER_TASK": "64",
    }
    ran = subprocess.run(
        [script, "--config", "a b.yaml"], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert ran[0] == str(ROOT)
    assert ran[ran.index(".venv/bin/python") :] == [".venv/bin/python", "-m", "jaxpar.train", "--config", "a b.yaml"]
    assert "--gpu-bind=none" in ran, "else a task may see a single GPU"


def test_the_image_holds_what_it_starts():
    lines = (LAUNCH / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+)$", lines, re.MULTILINE) for word in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    assert {"jaxpar", "pallas_kernels", "pyproject.toml", "constraints.txt", "configs"} <= set(copied)
    # pyproject.toml names these two, and the build fails without them.
    assert {"README.md", "LICENSE"} <= set(copied)
    command = re.search(r"^CMD \[(.+)\]$", lines, re.MULTILINE)
    assert command is not None
    file, _ = overrides([part.strip(' "') for part in command[1].split(",")])
    load_config(ROOT / file)
    assert 'ENTRYPOINT ["python", "-m", "jaxpar.train"]' in lines
    assert "'.[cuda12,data]'" in lines, "jaxpar.prepare needs the extra too"
