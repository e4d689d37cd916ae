"""The Triton kernels compile for GPUs that are not at hand, inside a checked `shard_map`, and fit their registers."""

from __future__ import annotations

import pytest

from pallas_kernels.attention.triton.tiles import AMPERE, AMPERE_SHORT
from tests.gpu_compile import in_child

SHARED = {"a100-80": 101376, "h100": 232448}
"""Bytes of shared memory that a thread block may have; an A100's may have 166912, but all of its generation this."""

INSTRUCTION = {"a100-80": "mma", "h100": "wgmma"}
FIRST = (128, 128, "packed")
HOPPER = [*((*widths, "packed") for widths in AMPERE if widths != FIRST[:2]), (128, 128, "packed, in lists")]
AMPERE_FORMS = [*((*widths, "packed") for widths in AMPERE), *((*widths, "causal") for widths in AMPERE_SHORT)]
"""Each entry of the tables, with intervals of blocks."""


@pytest.mark.parametrize(
    ("gpu", "forms"),
    [
        ("h100", [FIRST]),
        pytest.param("h100", HOPPER, marks=pytest.mark.long),
        pytest.param("a100-80", AMPERE_FORMS, marks=pytest.mark.long),
    ],
    ids=["Hopper 128", "Hopper, all others", "Ampere, all"],
)
def test_kernels_use_tensor_cores_and_spill_nothing(gpu: str, forms: list[tuple[int, int, str]]) -> None:
    of_forms = in_child("tests.pallas_kernels.gpu_attention:kernels", gpu, *forms)
    for (width, _, form), found in zip(forms, of_forms, strict=True):
        assert found.keys() == {f"attention_{kind}_{width}" for kind in ("forward", "dq", "dkv")}
        for name, said in found.items():
            assert said["spilled"] == 0 and said["registers"] <= 255, (name, form, said)
            assert said[INSTRUCTION[gpu]] > 0, (name, form, said)
            assert said["shared"] <= SHARED[gpu], (name, form, said)
