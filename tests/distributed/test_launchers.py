"""What launchers leave in the environment is understood: recorded environments, and odd lists of nodes."""

from pathlib import Path

import pytest

from jaxpar.distributed.launchers import Launch, find_launch, first_host
from tests.sentences import refused

ENVIRONMENTS = Path(__file__).parent / "environments"


def recorded(name: str) -> dict[str, str]:
    """The environment of a process as a launcher made it."""
    lines = (ENVIRONMENTS / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


# launcher, coordinator, processes, this one, its index on its machine, how many are there, GPUs there
RECORDED = {
    "slurm-one-task-per-node": Launch("Slurm", "node01:61448", 4, 3, 0, 1, 8),
    "slurm-one-gpu-per-node": Launch("Slurm", "node01:61454", 2, 1, 0, 1, 1),
    "slurm-one-task-per-gpu-all-seen": Launch("Slurm", "node01:61449", 16, 11, 3, 8, 8),
    "slurm-gpus-per-task": Launch("Slurm", "node01:61450", 16, 11, 3, 8, 8),
    "slurm-gpu-bind-single": Launch("Slurm", "node01:61451", 16, 11, 3, 8, 8),
    "slurm-two-gpus-per-task": Launch("Slurm", "node01:61452", 4, 3, 3, 4, 8),
    "slurm-uneven-nodes": Launch("Slurm", "node03:61455", 5, 3, 0, 2, 8),
    "slurm-uneven-without-gpus": Launch("Slurm", "node01:61453", 3, 2, 0, 1, None),
    "slurm-second-step": Launch("Slurm", "node01:61457", 4, 2, 0, 1, 8),
    "open-mpi-4-one-machine": Launch("Open MPI", "127.0.0.1:63409", 2, 1, 1, 2),
    "open-mpi-4-under-slurm": Launch("Open MPI", "node01:61799", 4, 2, 0, 1),
    "open-mpi-5-one-machine": Launch("Open MPI", "127.0.0.1:64459", 2, 1, 1, 2),
    "open-mpi-5-two-machines": Launch("Open MPI", "login1:64982", 4, 3, 1, 2),
    "mpich-5-one-machine": Launch("PMI", "127.0.0.1:61440", 2, 1, 1, 2),
    "mpich-5-two-machines": Launch("PMI", None, 4, 3, 1, 2),
    "torchrun-two-machines": Launch("torchrun", "node01:62279", 4, 3, 1, 2),
    "kubernetes-jobset": Launch("Kubernetes", "jaxpar-workers-0-0.jaxpar:61440", None, 3, 0, 1),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_environment_is_read(name: str):
    assert find_launch(recorded(name)) == RECORDED[name]


def test_every_recording_is_tested():
    assert {path.stem for path in ENVIRONMENTS.glob("*.env")} == {*RECORDED, "slurm-batch-script"}


def test_a_batch_script_without_srun_is_one_sentence():
    with refused("SLURM_NTASKS", "4 tasks"):
        find_launch(recorded("slurm-batch-script"))


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "nobody started it"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a"}, "the shell of salloc, one task"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "a batch script of one task"),
        ({"JOB_COMPLETION_INDEX": "2"}, "not in Kubernetes"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "a pod of no indexed job"),
    ],
)
def test_a_process_that_no_launcher_started_is_alone(environment: dict[str, str], why: str):
    assert find_launch(environment) is None, why


def test_the_launcher_that_started_the_process_itself_is_read_inside_another_one():
    slurm = recorded("slurm-one-task-per-node")
    inside = {"SLURM_STEP_NODELIST": slurm["SLURM_STEP_NODELIST"], "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    assert find_launch(slurm | inside | recorded("torchrun-two-machines")) == RECORDED["torchrun-two-machines"]
    hydra = find_launch(slurm | inside | recorded("mpich-5-two-machines"))
    assert hydra == Launch("PMI", "node01:61448", 4, 3, 1, 2)
    numbers = {"PMI_RANK": slurm["SLURM_PROCID"], "PMI_SIZE": slurm["SLURM_STEP_NUM_TASKS"]}
    assert find_launch(slurm | numbers) == RECORDED["slurm-one-task-per-node"], "srun --mpi=pmi2"


def test_ranks_of_another_launcher_are_read_and_an_address_of_ipv6_has_brackets():
    kubeflow = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "fd00::7", "MASTER_PORT": "23456"}
    assert find_launch(kubeflow) == Launch("RANK", "[fd00::7]:64416", 2, 1)
    assert find_launch({"RANK": "1", "WORLD_SIZE": "2"}) is None


def test_a_heterogeneous_job_of_slurm_needs_the_keys():
    with refused("SLURM_HET_SIZE", "2", "distributed.processes"):
        find_launch(recorded("slurm-one-task-per-node") | {"SLURM_HET_SIZE": "2"})
    assert find_launch(recorded("slurm-one-task-per-node") | {"SLURM_HET_SIZE": "1"}) is not None


def test_processes_of_one_job_agree_on_the_port_and_steps_of_it_do_not_share_one():
    def port(job: int, step: int) -> int:
        environment = recorded("slurm-one-task-per-node") | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        found = find_launch(environment)
        assert found is not None and found.coordinator is not None
        return int(found.coordinator.split(":")[1])

    assert port(123456789, 0) == port(123456789, 0)
    assert port(123456789, 0) != port(123456789, 1)
    assert all(61440 <= port(job, step) <= 65535 for job in (1, 4095, 4096, 10**9) for step in (0, 1, 5000))


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node01", "node01"), ("node[01-03,07]", "node01"), ("node[07,01-03]", "node07"), ("node1,node2", "node1"),
        ("login,node[01-03]", "login"), ("rack[1-2]node[0-3]", "rack1node0"), ("gpu-a[100-163]-ib", "gpu-a100-ib"),
        ("node[001]", "node001"), ("a.b.example,c", "a.b.example"), ("gpu-[a,b]", "gpu-a"),
    ],
)  # fmt: skip
def test_the_first_host_of_a_list_of_nodes(nodes: str, host: str):
    assert first_host(nodes) == host


def test_a_variable_that_is_no_number_or_missing_is_one_sentence():
    with refused("SLURM_PROCID", "a whole number"):
        find_launch(recorded("slurm-one-task-per-node") | {"SLURM_PROCID": "three"})
    environment = recorded("open-mpi-5-one-machine")
    del environment["OMPI_COMM_WORLD_SIZE"]
    with refused("OMPI_COMM_WORLD_SIZE", "Open MPI"):
        find_launch(environment)


def test_open_mpi_4_on_several_machines_without_slurm_goes_to_where_mpirun_is():
    environment = recorded("open-mpi-4-one-machine") | {"OMPI_COMM_WORLD_SIZE": "4"}
    found = find_launch(environment)
    assert found is not None and found.coordinator == "10.0.0.9:63409"
    environment["OMPI_MCA_orte_hnp_uri"] = "1314521088.0;tcp6://[fe80::b9b,2620:10d::2]:43370"
    found = find_launch(environment)
    assert found is not None and found.coordinator == "[fe80::b9b]:65114"
