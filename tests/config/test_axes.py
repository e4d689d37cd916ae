"""The axis of -1 takes what remains, and a mesh that does not fit the devices is refused."""

import pytest

from jaxpar.config import ParallelConfig, resolve_axes, virtual_devices_needed
from tests.sentences import refused


def test_the_free_axis_takes_what_the_others_leave():
    assert resolve_axes(ParallelConfig(fsdp=-1, tensor=2), 8).fsdp == 4
    assert resolve_axes(ParallelConfig(fsdp=-1, tensor=8), 8).fsdp == 1
    assert resolve_axes(ParallelConfig(fsdp=-1), 1) == ParallelConfig()


def test_a_mesh_that_takes_all_devices_is_left_as_it_is():
    parallel = ParallelConfig(replica=2, fsdp=2, context=2)
    assert resolve_axes(parallel, 8) is parallel


HINT = "parallel.fsdp to -1 and the others to 1"


@pytest.mark.parametrize(
    ("parallel", "devices", "parts"),
    [
        ({"fsdp": 8, "tensor": 2}, 8, ("parallel:", "(fsdp 8 x tensor 2)", "16 devices", "are 8", HINT)),
        ({"fsdp": 2}, 1, ("parallel:", "(fsdp 2)", "2 devices", "is 1", HINT)),
        ({"fsdp": -1, "tensor": 16}, 8, ("parallel:", "(tensor 16)", "16 devices", "are 8", HINT)),
        ({"fsdp": -1, "tensor": 3}, 8, ("parallel.fsdp:", "-1", "(tensor 3)", "3 devices", "the 8 ")),
        ({"fsdp": 4}, 8, ("parallel:", "(fsdp 4)", "4 of 8 devices", "parallel.fsdp, to -1")),
        ({"fsdp": -1, "tensor": -1}, 8, ("parallel:", "one axis", "-1", "fsdp and tensor")),
        ({"fsdp": 0}, 8, ("parallel.fsdp:", "at least 1, or -1 for what remains", "got 0")),
        ({"fsdp": -2}, 8, ("parallel.fsdp:", "at least 1, or -1 for what remains", "got -2")),
    ],
)
def test_a_mesh_that_does_not_fit_is_one_sentence(parallel, devices, parts):
    with refused(*parts):
        resolve_axes(ParallelConfig(**parallel), devices)


def test_idle_devices_are_allowed_when_asked_for():
    parallel = ParallelConfig(fsdp=4)
    assert resolve_axes(parallel, 8, allow_fewer=True) is parallel


@pytest.mark.parametrize(
    ("parallel", "devices"),
    [
        (ParallelConfig(), 1), (ParallelConfig(fsdp=2, tensor=2, context=2), 8), (ParallelConfig(fsdp=-1), 8),
        (ParallelConfig(fsdp=-1, tensor=2), 8), (ParallelConfig(fsdp=-1, tensor=3), 6),
        (ParallelConfig(fsdp=-1, tensor=16), 16),
    ],
)  # fmt: skip
def test_virtual_devices_are_the_product_with_a_free_axis_filling_eight(parallel, devices):
    assert virtual_devices_needed(parallel) == devices and resolve_axes(parallel, devices)
