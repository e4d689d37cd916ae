"""What a run warns of when FP8 codes do not hold its values."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config import Config
from jaxpar.config.schema.run import LimitsConfig
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.training.monitor.anomaly_monitor import AnomalyMonitor
from jaxpar.training.monitor.codes import FEWEST
from tests.observe.records import record
from tests.training.monitor.test_anomaly_monitor import AnomalyRecorder


def monitor(**limits: float | None) -> tuple[AnomalyMonitor, AnomalyRecorder]:
    recorded, config = AnomalyRecorder(), Config()
    config = replace(config, watch=replace(config.watch, limits=LimitsConfig(**limits)))
    return AnomalyMonitor(config, LayerOrder.of_one_rank(3), recorded), recorded


def test_values_that_codes_do_not_reach_are_reported_once():
    watching, recorded = monitor()
    watching.codes(1, record(1))
    watching.codes(2, record(2, matmul_reach={"1": 1.9, "2": 0.5}))
    assert not recorded.anomalies
    watching.codes(3, record(3, matmul_reach={"1": 0.5, "2": 4.25}))
    watching.codes(4, record(4, matmul_reach={"1": 0.5, "2": 8.0}))
    [found] = recorded.anomalies
    assert found.kind == "fp8_range" and found.facts == {"layer": 2, "reach": 4.25}
    assert "layer 2" in found.text and "4.25 times" in found.text


def test_a_share_that_is_cut_off_is_reported_above_its_limit_by_the_worst_tensor():
    watching, recorded = monitor()
    watching.codes(1, record(1, matmul_saturated={"up": [0.0, 0.001, 0.0]}))
    assert not recorded.anomalies
    watching.codes(2, record(2, matmul_saturated={"up": [0.0, 0.002, 0.0], "up.gradient": [0.0, 0.0, 0.25]}))
    [found] = recorded.anomalies
    assert found.kind == "fp8_saturated" and found.facts == {"layer": 2, "tensor": "up.gradient", "share": 0.25}
    assert "25.00% of the numbers of up.gradient in layer 2 at step 2" in found.text


def test_a_share_that_is_flushed_is_compared_with_its_own_median():
    """A high share that stays is no anomaly, nor is a small one that doubles."""
    watching, recorded = monitor()
    for step in range(1, FEWEST + 1):
        watching.codes(step, record(step, matmul_flushed={"up": [0.0, 0.30, 0.0], "down": [0.0, 0.001, 0.02]}))
    watching.codes(11, record(11, matmul_flushed={"up": [0.0, 0.32, 0.0], "down": [0.0, 0.009, 0.02]}))
    assert not recorded.anomalies
    watching.codes(12, record(12, matmul_flushed={"up": [0.0, 0.32, 0.0], "down": [0.0, 0.001, 0.05]}))
    [found] = recorded.anomalies
    assert found.kind == "fp8_flushed" and found.step == 12
    assert found.facts == {"layer": 2, "tensor": "down", "share": 0.05, "median": 0.02}
    assert "5.0% of the numbers of down in layer 2" in found.text and "median of 2.0%" in found.text


def test_null_turns_each_of_them_off():
    watching, recorded = monitor(fp8_range=None, fp8_saturated=None, fp8_flushed=None)
    for step in range(1, FEWEST + 2):
        share = 0.5 if step > FEWEST else 0.0
        shares = dict(matmul_saturated={"up": [1.0]}, matmul_flushed={"up": [share]})
        watching.codes(step, record(step, matmul_reach={"1": 9.0}, **shares))
    assert not recorded.anomalies
