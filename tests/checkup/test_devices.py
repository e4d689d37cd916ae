"""Devices, layout and collectives, on the virtual ones."""

import jax
import pytest

from jaxpar.checkup import devices as checks
from jaxpar.checkup.finding import Finding
from jaxpar.config import Config, ParallelConfig


def findings(parallel: ParallelConfig, *, driver: bool = False, cpu_wanted: bool = True) -> dict[str, Finding]:
    found = checks.check_devices(jax.devices(), Config(parallel=parallel), driver, cpu_wanted)
    return {finding.check: finding for finding in found}


def test_a_layout_that_fits_is_reported_with_its_axes_filled_in():
    assert findings(ParallelConfig(fsdp=-1, tensor=2))["layout"] == Finding("layout", "ok", "fsdp 4, tensor 2")


def test_a_layout_that_does_not_fit_is_wrong():
    found = findings(ParallelConfig(fsdp=16))["layout"]
    assert found.status == "fail" and "takes 16 devices and there are 8" in found.found


def test_a_cpu_where_there_is_a_driver_is_wrong_unless_it_was_asked_for():
    assert findings(ParallelConfig(), driver=True)["devices"].status == "ok"
    assert findings(ParallelConfig(), driver=True, cpu_wanted=False)["devices"].status == "fail"


def test_collectives_over_all_devices_are_right():
    [found] = checks.check_collectives(jax.devices())
    assert found.status == "ok"
    assert found.found.startswith("sums and a ring over 8 devices are right; 256.0 KiB are summed in ")


def test_a_wrong_sum_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks.jax.lax, "psum", lambda value, axis: jax.lax.pmax(value, axis))
    [found] = checks.check_collectives(jax.devices())
    assert found.status == "fail" and "a sum over 8 devices is 7, and should be 28" in found.found
