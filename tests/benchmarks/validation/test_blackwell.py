"""The shares of Blackwell GPUs, beside the published runs that they were fitted to."""

from math import exp
from statistics import fmean

import pytest

from benchmarks.validation.published import DATA, Run, read_runs
from jaxpar.cost.hardware_model import BLACKWELL

FITTED, REFUSED = read_runs(DATA / "blackwell.csv")


def test_software_is_as_much_faster_than_predicted_as_on_h100s() -> None:
    """Megatron Bridge 25.11, in FP8: so what is left is its own, and not the GPU's."""
    runs, _ = read_runs(DATA / "later.csv")
    of = lambda runs: exp(fmean(run.error for run in runs))
    on_h100s: list[Run] = [run for run in runs if run.source == "bridge_2511"]
    assert not REFUSED and {run.software for run in (*FITTED, *on_h100s)} == {FITTED[0].software}
    assert len(FITTED) == 5 and len(on_h100s) == 3
    assert of(FITTED) == pytest.approx(of(on_h100s), abs=0.01) == pytest.approx(0.874, abs=0.01)
    assert all(0.75 < exp(run.error) < 1.0 for run in FITTED)


def test_attention_is_as_fast_as_was_published() -> None:
    """TFLOP/s of long causal rows with heads of 128, exponentials included: cuDNN 9.13, and Triton."""
    seconds = lambda share, hidden: 512 / (2250e12 * share) + hidden / BLACKWELL.exponentials
    assert 512 / seconds(BLACKWELL.attention_native_share, 0.5) == pytest.approx(1605e12 / 1.3, rel=0.01)
    assert 512 / seconds(BLACKWELL.attention_share, 1.0) == pytest.approx(1605e12 / 2.7, rel=0.01)
