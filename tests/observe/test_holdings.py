"""The arrays in memory are counted: some of known sizes."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.observe import MemoryReport, holdings, memory_report
from jaxpar.observe.holdings import OTHER, Holding, name_arrays

MIB = 2**20


class Owner:
    """Holds arrays, and states what they are."""

    def __init__(self, **arrays: jax.Array) -> None:
        self.arrays = arrays
        name_arrays(self, lambda owner: owner.arrays)


def held(report: MemoryReport, name: str) -> Holding | None:
    return next((holding for holding in report.holdings if holding.name == name), None)


def split(dtype: type, *, memory_kind: str | None = None) -> jax.Array:
    """[8, 2^18] over eight devices."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"), memory_kind=memory_kind)
    return jax.device_put(jnp.zeros((8, 2**18), dtype), sharding)


def test_arrays_are_counted_by_what_they_are_for_as_long_as_they_live() -> None:
    gc.collect()
    before = held(memory_report(), OTHER)
    owner = Owner(weights=split(jnp.float32), moments=split(jnp.int8))
    report = memory_report()
    weights, moments = held(report, "weights"), held(report, "moments")
    assert weights is not None and (weights.arrays, weights.device_bytes, weights.pinned_bytes) == (1, MIB, 0)
    assert moments is not None and moments.device_bytes == MIB // 4
    assert held(report, OTHER) == before
    owner.arrays["weights"].delete()
    assert held(memory_report(), "weights") is None
    del owner
    gc.collect()
    assert held(memory_report(), "moments") is None


def test_what_no_one_names_is_reported_too() -> None:
    before = held(memory_report(), OTHER)
    array = split(jnp.float32)
    after = held(memory_report(), OTHER)
    assert after is not None and after.device_bytes - (before.device_bytes if before else 0) == MIB
    assert memory_report().devices[0].arrays == sum(holding.device_bytes for holding in memory_report().holdings)
    del array


def test_pinned_memory_is_the_hosts_and_counted_over_all_devices() -> None:
    owner = Owner(stash=split(jnp.float32, memory_kind="pinned_host"))
    stash = held(memory_report(), "stash")
    assert stash is not None and (stash.device_bytes, stash.pinned_bytes) == (0, 8 * MIB)
    del owner


def test_devices_that_report_nothing_are_reported_to_lie_in_the_process() -> None:
    report = memory_report()
    assert [device.in_use for device in report.devices] == [None] * 8
    assert 0 < report.host <= report.host_limit
    assert "These devices report nothing of their own" in str(report) and repr(report) == str(report)


def test_what_a_device_reports_stands_beside_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"bytes_in_use": 3 * 2**30, "peak_bytes_in_use": 5 * 2**30, "bytes_limit": 75 * 2**30}
    monkeypatch.setattr(holdings, "statistic", lambda device, key: numbers[key])
    shown = str(memory_report())
    assert "temporaries, rounding" in shown
    assert all(part in shown for part in ("3.0 GiB", "5.0 GiB", "75.0 GiB"))
    assert "report nothing" not in shown
