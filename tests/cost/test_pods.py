"""Messages between pods, whose uplinks are oversubscribed."""

from dataclasses import replace

import pytest

from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.messages import Network, network_of
from jaxpar.cost.wire_messages import WireMessages
from jaxpar.hardware.cluster import Pods, parse_cluster
from jaxpar.mesh.quantized.transport import Transport

SIZE = 1e9


def network(pods: Pods | None, cluster: str = "h100:16x8") -> Network:
    """Without latency."""
    there = replace(parse_cluster(cluster), pods=pods)
    model = replace(hardware_of(there.gpu), message_seconds=0.0)
    return replace(network_of(there, model), inside_latency=0.0, outside_latency=0.0, edge_latency=0.0)


def seconds(links: Network) -> dict[str, float]:
    """Of every kind of message, in groups of all sizes and strides, some of them across a border of pods."""
    found = {}
    for ranks in (2, 3, 4, 8, 16, 48, 128):
        for stride in (1, 2, 8, 24, 64):
            if ranks * stride > 128:
                continue
            found[f"pair {ranks} {stride}"] = links.pair(stride, ranks).shift(SIZE)
            ring, name = links.ring(ranks, stride), f"{ranks} {stride}"
            found[f"gather {name}"], found[f"exchange {name}"] = ring.gather(SIZE), ring.exchange(SIZE)
            found[f"reduce {name}"], found[f"shift {name}"] = ring.reduce(SIZE), ring.shift(SIZE)
            wire = WireMessages(links, Transport(gradient="int8"), ranks, stride, 2.0)
            found[f"levels {name}"] = wire.reduce(SIZE)
    return found


@pytest.mark.parametrize("pods", [Pods(4, 1.0), Pods(16, 7.0), Pods(20, 7.0)])
def test_full_bandwidth_and_one_pod_change_nothing(pods: Pods):
    assert seconds(network(pods)) == seconds(network(None))


@pytest.mark.parametrize("hosts", [1, 4, 5])
def test_more_oversubscription_makes_no_message_faster(hosts: int):
    ratios = [1.0, 1.5, 2.0, 7.0, 70.0]
    times = [seconds(network(Pods(hosts, ratio))) for ratio in ratios]
    for name in times[0]:
        of_name = [each[name] for each in times]
        assert of_name == sorted(of_name), name
    assert times[0]["exchange 128 1"] < times[1]["exchange 128 1"] < times[-1]["exchange 128 1"]


def test_messages_have_their_share_of_the_uplinks():
    """Four pods of 32 GPUs, 7 to 1: the uplinks of a pod carry as much as 32 / 7 cards."""
    links = network(Pods(4, 7.0))
    card = links.outside * links.share(4)
    alone = links.ring(4, 32)  # replicas in pods of their own: 32 rings leave each pod
    assert alone.gather(SIZE) == pytest.approx(SIZE * 3 / 4 / (card / 7))
    assert alone.exchange(SIZE) == pytest.approx(SIZE * 3 / 4 / (card / 7))
    whole = links.ring(128, 1)  # one ring over all: it leaves each pod once, over all uplinks
    beyond = links.outside * links.share(16)
    assert whole.gather(SIZE) == pytest.approx(SIZE * 127 / 128 / (beyond * 32 / 7))
    assert whole.exchange(SIZE) == pytest.approx(SIZE * 96 / 128 * 7 / beyond)
    stage = links.pair(8, 16)  # a stage is a host: one of four sends to the next pod
    assert stage.shift(SIZE) == pytest.approx(SIZE / (links.outside * links.model.network_share * 4 / 7))
