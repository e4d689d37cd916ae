"""XLA's flags on a machine with a GPU. The machine at hand has none, so its driver is pretended."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpar.config import DistributedConfig, UserError
from jaxpar.distributed import devices, initialize
from jaxpar.distributed.job import Job
from jaxpar.hardware import host
from jaxpar.hardware.autotuned import LOAD, TRITON_GEMM
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.host import PINNED_VARIABLE
from jaxpar.hardware.memory import POOL_FRACTION, POOL_VARIABLES
from jaxpar.hardware.xla_flags import ESTIMATOR, check_flags, xla_flags
from tests.processes import run_python
from tests.sentences import refused


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.jax.devices()  # XLA reads its flags once: before they are changed here
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    monkeypatch.setattr(devices, "options", lambda: check_flags(os.environ["XLA_FLAGS"]))
    monkeypatch.delenv("JAX_PLATFORMS")
    for name in (*POOL_VARIABLES, PINNED_VARIABLE):
        monkeypatch.setenv(name, "")  # so that what the function sets is taken back
        monkeypatch.delenv(name)


def flags_after(monkeypatch: pytest.MonkeyPatch, before: str) -> list[str]:
    monkeypatch.setenv("XLA_FLAGS", before)
    devices.prepare_devices(8, DistributedConfig())
    return devices.os.environ["XLA_FLAGS"].split()


def test_a_run_on_gpus_has_the_flags_and_the_memory_that_programs_are_compiled_with(monkeypatch: pytest.MonkeyPatch):
    assert flags_after(monkeypatch, "") == list(xla_flags())
    assert os.environ[POOL_VARIABLES[0]] == str(POOL_FRACTION)


@pytest.mark.parametrize(
    ("models", "network"),
    [
        (("NVIDIA H800",) * 2, ["nic_speed_gbps=12.5"]),
        (("NVIDIA H100 80GB HBM3",), []),
        (("NVIDIA H800", "NVIDIA A10"), []),
    ],
)
def test_xla_gets_the_speed_of_the_slow_network_of_the_gpus_that_the_driver_names(
    models: tuple[str, ...], network: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for number, model in enumerate(models):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 42\n")
    monkeypatch.setattr(devices, "HOST_GPUS", tmp_path)
    own = [flag for flag in flags_after(monkeypatch, "") if ESTIMATOR in flag]
    assert [flag.partition("=")[2] for flag in own] == network


def test_flags_that_the_user_set_stay(monkeypatch: pytest.MonkeyPatch):
    own = "--xla_gpu_enable_latency_hiding_scheduler=false"
    found = flags_after(monkeypatch, own)
    assert found[-1] == own
    assert len(found) == len(xla_flags())


def test_an_unknown_flag_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    with refused("XLA_FLAGS", "--xla_gpu_old=1"):
        flags_after(monkeypatch, "--xla_gpu_old=1")


def test_tiles_of_another_gpu_than_the_driver_names_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(devices, "host_gpu", lambda: gpu_named("h100"))
    file = tmp_path / "tiles.txt"
    for compute_capability, right in (("9.0, Cores: 132", True), ("8.0, Cores: 108", False)):
        file.write_text(f'version: 3\nresults {{\n  device: "CUDA: {compute_capability}, GPU clock: 1 GHz"\n}}\n')
        if right:
            assert f"--{TRITON_GEMM}=true" in flags_after(monkeypatch, f"--{LOAD}={file}")
            continue
        with refused("XLA_FLAGS", str(file), "another GPU", "H100-SXM-80GB"):
            flags_after(monkeypatch, f"--{LOAD}={file}")


AFTER = """
import jax, jax.numpy as jnp
from jaxpar.config import DistributedConfig, UserError
from jaxpar.distributed import devices

devices.has_gpu = lambda: True
{before}
for _ in range(2):  # a second Trainer
    try:
        devices.prepare_devices(1, DistributedConfig())
        print("in force")
    except UserError as error:
        print(error)
    print(float(jnp.ones(3).sum()))
