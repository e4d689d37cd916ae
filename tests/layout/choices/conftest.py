"""Kernels that were verified on the devices of a test, or that were not."""

from collections.abc import Callable

import pytest

from jaxpar.hardware.described import DescribedGPU
from pallas_kernels.toolchain import versions
from pallas_kernels.verified import Record, digest


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes these kernels, and no others, the ones that were right on a device."""

    def make(device: DescribedGPU, *kernels: str) -> None:
        device_of = (device.device_kind, device.core_count, "2026-11-22", tuple(versions().items()))
        found = tuple(Record(kernel, *device_of, digest(kernel)) for kernel in kernels)
        monkeypatch.setattr("pallas_kernels.verified.records", lambda: found)

    return make
