"""What nvidia-smi says is judged; the machine at hand has no driver, so its output is recorded."""

from jaxpar.checkup.finding import Finding
from jaxpar.checkup.machine import Gpu, check_machine, read_gpus

LISTED = """NVIDIA H100 80GB HBM3, 550.90.07, 81559, 4
NVIDIA H100 80GB HBM3, 550.90.07, 81559, 40211
"""


def findings(gpus: list[Gpu], cuda: int | None) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_machine(gpus, cuda)}


def test_the_output_of_nvidia_smi_is_read():
    first, second = read_gpus(LISTED)
    assert first == Gpu("NVIDIA H100 80GB HBM3", "550.90.07", 81559, 4)
    assert second.used_mib == 40211
    assert read_gpus("") == []
    assert read_gpus("NVIDIA GH200, 120GB, 570.1, [N/A], [N/A]\n") == [Gpu("NVIDIA GH200, 120GB", "570.1", 0, 0)]


def test_the_driver_and_its_gpus_are_reported_and_one_too_old_for_the_plugin_is_wrong():
    assert list(findings([], 12)) == ["host"], "a machine without a GPU"
    assert findings(read_gpus(LISTED), 12)["driver"].found == "550.90.07, 2 x NVIDIA H100 80GB HBM3"
    found = findings(read_gpus(LISTED), 13)["driver"]
    assert (found.status, found.found) == ("fail", "550.90.07, and CUDA 13 needs 580 or newer")


def test_memory_that_another_program_holds_is_reported():
    found = findings(read_gpus(LISTED), 12)["GPU memory"]
    assert (found.status, found.found) == ("warn", "in use before the run: GPU 1 40211 of 81559 MiB")
    assert "GPU memory" not in findings(read_gpus(LISTED.replace("40211", "1")), 12)


def test_few_cores_for_many_gpus_are_reported():
    assert findings([Gpu("a", "600", 1, 1)] * 1000, 12)["host"].status == "warn"
