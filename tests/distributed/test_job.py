"""Which job a process belongs to: what is written wins, and what cannot be determined is one sentence."""

import pytest

from jaxpar.config import DistributedConfig
from jaxpar.distributed.job import Job, find_job
from tests.distributed.test_launchers import recorded
from tests.sentences import refused

JAX = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "train-0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
UNEVEN = recorded("slurm-uneven-nodes") | {"SLURM_NODEID": "0", "SLURM_LOCALID": "2"}


def job(environment: dict[str, str], host_gpus: int = 0, **written: int | str) -> Job | None:
    return find_job(DistributedConfig(**written), environment, host_gpus)  # pyright: ignore[reportArgumentType]


def test_a_process_is_alone_by_default():
    assert job({}) is None
    assert job({"PATH": "/bin"}, host_gpus=8) is None


def test_what_is_written_makes_a_job():
    written = {"coordinator": "10.0.0.1:99", "processes": 3, "process_id": 2}
    assert job({}, **written) == Job("10.0.0.1:99", 3, 2)
    assert job(recorded("slurm-one-task-per-node"), **written) == Job("10.0.0.1:99", 3, 2)
    assert job(JAX, **written) == Job("10.0.0.1:99", 3, 2)


def test_the_variables_of_jax_make_a_job_and_win_over_the_launcher():
    assert job(JAX) == Job("a:1", 2, 1)
    assert job(recorded("slurm-one-task-per-node") | JAX) == Job("a:1", 2, 1)


def test_one_process_is_written_to_be_alone_under_any_launcher():
    assert job(recorded("slurm-one-task-per-node"), processes=1) is None
    assert job(recorded("slurm-batch-script"), processes=1) is None
    assert job(JAX, processes=1) is None


def test_a_launcher_fills_in_what_is_not_written():
    assert job(recorded("kubernetes-jobset")) == Job("jaxpar-workers-0-0.jaxpar:61440", 4, 3)
    found = job(recorded("slurm-one-task-per-node"), coordinator="other:5")
    assert found is not None and (found.coordinator, found.processes, found.process_id) == ("other:5", 4, 3)


@pytest.mark.parametrize(
    ("name", "host_gpus", "share", "expected"),
    [
        ("slurm-one-task-per-node", 8, None, 8),
        ("slurm-one-task-per-gpu-all-seen", 8, (3,), 1),
        ("slurm-gpus-per-task", 8, None, 1),
        ("slurm-gpu-bind-single", 8, None, 1),
        ("slurm-two-gpus-per-task", 8, None, 2),
        ("slurm-one-gpu-per-node", 8, None, 1),
        ("slurm-uneven-without-gpus", 0, None, None),
        ("open-mpi-5-one-machine", 8, (4, 5, 6, 7), None),
        ("open-mpi-5-one-machine", 0, None, None),
        ("open-mpi-4-under-slurm", 8, None, None),
    ],
)
def test_gpus_that_all_processes_of_a_machine_see_are_shared_out(
    name: str, host_gpus: int, share: tuple[int, ...] | None, expected: int | None
):
    found = job(recorded(name), host_gpus)
    assert found is not None and (found.local_devices, found.devices_expected) == (share, expected)


def test_processes_that_were_given_their_own_gpus_keep_them():
    mine = recorded("open-mpi-5-one-machine") | {"CUDA_VISIBLE_DEVICES": "1"}
    found = job(mine, host_gpus=2)
    assert found is not None and found.local_devices is None


def test_the_expected_number_of_devices_may_be_written():
    found = job(JAX, devices_per_process=4)
    assert found is not None and (found.devices_expected, found.expected_by) == (4, "distributed.devices_per_process")


@pytest.mark.parametrize(
    ("environment", "written", "parts"),
    [
        ({}, {"processes": 2}, ("distributed.coordinator and distributed.process_id: null", "no launcher is known")),
        (recorded("slurm-one-task-per-node"), {"processes": 2}, ("processes: 2", "Slurm started 4", "null")),
        (KUBERNETES, {}, ("distributed.coordinator: null", "Kubernetes", "pod 0", "JAX_NUM_PROCESSES", "JOBSET_NAME")),
        (OPEN_MPI, {}, ("distributed.coordinator: null", "Open MPI", "set it to host:port of process 0")),
        (JAX | {"JAX_PROCESS_ID": "2"}, {}, ("distributed.process_id: 2", "distributed.processes (2)")),
        (JAX | {"JAX_COORDINATOR_ADDRESS": "a"}, {}, ("JAX_COORDINATOR_ADDRESS: expected host:port, got 'a'",)),
        (JAX | {"JAX_NUM_PROCESSES": "two"}, {}, ("JAX_NUM_PROCESSES: expected a whole number", "got 'two'")),
        (UNEVEN, {}, ("3 processes", "8 GPUs", "evenly")),
        (JAX | {"JAX_COORDINATOR_BIND_ADDRESS": "b"}, {}, ("JAX_COORDINATOR_BIND_ADDRESS:", "host:port", "'b'")),
    ],
)
def test_what_cannot_be_determined_is_one_sentence(
    environment: dict[str, str], written: dict[str, int], parts: tuple[str, ...]
):
    with refused(*parts):
        job(environment, host_gpus=8, **written)


def test_process_0_listens_where_the_variable_of_jax_states():
    found = job(JAX | {"JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.5:61448"})
    assert found is not None and found.listen_at == "10.0.0.5:61448"
