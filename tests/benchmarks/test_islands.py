"""The runs that islands are compared with have the settings that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks import islands
from benchmarks.islands import QUARTER, REFERENCE, settings_of
from jaxpar.distributed import devices


def test_the_quarter_run_has_a_quarter_of_the_rows_and_the_evaluation_that_was_asked_for():
    assert settings_of(QUARTER, {"data.batch_size": "32"}) == {"data.batch_size": 8, "evaluation.batches": 32}
    assert settings_of(QUARTER, {"evaluation.batches": "4"})["evaluation.batches"] == "4"


def test_the_warm_start_has_the_settings_of_data_parallelism(monkeypatch: pytest.MonkeyPatch):
    trained = list[Mapping[str, Any]]()

    def train(settings: Mapping[str, Any], *_: object) -> list[tuple[int, float, Any]]:
        trained.append(settings)
        return [(0, 1.0, np.zeros(1))]

    monkeypatch.setattr(islands, "trained", train)
    monkeypatch.setattr(devices, "prepare_devices", lambda *_: None)
    islands.main(
        ["--seeds", "1", "--warm", "2", "--runs", REFERENCE, "--set", "model.layers=2", "islands.outer.rate=1"]
    )
    assert trained == [{"model.layers": "2"}] * 2
