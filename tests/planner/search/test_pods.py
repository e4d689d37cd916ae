"""Plans for clusters whose pods are oversubscribed."""

from dataclasses import replace

from jaxpar.hardware.cluster import Pods, parse_cluster
from jaxpar.planner.search.candidate import Candidate
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of


def best(pods: Pods | None) -> Candidate:
    cluster = replace(parse_cluster("h800:4x4"), pods=pods)
    held = {"tensor": "1", "context": "1"}
    return Search(Space(model_of(data={"batch_size": 64}), cluster, held)).best(1)[0].candidate


def test_heavy_traffic_stays_inside_a_pod():
    """Weights go over the GPUs of a pod, and between pods pass activations of stages, or gradients of replicas, once a
    step and beside the backward."""
    open_network, alike = best(None), best(Pods(1, 1.0))
    assert alike == open_network
    assert open_network.layout.pipe == 1
    times = [open_network.seconds]
    for ratio in (3.0, 8.0):
        found = best(Pods(1, ratio))
        assert found.layout.fsdp == 4 and {found.layout.pipe, found.layout.replica} == {1, 4}
        times.append(found.seconds)
    assert times == sorted(times) and times[0] < times[-1]
