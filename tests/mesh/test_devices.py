"""XLA's flags on a machine with a GPU. The machine at hand has none, so its driver is pretended."""

from __future__ import annotations

import pytest

from jaxpar.config import DistributedConfig, UserError
from jaxpar.hardware.memory import POOL_FRACTION, POOL_VARIABLES
from jaxpar.hardware.xla_flags import xla_flags
from jaxpar.mesh import devices


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    monkeypatch.delenv("JAX_PLATFORMS")
    for name in POOL_VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the function sets is taken back
        monkeypatch.delenv(name)


def flags_after(monkeypatch: pytest.MonkeyPatch, before: str) -> list[str]:
    monkeypatch.setenv("XLA_FLAGS", before)
    devices.prepare_devices(8, DistributedConfig())
    return devices.os.environ["XLA_FLAGS"].split()


def test_a_run_on_gpus_has_the_flags_that_programs_are_compiled_with(monkeypatch: pytest.MonkeyPatch):
    assert flags_after(monkeypatch, "") == list(xla_flags())


def test_flags_that_the_user_set_stay(monkeypatch: pytest.MonkeyPatch):
    own = "--xla_gpu_enable_latency_hiding_scheduler=false"
    found = flags_after(monkeypatch, own)
    assert found[-1] == own
    assert len(found) == len(xla_flags())


def test_an_unknown_flag_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="does not know --xla_gpu_old=1"):
        flags_after(monkeypatch, "--xla_gpu_old=1")


def test_xla_takes_as_much_memory_as_inspect_promises(monkeypatch: pytest.MonkeyPatch):
    flags_after(monkeypatch, "")
    assert devices.os.environ[POOL_VARIABLES[0]] == str(POOL_FRACTION)


@pytest.mark.parametrize("name", POOL_VARIABLES)
def test_the_users_share_of_memory_stays_alone(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "0.5")
    flags_after(monkeypatch, "")
    assert [devices.os.environ.get(other) for other in POOL_VARIABLES].count(None) == 1
    assert devices.os.environ[name] == "0.5"
