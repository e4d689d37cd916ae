"""GPUs as XLA's compiler sees them."""

import re

import pytest

from jaxpar.compiler.targets import target_config
from jaxpar.hardware.catalogue import GPU, GPUS, gpu_named
from jaxpar.hardware.memory import pool_bytes
from tests.gpu_compile import in_child


def devices_of(topology: str) -> list[list[object]]:
    """Name, kind, compute capability and hosts of the devices that XLA makes of each target; in the child."""
    from jax.experimental import topologies

    found = []
    for gpu in GPUS:
        made = topologies.get_topology_desc(
            gpu.short, "cuda", target_config=target_config(gpu), topology=topology
        ).devices
        first = made[0]
        found.append([gpu.short, first.device_kind, first.compute_capability, [d.process_index for d in made]])
    return found


@pytest.mark.long
def test_xla_takes_every_target_and_numbers_hosts_in_order():
    found = in_child("tests.compiler.test_targets:devices_of", "3x1x2")
    assert [row[0] for row in found] == [gpu.short for gpu in GPUS]
    for short, kind, capability, hosts in found:
        gpu = gpu_named(short)
        assert kind in gpu.device_kinds
        assert capability == "{}.{}".format(*gpu.compute_capability)
        assert hosts == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_xla_plans_with_what_programs_may_take_of_a_gpu(gpu: GPU):
    """XLA takes 80% of a GPU that it only has described to it (GetSchedulerMemoryLimit in gpu_hlo_schedule.cc)."""
    found = re.search(r"device_memory_size: (\d+)", target_config(gpu))
    assert found is not None and int(found[1]) * 80 // 100 == pool_bytes(gpu.device_bytes)


@pytest.mark.parametrize(("short", "links"), [("a100-80", 12), ("h800", 8), ("b200", 18), ("l4", 0), ("rtx5090", 0)])
def test_a_target_has_as_many_nvlinks_as_the_gpu(short: str, links: int):
    found = re.search(r"active_links: (\d+) ", target_config(gpu_named(short)))
    assert (int(found[1]) if found else 0) == links


@pytest.mark.parametrize(("short", "cores", "l2_mib"), [("h20", 78, 60), ("gh200", 132, 60), ("l4", 58, 48)])
def test_a_target_has_the_chip_of_its_gpu_not_of_its_generation(short: str, cores: int, l2_mib: int):
    text = target_config(gpu_named(short))
    assert f"core_count: {cores}\n" in text and f"l2_cache_size: {l2_mib * 2**20}\n" in text


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_tensor_cores_of_a_target_reach_the_peak_of_the_catalogue(gpu):
    """XLA's own descriptions of clock, cores and operations per clock give the datasheet's bfloat16 peak."""
    text = target_config(gpu)
    if "matrix_unit_description" not in text:
        assert gpu.compute_capability not in ((9, 0), (10, 0))
        return
    matrix = text[text.index("matrix_unit_description") :]
    rate = matrix[matrix.index("key: 16 ") :].split("}")[0].replace(":", " ").split()
    value = {name: float(rate[rate.index(name) + 1]) for name in ("clock_rate_ghz", "units_per_core", "ops_per_clock")}
    cores = float(text.split("core_count:")[1].split()[0])
    flops = 2 * cores * value["units_per_core"] * value["ops_per_clock"] * value["clock_rate_ghz"] * 1e9
    # The datasheet of the GB200 has rounded up, by 4% over XLA's clock rate.
    assert flops == pytest.approx(gpu.peaks["bfloat16"], rel=0.05 if gpu.short == "gb200" else 0.02)
