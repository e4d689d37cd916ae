"""The Hopper kernels compile for H100s that are not at hand, inside a checked `shard_map`, and fit their registers."""

from __future__ import annotations

import pytest

from pallas_kernels.attention.mosaic.schedule import CONSUMER_REGISTERS, PRODUCER_REGISTERS
from pallas_kernels.attention.mosaic.tiles import TABLE
from tests.gpu_compile import in_child

SHARED = 232448
"""Bytes of shared memory that a thread block may have."""

LONG = [
    ((64, 64), "packed-window", None, False, 4),
    ((128, 128), "packed-window", 30.0, True, 8),
    ((192, 128), "packed-window", None, False, 8),
    ((256, 256), "packed-window", None, False, 8),
]


def check(widths: tuple[int, int], mask: str, softcap: float | None, deterministic: bool, heads: int) -> None:
    found = in_child("tests.pallas_kernels.gpu_mosaic:kernels", *widths, mask, softcap, deterministic, heads)
    tiles = TABLE[widths]
    fused = tiles.fused is not None and not deterministic
    backward = ["attention_key_gradients"] * (1 if fused else len(tiles.key_gradients))
    backward += [] if fused else ["attention_query_gradients"]
    assert sorted(said["name"] for said in found["kernels"]) == sorted(["attention_forward", *backward])
    assert len(found["shared"]) == 1 + len(backward) and max(found["shared"]) <= SHARED
    for said in found["kernels"]:
        assert said["spilled"] == 0, said
        assert said["wgmma"] > 0 and said["tma"] > 0, said
        assert said["setmaxnreg"] == [PRODUCER_REGISTERS, CONSUMER_REGISTERS], said
        assert (said["reduce"] > 0) == (fused and said["name"] == "attention_key_gradients"), said


def test_kernels_use_tensor_cores_and_tma_and_spill_nothing() -> None:
    check((128, 128), "causal", None, False, 8)


@pytest.mark.long
@pytest.mark.parametrize(("widths", "mask", "softcap", "deterministic", "heads"), LONG)
def test_so_do_they_for_other_widths_and_masks(
    widths: tuple[int, int], mask: str, softcap: float | None, deterministic: bool, heads: int
) -> None:
    check(widths, mask, softcap, deterministic, heads)
