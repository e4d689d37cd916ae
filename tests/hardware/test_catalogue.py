"""The catalogue of GPUs."""

from __future__ import annotations

import pytest

from jaxpar.hardware.catalogue import GPUS, gpu_named, gpu_of
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
    ],
)
def test_a_device_kind_finds_its_gpu_and_dense_peak(kind: str, name: str, peak: float) -> None:
    gpu = gpu_of(kind)
    assert gpu is not None and gpu.name == name
    assert gpu.training_peak == pytest.approx(peak)


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 NVL"])
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
        assert gpu.peaks["bfloat16"] == pytest.approx(2 * gpu.peaks["tensorfloat32"])
    if "float8" in gpu.peaks:
        assert gpu.peaks["float8"] == pytest.approx(2 * gpu.peaks["bfloat16"], rel=1e-3)
    assert gpu.hbm_bytes % 2**30 == 0


def test_volta_has_no_bfloat16_and_trains_in_float16() -> None:
    volta = gpu_of("Tesla V100-SXM2-32GB")
    assert volta is not None
    assert "bfloat16" not in volta.peaks and volta.training_peak == volta.peaks["float16"]


@pytest.mark.parametrize(
    ("name", "nvlink"),
    [("v100-32", 300), ("a100-80", 600), ("a800", 400), ("h100", 900), ("h800", 400), ("h200", 900), ("b200", 1800)],
)
def test_nvlink_is_half_of_what_datasheets_print(name: str, nvlink: float) -> None:
    assert gpu_named(name).nvlink.bandwidth == nvlink / 2 * 1e9


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_links_get_slower_outwards_and_name_their_source(gpu) -> None:
    assert gpu.nvlink.bandwidth > gpu.pcie.bandwidth > gpu.network.bandwidth > 1e9
    assert all(link.source for link in (gpu.nvlink, gpu.pcie, gpu.network))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.short)
def test_a_program_can_have_a_little_less_than_the_memory(gpu) -> None:
    assert 0.97 * gpu.hbm_bytes < gpu.device_bytes < gpu.hbm_bytes


def test_a_gpu_is_found_by_short_and_full_name_in_any_case() -> None:
    assert gpu_named("h100") is gpu_named("H100-SXM-80GB") is gpu_named(" h100-sxm-80gb ")
    assert len({gpu.short for gpu in GPUS}) == len(GPUS)


def test_an_unknown_gpu_gets_the_nearest_name() -> None:
    with refused("'h20'", "did you mean h200"):
        gpu_named("h20")
