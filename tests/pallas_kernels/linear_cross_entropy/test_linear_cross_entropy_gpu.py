"""The kernels of the head's loss, compiled for Hopper and Ampere at the size of a large vocabulary."""

from __future__ import annotations

import pytest

from tests.gpu_compile import in_child
from tests.pallas_kernels.linear_cross_entropy.gpu_linear import KERNELS

PROGRAMS = "tests.pallas_kernels.linear_cross_entropy.gpu_linear"
SHARED = {"sm_90a": 232448, "sm_80": 166912}
"""Bytes of shared memory that a thread block may have."""
CASES = [
    ["sm_90a", None, False], ["sm_90a", 30.0, False], ["sm_90a", None, True], ["sm_90a", 30.0, True],
    ["sm_80", None, False], ["sm_80", 30.0, True],
]  # fmt: skip


@pytest.mark.long
def test_no_kernel_spills_and_all_use_the_tensor_cores():
    for case, kernels in zip(CASES, in_child(f"{PROGRAMS}:measure", *CASES), strict=True):
        assert set(kernels) == set(KERNELS), case
        for name, found in kernels.items():
            assert found["spilled"] == 0 < found["registers"], (case, name, found)
            assert found["wgmma" if case[0] == "sm_90a" else "mma"] > 0, (case, name, found)
            assert 65536 < found["shared"] <= SHARED[case[0]], (case, name, found)


@pytest.mark.long
def test_both_kernels_compile_inside_a_shard_map_over_eight_gpus():
    assert in_child(f"{PROGRAMS}:over_eight") == list(KERNELS)
