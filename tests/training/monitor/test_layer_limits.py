"""A run warns of numbers of layers that reach a feature's limit."""

from jaxpar.config import Config
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.runtime.carried import Limit
from jaxpar.training.monitor.anomaly_monitor import AnomalyMonitor
from tests.observe.records import record
from tests.training.monitor.test_anomaly_monitor import AnomalyRecorder


def test_a_number_that_reaches_its_limit_is_reported_once_with_its_layer_and_meaning():
    recorded = AnomalyRecorder()
    watching = AnomalyMonitor(
        Config(), LayerOrder.from_chunks([0], [3]), recorded, {"reach": Limit(2.0, "times too large")}
    )
    watching.features(1, record(1))
    watching.features(2, record(2, features={"reach": {"1": 1.9, "2": 0.5}, "other": {"1": 9.0}}))
    assert not recorded.anomalies
    watching.features(3, record(3, features={"reach": {"1": 0.5, "2": 4.25}}))
    watching.features(4, record(4, features={"reach": {"1": 0.5, "2": 8.0}}))
    [found] = recorded.anomalies
    assert found.kind == "layer_limit" and found.facts == {"metric": "reach", "layer": 2, "value": 4.25}
    assert "reach of layer 2 at step 3: 4.25 times too large." in found.text
