"""The catalogue of GPUs."""

import pytest

from jaxpar.hardware.catalogue import GPUS, gpu_named, gpu_of
from jaxpar.hardware.cluster import HOST_MEMORY, parse_cluster
from tests.sentences import refused


@pytest.mark.parametrize(
    ("kind", "name", "peak"),
    [
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB", 125e12),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB", 312e12),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB", 312e12),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB", 989.4e12),
        ("NVIDIA H800", "H800-SXM-80GB", 989.4e12),
        ("NVIDIA H200", "H200-SXM-141GB", 989.4e12),
        ("NVIDIA B200", "B200-SXM-180GB", 2250e12),
        ("NVIDIA GB200", "GB200-186GB", 2500e12),
        ("NVIDIA GH200 480GB", "GH200-96GB", 989.4e12),
        ("NVIDIA H20", "H20-SXM-96GB", 148e12),
        ("NVIDIA A10G", "A10G-24GB", 70e12),
        ("NVIDIA L4", "L4-24GB", 121e12),
        ("NVIDIA L40S", "L40S-48GB", 362.05e12),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB", 165.2e12),
        ("NVIDIA GeForce RTX 5090", "RTX-5090-32GB", 209.5e12),
    ],
)
def test_a_device_kind_finds_its_gpu_and_dense_peak(kind: str, name: str, peak: float) -> None:
    gpu = gpu_of(kind)
    assert gpu is not None and gpu.name == name
    assert gpu.training_peak == pytest.approx(peak)


@pytest.mark.parametrize(
    "kind", ["cpu", "NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA A10"]
)
def test_what_is_not_listed_has_no_peak(kind: str) -> None:
    assert gpu_of(kind) is None


def test_names_and_device_kinds_are_unique() -> None:
    kinds = [kind for gpu in GPUS for kind in gpu.device_kinds]
    assert len(kinds) == len(set(kinds))
    assert len(GPUS) == len({gpu.name for gpu in GPUS})


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_gpu_names_its_source_and_is_dense(gpu) -> None:
    assert "datasheet" in gpu.source or "whitepaper" in gpu.source
    # Halving the width of a type doubles its dense rate on tensor cores; a sparse figure would break the ladder.
    if "tensorfloat32" in gpu.peaks:
        assert gpu.peaks["bfloat16"] == pytest.approx(2 * gpu.peaks["tensorfloat32"], rel=0.015)
    if "float8" in gpu.peaks:
        assert gpu.peaks["float8"] == pytest.approx(2 * gpu.peaks["bfloat16"], rel=0.015)
    assert gpu.hbm_bytes % 2**30 == 0


def test_volta_has_no_bfloat16_and_trains_in_float16() -> None:
    volta = gpu_of("Tesla V100-SXM2-32GB")
    assert volta is not None
    assert "bfloat16" not in volta.peaks and volta.training_peak == volta.peaks["float16"]


@pytest.mark.parametrize(
    ("name", "nvlink"),
    [
        ("v100-32", 300), ("a100-80", 600), ("a800", 400), ("h100", 900), ("h800", 400), ("h200", 900), ("h20", 900),
        ("gh200", 900), ("b200", 1800), ("gb200", 1800),
    ],
)  # fmt: skip
def test_nvlink_is_half_of_what_datasheets_print(name: str, nvlink: float) -> None:
    gpu = gpu_named(name)
    assert gpu.node.name.startswith("NVLink ") and gpu.node.bandwidth == nvlink / 2 * 1e9


@pytest.mark.parametrize("name", ["a10g", "l4", "l40s", "rtx4090", "rtx5090"])
def test_cards_without_nvlink_reach_each_other_over_pcie(name: str) -> None:
    gpu = gpu_named(name)
    assert gpu.node == gpu.host and gpu.node.name.startswith("PCIe ")


def test_the_cpu_of_a_superchip_is_nearer_than_over_pcie_and_adds_its_memory() -> None:
    """900 GB/s, both directions together: for one GPU in a GH200, for two in a GB200."""
    assert gpu_named("gh200").host.bandwidth == 450e9 and gpu_named("gb200").host.bandwidth == 225e9
    assert parse_cluster("gh200:2x1").host_limit() == 480e9
    assert parse_cluster("gb200:1x72").host_limit() == 240e9
    assert parse_cluster("h100:1x8").host_limit() == HOST_MEMORY / 8


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_links_get_no_faster_outwards_and_name_their_source(gpu) -> None:
    assert gpu.node.bandwidth >= gpu.host.bandwidth > gpu.network.bandwidth > 1e9
    assert all(link.source for link in (gpu.node, gpu.host, gpu.network))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_a_program_can_have_a_little_less_than_the_memory(gpu) -> None:
    with_correction_in_memory = gpu.short in ("a10g", "l4", "l40s")
    assert (0.91 if with_correction_in_memory else 0.97) * gpu.hbm_bytes < gpu.device_bytes < gpu.hbm_bytes


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_float32_peaks_fit_the_multiprocessors(gpu) -> None:
    """Two operations per unit and clock, at a clock rate of these years; 64 units in a V100 and an A100, else 128."""
    units = 64 if gpu.compute_capability in ((7, 0), (8, 0)) else 128
    assert 1.3e9 < gpu.peaks["float32"] / (2 * units * gpu.multiprocessors) < 2.6e9


def test_a_gpu_is_found_by_short_and_full_name_in_any_case() -> None:
    assert gpu_named("h100") is gpu_named("H100-SXM-80GB") is gpu_named(" h100-sxm-80gb ")
    assert len({gpu.short for gpu in GPUS}) == len(GPUS)


def test_an_unknown_gpu_gets_the_nearest_name() -> None:
    with refused("'a801'", "did you mean a800"):
        gpu_named("a801")
    with refused("'rtx 4090'", "did you mean rtx4090"):
        gpu_named("rtx 4090")
