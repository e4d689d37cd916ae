"""Devices laid out as a mesh, on machines that are not here: fake devices have a process and a number."""

import random
from dataclasses import dataclass

import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.mesh.axes import MESH_AXES
from jaxpar.mesh.build import build_mesh
from tests.sentences import refused


@dataclass(frozen=True)
class FakeDevice:
    """What the order of devices depends on."""

    process_index: int
    id: int


def hosts(count: int, each: int) -> list[FakeDevice]:
    """The devices of `count` processes in no order; ids grow with the process, as in JAX."""
    devices = [FakeDevice(process, process * each + number) for process in range(count) for number in range(each)]
    random.Random(0).shuffle(devices)
    return devices


def processes(sizes: AxisSizes, devices: list[FakeDevice], *inner: str) -> list[set[int]]:
    """For each place on the other axes, the processes that the `inner` axes touch."""
    mesh = build_mesh(sizes, devices)  # pyright: ignore[reportArgumentType]
    assert mesh.axis_names == MESH_AXES
    depth = 1
    for axis in inner:
        depth *= sizes[axis]
    groups = mesh.devices.reshape(-1, depth)
    return [{device.process_index for device in group} for group in groups]


@pytest.mark.parametrize("inner", [("tensor",), ("context", "tensor"), ("expert", "context", "tensor")])
def test_inner_axes_stay_inside_a_process(inner: tuple[str, ...]):
    sizes = AxisSizes(replica=2, fsdp=2, expert=2, context=2, tensor=2)
    assert all(len(group) == 1 for group in processes(sizes, hosts(4, 8), *inner))


def test_outer_axes_cross_processes():
    sizes = AxisSizes(fsdp=4, tensor=4)
    assert processes(sizes, hosts(2, 8), "fsdp", "tensor") == [{0, 1}]
    mesh = build_mesh(sizes, hosts(2, 8))  # pyright: ignore[reportArgumentType]
    assert [device.id for device in mesh.devices.flat] == list(range(16))


def test_an_inner_axis_wider_than_a_process_crosses_as_few_as_can_be():
    assert processes(AxisSizes(fsdp=2, tensor=8), hosts(4, 4), "tensor") == [{0, 1}, {2, 3}]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        (AxisSizes(fsdp=4, tensor=4), ("fsdp 4 x tensor 4", "16 devices", "has 8")),
        (AxisSizes(context=2), ("context 2", "2 devices", "has 8")),
        (AxisSizes(), ("one device", "1 device,", "has 8")),
    ],
)
def test_a_layout_for_another_number_of_devices_is_refused_in_a_sentence(sizes: AxisSizes, parts: tuple[str, ...]):
    with refused(*parts):
        build_mesh(sizes, hosts(1, 8))  # pyright: ignore[reportArgumentType]
