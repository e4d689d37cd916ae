"""The ranks of a collective inside and between nodes, against a count of each group."""

import itertools
from collections import Counter

import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.mesh.quantized.transport import Levels, split_by_nodes


def counted(sizes: AxisSizes, axes: tuple[str, ...], node: int) -> tuple[int, int] | None:
    """(nodes, ranks of each) of every group, found device by device; None if groups differ or are uneven."""
    others = [range(size) if axis not in axes else range(1) for axis, size in dict(sizes).items()]
    own = [range(size) if axis in axes else range(1) for axis, size in dict(sizes).items()]
    found = set()
    for fixed in itertools.product(*others):
        members = []
        for place in itertools.product(*own):
            device = 0
            for size, a, b in zip(dict(sizes).values(), fixed, place, strict=True):
                device = device * size + a + b
            members.append(device // node)
        each = set(Counter(members).values())
        found.add((len(set(members)), each.pop()) if len(each) == 1 else None)
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize(
    ("sizes", "axes", "node"),
    [
        (AxisSizes(fsdp=8), ("fsdp",), 4),
        (AxisSizes(fsdp=8, tensor=2), ("fsdp",), 8),
        (AxisSizes(replica=2, fsdp=4), ("replica", "fsdp"), 4),
        (AxisSizes(replica=4, fsdp=2), ("replica",), 4),
        (AxisSizes(replica=4, fsdp=4), ("replica",), 4),
        (AxisSizes(fsdp=4, context=4), ("fsdp", "expert", "context"), 8),
        (AxisSizes(fsdp=12), ("fsdp",), 8),
        (AxisSizes(pipe=2, fsdp=12), ("fsdp",), 8),
        (AxisSizes(pipe=2, fsdp=3, tensor=2), ("fsdp",), 4),
        (AxisSizes(fsdp=8), ("fsdp",), 8),
    ],
)
def test_groups_are_split_as_their_devices_lie(sizes: AxisSizes, axes: tuple[str, ...], node: int):
    found = split_by_nodes(dict(sizes), axes, node)
    assert found == counted(sizes, axes, node)


def test_groups_are_those_inside_a_node_and_those_of_one_place():
    assert Levels(2, 3).inside == [[0, 1, 2], [3, 4, 5]]
    assert Levels(2, 3).between == [[0, 3], [1, 4], [2, 5]]
    assert Levels(1, 3).inside is None and Levels(3, 1).between is None
