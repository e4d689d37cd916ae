"""The kernels of the head's loss, compiled for Hopper and Ampere at the size of a large vocabulary."""

from typing import Any

import pytest

from jaxpar.layout.memory.kernel_head import kernel_bytes
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code
from tests.pallas_kernels.linear_cross_entropy.gpu_linear import KEEPING, KERNELS

PROGRAMS = "tests.pallas_kernels.linear_cross_entropy.gpu_linear"
SHARED = {"sm_90a": 232448, "sm_80": 166912}
"""Bytes of shared memory that a thread block may have."""
IN_FLIGHT = {"sm_90a": [0, 1], "sm_80": []}
"""A product is waited for when the next is under way, and the last at the end; Ampere's are not asynchronous."""
CASES = [
    ["sm_90a", None, False], ["sm_90a", 30.0, False], ["sm_90a", None, True], ["sm_90a", 30.0, True],
    ["sm_80", None, False], ["sm_80", 30.0, True],
]  # fmt: skip
KEPT = [["sm_90a", None, False], ["sm_90a", 30.0, True], ["sm_80", None, True], ["sm_80", 30.0, False]]


@pytest.mark.long
def test_no_kernel_spills_and_all_use_the_tensor_cores():
    cases = [[*case, False] for case in CASES]
    for case, kernels in zip(cases, in_child(f"{PROGRAMS}:measure", *cases), strict=True):
        assert set(kernels) == set(KERNELS), case
        for name, found in kernels.items():
            machine_code.check(found)
            assert found["wgmma" if case[0] == "sm_90a" else "mma"] > 0, (case, name, found)
            assert found["waits"] == IN_FLIGHT[case[0]], (case, name, found)
            assert 65536 < found["shared"] <= SHARED[case[0]], (case, name, found)


@pytest.mark.long
def test_kernels_that_keep_logits_do_not_spill():
    cases = [[*case, True] for case in KEPT]
    for case, kernels in zip(cases, in_child(f"{PROGRAMS}:measure", *cases), strict=True):
        assert set(kernels) == set(KEEPING), case
        for found in kernels.values():
            machine_code.check(found)
        forward = kernels[KEEPING[0]]
        assert forward["wgmma" if case[0] == "sm_90a" else "mma"] > 0, (case, forward)
        assert forward["waits"] == IN_FLIGHT[case[0]], (case, forward)
        assert 65536 < forward["shared"] <= SHARED[case[0]], (case, forward)


@pytest.mark.long
@pytest.mark.parametrize("keep", [False, True])
def test_the_kernels_compile_inside_a_shard_map_over_eight_gpus(keep: bool):
    assert in_child(f"{PROGRAMS}:over_eight", keep) == list(KEEPING if keep else KERNELS)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"softcap": 30.0, "vocab": 31000}])
def test_kept_logits_are_three_matmuls_and_two_bytes_each(options: dict[str, Any]):
    """Against four matmuls and a chunk, in the program for an H100: gradients are written over what is kept."""
    tokens, embed, columns = shape = 8192, 1024, 32768
    again, kept = (in_child(f"{PROGRAMS}:allocated", keep, shape, options) for keep in (False, True))
    matmul = 2 * tokens * embed * columns
    assert (kept["flops"], kept["recomputed"]) == (3 * matmul, 0)
    assert (again["flops"], again["recomputed"]) == (4 * matmul, matmul)
    bytes_of = kernel_bytes(tokens, embed, columns, keeps=True)
    assert bytes_of == pytest.approx(kept["temporaries"], rel=0.1) and kept["temporaries"] >= 2 * tokens * columns
    assert kernel_bytes(tokens, embed, columns, keeps=False) == pytest.approx(again["temporaries"], rel=0.1)
