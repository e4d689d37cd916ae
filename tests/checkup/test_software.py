"""Versions are compared with the ranges of pyproject.toml, and the plugin's with jaxlib's."""

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from jaxpar.checkup import software
from jaxpar.checkup.finding import Finding


def findings(monkeypatch: pytest.MonkeyPatch, gpu: bool = False, **versions: str | None) -> dict[str, Finding]:
    """What is found where these packages are installed; `_` stands for `-` in their names."""
    there = {name.replace("_", "-"): found for name, found in versions.items()}
    wanted = [Requirement("jax>=0.11.2,<0.13"), Requirement("numpy>=2.0")]
    monkeypatch.setattr(software, "requirements", lambda: (SpecifierSet(">=3.12"), wanted))
    monkeypatch.setattr(software, "installed", there.get)
    return {finding.check: finding for finding in software.check_software(gpu)}


def test_this_environment_is_as_pyproject_wants_it():
    found = list(software.check_software(gpu=False))
    assert {finding.status for finding in found} == {"ok"}
    assert len(software.requirements()[1]) >= 10


def test_a_version_out_of_its_range_is_named_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch):
    found = findings(monkeypatch, jax="0.10.0", numpy="2.1")["packages"]
    assert found.status == "fail"
    assert "jax is 0.10.0, and jaxpar needs " in found.found
    assert found.mend.startswith("pip install -c constraints.txt 'jax<0.13,>=0.11.2'")
    assert "numpy is missing" in findings(monkeypatch, jax="0.12.0")["packages"].found


def test_a_driver_without_a_plugin_is_wrong(monkeypatch: pytest.MonkeyPatch):
    assert "plugin" not in findings(monkeypatch, jax="0.12.0", jaxlib="0.12.0", numpy="2.1")
    assert findings(monkeypatch, True, jax="0.12.0", jaxlib="0.12.0", numpy="2.1")["plugin"].status == "fail"


def test_a_cublas_that_blackwell_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch):
    there = {"jax": "0.12.0", "jaxlib": "0.12.0", "numpy": "2.1"}
    found = findings(monkeypatch, True, **there, nvidia_cublas="13.1.0.3")["cuBLAS"]
    assert found.status == "warn" and "13.1.0.3" in found.found and "13.2" in found.mend
    assert "cuBLAS" not in findings(monkeypatch, True, **there, nvidia_cublas="13.2.0.9")


def test_a_plugin_of_another_version_than_jaxlib_is_wrong(monkeypatch: pytest.MonkeyPatch):
    found = findings(monkeypatch, True, jax="0.12.0", jaxlib="0.12.0", numpy="2.1", jax_cuda12_plugin="0.11.2")
    assert (found["plugin"].status, found["plugin"].mend) == ("fail", "pip install 'jax-cuda12-plugin==0.12.0'")
