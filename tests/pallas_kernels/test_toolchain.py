"""Versions that compile kernels wrongly are refused, and the others are not."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from jaxpar.checkup import software
from pallas_kernels import toolchain
from pallas_kernels.attention import mosaic
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.attention.request import Request
from pallas_kernels.masks import Mask
from tests.sentences import refused
from tests.setup.programs import program

CAUSAL = Request(
    8, 2, 128, 128, platform="gpu", dtype="bfloat16", compute_capability=9.0, gpu="NVIDIA H200", processors=132
)  # fmt: skip


@pytest.mark.parametrize(
    ("ptxas", "good"),
    [
        ("12.6.85", True), ("12.8.0", False), ("12.8.61", False), ("12.8.93", False), ("12.9.41", False),
        ("12.9.86", True), ("13.0.48", True),
    ],
)  # fmt: skip
def test_ptxas_from_cuda_12_8_to_before_12_9_1_is_refused_for_masks_that_cut_blocks(
    ptxas: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "versions", lambda: {"jax": "0.11.2", "ptxas": ptxas})
    for mask in (Mask(), Mask(causal=False, window=8), Mask(segmented=True)):
        reason = mosaic.refusal(replace(CAUSAL, mask=mask))
        assert (reason is None) == good and (good or (ptxas in str(reason) and "12.9.86" in str(reason)))
    assert mosaic.refusal(replace(CAUSAL, mask=Mask(causal=False))) is None
    assert mosaic.refusal(replace(CAUSAL, platform="interpreter")) is None
    if not good:
        with refused("'mosaic'", f"ptxas {ptxas}", "12.9.1", error=ValueError):
            REGISTRY.choose("mosaic", CAUSAL)
        found = {one.check: one for one in software.check_software(gpu=False)}["ptxas"]
        assert found.status == "warn" and ptxas in found.found


@pytest.mark.parametrize(
    ("cuda", "good"),
    [
        ("12.6.77", True),
        ("12.8.57", False),
        ("12.8.90", False),
        ("12.9.37", False),
        ("12.9.79", True),
        ("13.0.48", True),
    ],
)
def test_where_ptxas_is_not_found_the_release_of_the_runtime_is_judged(
    cuda: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "versions", lambda: {"jax": "0.11.2", "cuda": cuda})
    reason = mosaic.refusal(CAUSAL)
    assert (reason is None) == good and (good or f"that of the CUDA runtime {cuda}" in str(reason))
    assert toolchain.miscompiles_causal({"cuda": cuda, "ptxas": "12.9.86"}) is None, "a ptxas that is found decides"
    found = {one.check: one for one in software.check_software(gpu=False)}["ptxas"]
    assert (found.status == "ok") == good and cuda in found.found


@pytest.mark.parametrize(
    "tools",
    [
        ("old", "path", "system", "package"), ("path", "system", "package"), ("system", "package"),
        ("old", "package"), ("package",), ("old",), (),
    ],
)  # fmt: skip
def test_the_ptxas_that_mosaic_takes_is_judged(
    tools: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As strace shows: one on PATH before that of /usr/local/cuda, before the package that XLA uses.

    XLA passes over those before 11.8, such as Debian's.
    """
    numbers = {"old": "11.5.119", "path": "12.8.93", "system": "13.0.88", "package": "12.9.86"}
    for tool in tools:
        program(tmp_path / tool / "bin" / "ptxas", f"echo 'Cuda compilation tools, release 1.0, V{numbers[tool]}'")
    monkeypatch.setenv("PATH", f"{tmp_path}/old/bin:{tmp_path}/path/bin")
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", tmp_path / "system")
    importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    monkeypatch.setenv("MOSAIC_GPU_CUDA_ROOT", str(tmp_path / "package"))
    versions = toolchain.versions.__wrapped__()
    usable = [numbers[tool] for tool in tools if tool != "old"]
    assert versions.get("ptxas") == (usable[0] if usable else None)
    assert versions.get("xla_ptxas") == (numbers["package"] if len(usable) > 1 else None)
    assert (toolchain.miscompiles_causal(versions) is not None) == ("path" in tools)


def test_without_cuda_nothing_is_refused() -> None:
    assert toolchain.miscompiles_causal({"jax": "0.11.2"}) is None


def test_the_versions_that_are_installed_with_jaxpar_are_good() -> None:
    """The range of pyproject.toml begins at the first good version, and the ptxas at hand is found."""
    extras = software.tomllib.loads((toolchain.Path(__file__).parents[2] / "pyproject.toml").read_text())
    for extra in ("cuda12", "compile"):
        needed = [Requirement(text) for text in extras["project"]["optional-dependencies"][extra]]
        (nvcc,) = (one.specifier for one in needed if one.name == "nvidia-cuda-nvcc-cu12")
        assert nvcc == SpecifierSet(f">={toolchain.MISCOMPILED['ptxas'][1]}")
    assert toolchain.versions().keys() >= {"jax", "ptxas"} and toolchain.miscompiles_causal() is None
