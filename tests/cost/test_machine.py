"""Plans time our grouped matmuls at most at the speed that bytes and operations of their steps allow."""

from dataclasses import replace

import pytest

from jaxpar.cost.grouped import Products
from jaxpar.cost.hardware_model import hardware_of, machine_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.hardware.catalogue import gpu_named
from pallas_kernels import bounds
from pallas_kernels.expected import B200, H100


def device(gpu: str) -> Device:
    return device_of(gpu_named(gpu), hardware_of(gpu_named(gpu)))


def test_machines_are_those_of_the_page() -> None:
    assert machine_of(gpu_named("b200")) == B200 and machine_of(gpu_named("a100-80")) is None
    h100 = machine_of(gpu_named("h100"))
    assert h100 is not None and h100.l2 == pytest.approx(H100.l2)
    assert h100.tensor == pytest.approx(H100.tensor, rel=1e-3)


def test_grouped_products_of_a_blackwell_take_what_its_caches_allow() -> None:
    rows, n, k = 65536, 2048, 7168
    slow, loop = Products(device("b200"), 8, 2), Products(device("b200"), 8, 2, loop=True)
    unbound = Products(replace(slow.device, machine=None), 8, 2)
    least = 2.0 * rows * n * k / bounds.grouped(n, B200)
    assert unbound.matmul(rows, n, k) < least <= slow.matmul(rows, n, k)
    assert loop.matmul(rows, n, k) == loop._replace(device=unbound.device).matmul(rows, n, k), "no kernel"
