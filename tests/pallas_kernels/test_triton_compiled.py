"""The Triton kernels compile for GPUs that are not at hand, inside a checked `shard_map`, and fit their registers."""

from __future__ import annotations

import pytest

from pallas_kernels.attention.triton.tiles import AMPERE
from tests.gpu_compile import in_child

SHARED = {"a100-80": 101376, "h100": 232448}
"""Bytes of shared memory that a thread block may have; an A100's may have 166912, but all of its generation this."""

CASES = [(gpu, *widths) for gpu in SHARED for widths in AMPERE]
FIRST = ("h100", 128, 128)


@pytest.mark.parametrize(
    ("gpu", "width", "value_width"),
    [case if case == FIRST else pytest.param(*case, marks=pytest.mark.long) for case in CASES],
)
def test_kernels_use_tensor_cores_and_spill_nothing(gpu: str, width: int, value_width: int) -> None:
    found = in_child("tests.pallas_kernels.gpu_attention:kernels", gpu, width, value_width)
    assert {name.rsplit("_", 1)[0] for name in found} == {"attention_forward", "attention_dq", "attention_dkv"}
    instruction = {"a100-80": "mma", "h100": "wgmma"}[gpu]
    for name, said in found.items():
        assert said["spilled"] == 0 and said["registers"] <= 255, (name, said)
        assert said[instruction] > 0, (name, said)
        assert said["shared"] <= SHARED[gpu], (name, said)
