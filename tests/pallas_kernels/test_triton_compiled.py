"""The Triton kernels compile for GPUs that are not at hand, inside a checked `shard_map`, and fit their registers."""

from __future__ import annotations

import pytest

from pallas_kernels.attention.triton.tiles import AMPERE
from tests.gpu_compile import in_child

SHARED = {"a100-80": 101376, "h100": 232448}
"""Bytes of shared memory that a thread block may have; an A100's may have 166912, but all of its generation this."""

INSTRUCTION = {"a100-80": "mma", "h100": "wgmma"}
FIRST = (128, 128)
REST = [widths for widths in AMPERE if widths != FIRST]


@pytest.mark.parametrize(
    ("gpu", "widths"),
    [
        ("h100", [FIRST]),
        pytest.param("h100", REST, marks=pytest.mark.long),
        pytest.param("a100-80", [FIRST, *REST], marks=pytest.mark.long),
    ],
    ids=["Hopper 128", "Hopper, all others", "Ampere, all"],
)
def test_kernels_use_tensor_cores_and_spill_nothing(gpu: str, widths: list[tuple[int, int]]) -> None:
    found = in_child("tests.pallas_kernels.gpu_attention:kernels", gpu, *widths)
    kinds = ("forward", "dq", "dkv")
    assert found.keys() == {f"attention_{kind}_{width}" for kind in kinds for width, _ in widths}
    for name, said in found.items():
        assert said["spilled"] == 0 and said["registers"] <= 255, (name, said)
        assert said[INSTRUCTION[gpu]] > 0, (name, said)
        assert said["shared"] <= SHARED[gpu], (name, said)
