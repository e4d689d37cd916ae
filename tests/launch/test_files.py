"""The files for clusters parse, agree with themselves and with what the processes read."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
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
    array = {"JAXPAR_COMMAND": "sweep"}
    ran = subprocess.run([script], env=environment | array, capture_output=True, text=True, check=True).stdout
    assert ran.split()[-2:] == ["-m", "jaxpar.sweep"]


SHOWN = """#!/usr/bin/env bash
text=$(printf "%s\\n" "$PWD" "${NCCL_DEBUG-}" "$@"; echo .)
env printf "%s\\n" "$text" >> "$SHOWN"
exit "${ENDS-0}"
"""
"""A program that writes down where and with what it was started, and ends as its arguments ask. It writes once: bash
writes lines one by one, among those of processes beside it."""


def program(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def over_ssh(
    folder: Path, *arguments: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """What launch/ssh.sh prints, and the processes that it started, by an ssh that knows one machine."""
    program(
        folder, "ssh", '#!/usr/bin/env bash\necho "on ${@: -2:1}"\ncd /; exec env -u NCCL_DEBUG bash -c "${@: -1}"\n'
    )
    python, shown = program(folder, "a python", SHOWN), folder / "shown"
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": str(python), "SHOWN": str(shown), **variables}
    ran = subprocess.run(
        [LAUNCH / "ssh.sh", *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    texts = shown.read_text().split("\n.\n")[:-1] if shown.exists() else []
    return ran, sorted((text.split("\n") for text in texts), key=lambda lines: lines[-1])


def test_the_script_for_ssh_starts_one_process_per_host_with_its_number(tmp_path: Path):
    ran, started = over_ssh(tmp_path, "n1,n2,n3", "--config", "a b.yaml", "--set", "run.name=$x", NCCL_DEBUG="a 'b")
    assert ran.returncode == 0 and sorted(ran.stdout.splitlines()) == [f"n{n}: on n{n}" for n in (1, 2, 3)]
    assert [lines[:4] for lines in started] == [[str(ROOT), "a 'b", "-m", "jaxpar.train"]] * 3
    for number, lines in enumerate(started):
        file, written = overrides(lines[4:])
        assert (file, written[0]) == ("a b.yaml", "run.name=$x")
        config = load_config(None, written[1:]).distributed
        assert (config.coordinator, config.processes, config.process_id) == ("n1:61448", 3, number)


def test_the_script_for_ssh_ends_as_its_processes_do(tmp_path: Path):
    assert over_ssh(tmp_path, "n1,n2", ENDS="3")[0].returncode == 3
    ran = subprocess.run([LAUNCH / "ssh.sh", "--config", "a.yaml"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr.startswith("usage: launch/ssh.sh HOST,HOST,...")


def test_skypilots_task_gives_each_host_its_number(tmp_path: Path):
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    assert (ROOT / task["setup"].split()[0]).exists() and task["setup"].split()[1] == "train"
    subprocess.run(["bash", "-n"], input=task["setup"], text=True, check=True)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    program(tmp_path / ".venv/bin", "python", SHOWN)
    count, gpus = task["num_nodes"], int(task["resources"]["accelerators"].split(":")[1])
    variables = {
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.7", "SKYPILOT_NUM_NODES": str(count), "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus), "SHOWN": str(tmp_path / "shown"), "PATH": os.environ["PATH"],
    }  # fmt: skip
    subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path, env=task["envs"] | variables, check=True)
    lines = (tmp_path / "shown").read_text().splitlines()
    assert lines[2:4] == ["-m", "jaxpar.train"]
    file, written = overrides(lines[4:-1])
    config = load_config(ROOT / file, written)
    found = config.distributed
    assert (found.coordinator, found.processes, found.process_id) == ("10.0.0.4:61448", count, 1)
    assert found.devices_per_process == gpus
    assert list(task["volumes"]) == [config.run.dir]


RAY = """
import contextlib, os, types
from pathlib import Path
def init(): pass
def get(found): return [one() for one in found] if isinstance(found, list) else found()
def wait(found): return found[-1:], found[:-1]
class remote:
    def __init__(self, function, **options): self.function, self.given = function, options
    def options(self, **more): return remote(self.function, **self.given, **more)
    def remote(self, *arguments):
        where = self.given["scheduling_strategy"]
        assert 0 <= where.placement_group_bundle_index < len(where.group.bundles)
        assert self.given.get("num_gpus", 0) <= where.group.bundles[where.placement_group_bundle_index]["GPU"]
        def started():
            os.environ["BUNDLE"] = str(where.placement_group_bundle_index)
            try: return self.function(*arguments)
            finally: del os.environ["BUNDLE"]
        return started
