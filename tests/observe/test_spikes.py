"""When a loss is a spike."""

import numpy as np
import pytest

from jaxpar.observe.spikes import LossWindow


def noisy(count: int, seed: int = 0) -> list[float]:
    """A loss that falls from 3.4 to 3.0 with a noise of 0.02."""
    noise = np.random.default_rng(seed).standard_normal(count) * 0.02
    return [float(3 + 0.4 * np.exp(-step / 50) + noise[step]) for step in range(count)]


def test_a_noisy_loss_that_falls_has_no_spikes():
    for seed in range(20):
        window = LossWindow(100, 8.0)
        assert [window.add(loss) for loss in noisy(500, seed)] == [None] * 500


def test_a_jump_is_measured_in_robust_standard_deviations():
    window = LossWindow(5, 3.0, [1.0, 2.0, 3.0, 4.0, 100.0])  # median 3, median absolute deviation 1
    spike = window.add(9.0)
    assert spike is not None
    assert (spike.loss, spike.median, spike.losses) == (9.0, 3.0, 5)
    assert spike.deviations == pytest.approx(6 / 1.4826)


@pytest.mark.parametrize(("loss", "spiked"), [(2.081, True), (2.079, False)])
def test_losses_that_hardly_change_do_not_make_spikes_of_nothing(loss: float, spiked: bool):
    window = LossWindow(100, 8.0, [2.0] * 100)  # 8 deviations of half a percent are 0.08
    assert (window.add(loss) is not None) == spiked


def test_there_must_be_a_fifth_of_the_window_to_judge_by():
    window = LossWindow(10, 3.0, [2.0])
    assert window.add(50.0) is None
    assert window.add(50.0) is None, "one of two was as high"
    window = LossWindow(10, 3.0, [2.0, 2.0])
    assert window.add(50.0) is not None


def test_a_level_that_stays_is_no_spike_for_long():
    window = LossWindow(20, 8.0, noisy(20))
    spiked = [window.add(6.0) is not None for _ in range(30)]
    assert spiked[0] and not any(spiked[11:])


def test_losses_go_on_from_what_was_kept():
    one = LossWindow(10, 3.0)
    for loss in noisy(15):
        one.add(loss)
    other = LossWindow(10, 3.0, one.losses)
    assert one.add(9.0) == other.add(9.0) and len(one.losses) == 10


def test_without_a_threshold_nothing_is_a_spike():
    assert LossWindow(10, None, [2.0] * 10).add(1e9) is None
