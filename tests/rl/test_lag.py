"""Answers of older weights undo learning where nothing corrects the loss, and not where something does."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.lag import fine_tuned, rewarded


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_truncated_weights_and_aipo_hold_at_a_lag_where_no_correction_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`docs/asynchronous-rl.md` has the runs of two seeds."""
    monkeypatch.setenv("XLA_FLAGS", "")
    options = Namespace(folder=tmp_path, steps=40, overrides=[])
    fine_tuned(options)
    without = rewarded(options, "none", 0, 2)
    nothing, truncated, aipo = (rewarded(options, name, 8, 2) for name in ("none", "truncated", "aipo"))
    assert without["success"] > 0.7 and nothing["success"] < 0.25
    assert min(truncated["reward"], aipo["reward"]) > nothing["reward"] + 0.1
    assert nothing["reward"] < 0.3 < without["reward"]