"""
RAY_UTIL = {
    "__init__": "import os\ndef get_node_ip_address(): return f'10.0.0.{4 + int(os.environ.get(\"BUNDLE\", 9))}'",
    "placement_group": """
class placement_group:
    def __init__(self, bundles, strategy):
        assert strategy == "STRICT_SPREAD"
        self.bundles = bundles
    def ready(self): return lambda: self
def remove_placement_group(group): print("freed", len(group.bundles))
""",
    "scheduling_strategies": """
class PlacementGroupSchedulingStrategy:
    def __init__(self, group, placement_group_bundle_index):
        self.group, self.placement_group_bundle_index = group, placement_group_bundle_index
""",
}
"""What the script uses of Ray, on one machine and one task after the other."""


def on_ray(folder: Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """What launch/ray_job.py prints, and the processes that it started."""
    (folder / "ray/util").mkdir(parents=True)
    (folder / "ray/__init__.py").write_text(RAY)
    for name, text in RAY_UTIL.items():
        (folder / f"ray/util/{name}.py").write_text(text)
    shown = folder / "shown"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "SHOWN": str(shown), **variables}
    environment["PYTHON"] = str(program(folder, "a python", SHOWN))
    ran = subprocess.run(
        [sys.executable, LAUNCH / "ray_job.py", *arguments],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    texts = shown.read_text().split("\n.\n")[:-1] if shown.exists() else []
    return ran, sorted((text.split("\n") for text in texts), key=lambda lines: lines[-1])


def test_the_job_on_ray_starts_one_process_per_host_with_its_number(tmp_path: Path):
    ran, started = on_ray(tmp_path, "--hosts", "3", "--gpus", "8", "--config", "a b.yaml", "--set", "run.name=x")
    assert (ran.returncode, ran.stdout) == (0, "freed 3\n"), ran.stderr
    assert [lines[0] for lines in started] == [str(ROOT)] * 3
    for number, lines in enumerate(started):
        assert lines[2:4] == ["-m", "jaxpar.train"]
        file, written = overrides(lines[4:])
        config = load_config(None, written)
        assert (file, config.run.name) == ("a b.yaml", "x")
        found = config.distributed
        assert (found.processes, found.process_id, found.devices_per_process) == (3, number, 8)


def test_jobs_on_ray_meet_at_ports_that_are_free_on_their_first_hosts(tmp_path: Path):
    def meeting(job: str) -> int:
        _, started = on_ray(tmp_path / job, "--hosts", "2", "--gpus", "1", "--config", "a.yaml")
        [where] = {load_config(None, overrides(lines[4:])[1]).distributed.coordinator for lines in started}
        host, port = str(where).split(":")
        assert host == "10.0.0.4", "the first host"
        return int(port)

    with socket.socket() as taken:
        taken.bind(("", meeting("a")))
        assert meeting("b") != taken.getsockname()[1]


def test_the_job_on_ray_ends_as_its_processes_do(tmp_path: Path):
    ran, _ = on_ray(tmp_path, "--hosts", "2", "--gpus", "1", "--config", "a.yaml", ENDS="3")
    assert (ran.returncode, ran.stdout) == (3, "freed 2\n")


def test_the_job_on_ray_needs_a_host(tmp_path: Path):
    ran, started = on_ray(tmp_path, "--hosts", "0", "--gpus", "1", "--config", "a.yaml")
    assert (ran.returncode, started) == (2, []) and "expected at least 1" in ran.stderr


def instructions() -> list[tuple[str, str]]:
    """(name, the rest) of the instructions of the Dockerfile, in order."""
    text = re.sub(r"^#.*\n", "", (LAUNCH / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_commands_of_the_image_find_what_was_copied_before_them(tmp_path: Path):
    """Shell syntax of each RUN; and the install, without what it fetches, on the files that are there by then."""
    installed = False
    for name, rest in instructions():
        if name == "COPY":
            *sources, target = rest.split()
            folder = tmp_path / target
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, folder if (ROOT / source).is_dir() else folder / source)
        if name != "RUN":
            continue
        subprocess.run(["sh", "-n"], input=rest, text=True, check=True)
        if "pip install" in rest:
            installed = True
            project = tomllib.loads((tmp_path / "pyproject.toml").read_text())
            [extras] = re.findall(r"'\.\[(.+)\]'", rest)
            assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
            files = [project["project"]["readme"], *project["project"]["license-files"], "constraints.txt"]
            packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
            assert [file for file in (*files, *packages) if not (tmp_path / file).exists()] == []
            code = "import jaxpar.config, pallas_kernels, jaxpar.train; print(jaxpar.config.__file__)"
            ran = subprocess.run(
                [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert ran.stdout.startswith(str(tmp_path))
    assert installed


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