"""


@pytest.mark.parametrize(
    ("before", "flags", "in_force"),
    [
        pytest.param("", "", True, id="nothing before"),
        pytest.param("jax.devices()", "", False, id="devices"),
        pytest.param("jnp.ones(3)", "", False, id="an array"),
        pytest.param("jnp.ones(3)", " ".join(xla_flags()), True, id="an array, with the flags"),
        pytest.param("jnp.ones(3)", "--xla_gpu_enable_triton_gemm=true", False, id="an array, with one flag"),
    ],
)
@pytest.mark.matrix(quick=("an array",), ci=2)
def test_flags_that_come_too_late_are_one_sentence(before: str, flags: str, in_force: bool):
    """In a process of its own with a pretended driver, as in a notebook that used JAX first."""
    done = run_python("-c", AFTER.format(before=before), without=("JAX_PLATFORMS",), XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    first, sum_of_first, second, _ = done.stdout.splitlines()
    assert first == second and sum_of_first == "3.0"
    if in_force:
        assert first == "in force"
    else:
        assert first.startswith("XLA_FLAGS: ") and "restart Python" in first
        assert all(flag in first for flag in (flags or xla_flags()[1], xla_flags()[0]))


@pytest.mark.parametrize("name", POOL_VARIABLES)
def test_the_users_share_of_memory_stays_alone(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "0.5")
    flags_after(monkeypatch, "")
    assert [devices.os.environ.get(other) for other in POOL_VARIABLES].count(None) == 1
    assert devices.os.environ[name] == "0.5"


@pytest.mark.parametrize(
    ("variables", "processes", "pinned"),
    [
        ({}, 1, "1800"),
        ({}, 4, "450"),
        ({PINNED_VARIABLE: "7"}, 1, "7"),
        ({"XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE": "true"}, 1, None),
    ],
    ids=["most of the host's memory", "shared by the processes of a host", "as the user lets it", "all at once"],
)
def test_xla_may_pin(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], processes: int, pinned: str | None):
    monkeypatch.setattr(host, "host_memory", lambda: 2000 * 2**30)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if processes > 1:
        monkeypatch.setattr(devices, "host_gpus", lambda: 8)
        monkeypatch.setattr(devices, "find_job", lambda *_: Job("a:1", 16, 0, local_devices=(0, 1)))
        monkeypatch.setattr(devices.jax.distributed, "is_initialized", lambda: True)
    flags_after(monkeypatch, "")
    assert os.environ.get(PINNED_VARIABLE) == pinned


def device(process: int, platform: str = "gpu") -> Any:
    """What `check_devices` looks at in a `jax.Device`."""
    return SimpleNamespace(process_index=process, platform=platform)


def refusal(job: Job, needed: int | None, found: list[Any]) -> str:
    with pytest.raises(UserError) as caught:
        devices.check_devices(job, needed, found)
    return str(caught.value)


JOB = Job("a:1", 2, 0)
HERE = f"process 0 of 2 on {socket.gethostname()}"


def test_a_job_with_the_devices_of_its_layout_goes_on():
    devices.check_devices(JOB, 4, [device(0), device(0), device(1), device(1)])
    devices.check_devices(JOB, None, [device(0), device(1)])


def test_a_job_with_other_devices_than_its_layout_takes_is_one_sentence():
    message = refusal(JOB, 8, [device(0), device(1)])
    assert message.startswith(
        f"parallel: the layout takes 8 devices, 4 in each of 2 processes, and {HERE} sees 1, which "
    )
    assert "which do not divide among 2 processes" in refusal(JOB, 7, [device(0), device(1)])


def test_one_gpu_where_the_launcher_gave_eight_is_one_sentence():
    job = replace(JOB, devices_expected=8, expected_by="Slurm's GPUs and tasks of this machine")
    message = refusal(job, None, [device(0), device(1)])
    assert message.startswith(f"Slurm's GPUs and tasks of this machine: {HERE} should have 8 devices and sees 1; ")
    devices.check_devices(job, None, [device(0, "cpu"), device(1, "cpu")])  # a launcher speaks of GPUs


def test_processes_with_unequal_devices_are_one_sentence():
    message = refusal(Job("a:1", 3, 0), None, [device(0), device(0), device(1), device(2), device(2)])
    assert message.startswith("distributed.processes: process 1 sees 1 device and process 0 sees 2; ")


def test_jax_listens_where_the_meeting_did():
    assert initialize._listen_at(Job("127.0.0.1:7", 2, 0)) == "127.0.0.1:7"
    assert initialize._listen_at(Job("[::1]:7", 2, 0)) in ("[::1]:7", None)  # None: a host without IPv6
    assert initialize._listen_at(Job("203.0.113.7:7", 2, 0)) is None
    assert initialize._listen_at(Job("a:7", 2, 0, listen_at="127.0.0.2:7")) == "127.0.0.2:7"
    assert initialize._listen_at(Job("127.0.0.1:7", 2, 1)) is None


def test_a_job_that_comes_too_late_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """The tests have looked at JAX's devices already."""
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    monkeypatch.setenv("XLA_FLAGS", "")
    devices.jax.devices()
    with refused("distributed.processes: 2", "already"):
        devices.prepare_devices(8, DistributedConfig(coordinator="127.0.0.1:1", processes=2, process_id=0))


RECORDED = (
    "Unable to initialize backend 'cpu': INTERNAL: Getting local topologies failed: Error 1: GetKeyValue() timed out "
    "with key: cpu:local_topology/cpu/13 and duration: 2m (set JAX_PLATFORMS='' to automatically choose an available "
    "backend)"
)
"""What jax 0.11.2 reported when the main thread of process 13 slept before it looked at its devices."""


def test_a_process_that_does_not_find_its_devices_is_named_by_the_others(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise RuntimeError(RECORDED)

    monkeypatch.setattr(devices.jax, "devices", fail)
    with refused("process 13", "devices", "two minutes"):
        devices.find_devices()


def test_devices_that_cannot_be_used_are_one_sentence():
    """In a process of its own, which asks for a GPU that is not there."""
    done = run_python("-m", "jaxpar.train", "--set", "data.source=synthetic", JAX_PLATFORMS="rocm")
    assert done.returncode == 2
    [message] = [line for line in done.stderr.splitlines() if line.startswith("jaxpar: ")]
    assert message.startswith("jaxpar: JAX cannot use the devices (") and message.endswith("jaxpar.doctor looks closer")
    assert "Traceback" not in done.stderr
