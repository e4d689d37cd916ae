"""What launches of attention kernels say of their work, against masks counted pair by pair."""

import numpy as np
import pytest

from pallas_kernels.attention.work import BACKWARD, FORWARD, Work
from pallas_kernels.masks import Mask
from tests.pallas_kernels.dense64 import Tokens, pairs

MASKS = [Mask(), Mask(causal=False), Mask(window=3), Mask(causal=False, window=3), Mask(window=40)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_pairs_are_those_that_the_mask_keeps(mask: Mask) -> None:
    kept = pairs(mask, Tokens.whole_rows(np.ones((1, 12), np.int32)))
    work = Work(FORWARD, mask.causal, mask.window)
    assert work.pairs(12, 12) == kept.sum()
    assert work.pairs(4, 12) * 3 == pytest.approx(kept.sum()), "the mean of the ranks that share the queries"


def test_parts_of_a_ring_add_up_to_about_the_row() -> None:
    parts, row = 4 * 4 * Work(FORWARD).pairs(1024, 1024), Work(FORWARD).pairs(4096, 4096)
    assert parts == pytest.approx(row, rel=1e-3)


@pytest.mark.parametrize("work", [Work(FORWARD), Work(BACKWARD, False), Work(("scores", "dv"), window=4096)])
def test_a_scope_is_read_back(work: Work) -> None:
    assert Work.named(work.name) == work


@pytest.mark.parametrize("name", ["attention", "attention_forward", "attention.output_projection", "attention.causal"])
def test_other_scopes_are_no_launches(name: str) -> None:
    assert Work.named(name) is None


def test_what_is_made_again() -> None:
    """Seven products in two launches for the five that one launch makes, and one of these the forward has made."""
    fused, split = [BACKWARD], [("scores", "slopes", "dq"), ("scores", "slopes", "dv", "dk")]
    for launches in (fused, split):
        made = [name for products in launches for name in products]
        again = [name for products in launches for name in Work(products).repeated]
        assert sorted(set(made)) == sorted(BACKWARD) and len(made) - len(again) == 4
    assert Work(FORWARD).repeated == Work(("scores", "dv")).repeated[1:] == ()


def test_products_have_the_width_of_keys_or_of_values() -> None:
    each = {name: Work(BACKWARD).flops(name, 10, 192, 128) for name in (*FORWARD, *BACKWARD)}
    assert {name: flops / 20 for name, flops in each.items()} == {
        "scores": 192, "dq": 192, "dk": 192, "output": 128, "slopes": 128, "dv": 128,
    }  # fmt: skip
