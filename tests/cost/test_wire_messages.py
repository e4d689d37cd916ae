"""Seconds of quantised messages: bytes over bandwidth without latency, and hops with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.cost.wire_messages import WireMessages
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.mesh.quantized.blocks import row_bytes
from jaxpar.mesh.quantized.transport import Transport

ELEMENTS = 2.0**26


def messages(wire: Transport, hosts: int = 4, *, latency: bool = False) -> WireMessages:
    cluster = parse_cluster(f"h100:{hosts}x8")
    model = hardware_of(cluster.gpu)
    network = network_of(cluster, model)
    if not latency:
        network = replace(network, inside_latency=0, outside_latency=0, model=replace(model, message_seconds=0))
    return WireMessages(network, wire, 8 * hosts, 1, 2.0)


def links() -> tuple[float, float]:
    """Bytes per second of a GPU inside its host, and over its card between four hosts."""
    network = messages(Transport()).network
    return network.inside * network.model.node_share, network.outside * network.share(4)


def test_a_secondary_shard_takes_its_bytes_over_its_links():
    inside, card = links()
    between = ELEMENTS * 2 / 8 * 3 / 4 / card
    own = messages(Transport(secondary=8))
    assert own.gather(ELEMENTS) == pytest.approx(ELEMENTS * 2 * 7 / 8 / inside)
    assert own.gather_once(ELEMENTS) == pytest.approx(between)


@pytest.mark.parametrize("codes", ["int8", "int4"])
def test_quantised_messages_take_the_bytes_of_their_codes(codes: str):
    inside, card = links()
    sent, inside_node = row_bytes(int(ELEMENTS), codes), row_bytes(int(ELEMENTS), "int8")
    found = messages(Transport(gradient=codes, node_devices=8)).scatter(ELEMENTS)  # pyright: ignore[reportArgumentType]
    assert found == pytest.approx(inside_node * 7 / 8 / inside + sent / 8 * 3 / 4 / card)
