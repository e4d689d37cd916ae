"""A simulated job of many processes meets, reports, loses some, and all others get the verdict."""

import pytest

from benchmarks.watching import Loss, simulate


@pytest.mark.long
@pytest.mark.parametrize("loss", ["dead", "stopped"])
def test_all_that_are_left_get_a_verdict_that_names_one_that_is_lost(loss: Loss):
    met, told = simulate(40, 0.05, loss, timeout_s=4.0, groups=2)
    assert len(told) == 37
    assert met.beating.messages >= 2 * 39, "a message each way"
    named = ("process 39", "process 20")
    assert any(name in met.verdict for name in named)
    assert ("died" if loss == "dead" else "gave no sign of life for 4 s") in met.verdict
    assert met.verdict_s < 30
