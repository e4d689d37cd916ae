"""Whether weights between nodes and messages of tensor ranks inside a node may be under way at the same time.

By default XLA keeps one collective in flight. A layer with tensor ranks sends beside each of its products, so that no
gather of weights and no reduction of gradients fits between. These use network cards, and tensor ranks NVLink.
"""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.plan import AxisSizes, Plan
from jaxpar.distributed.devices import Device
from jaxpar.layout.weight_prefetch import gathers_ahead

AT_ONCE = 2
"""Collectives in flight: one for each kind of link."""


def with_both_links(plan: Plan, device: Device, node_devices: int | None) -> Plan:
    """`plan` with two collectives in flight where it uses both kinds of links, on GPUs like `device`."""
    if device.platform == "cpu" or not uses_both_links(plan.axes, plan.zero, node_devices):
        return plan
    return replace(plan, collectives_at_once=AT_ONCE)


def uses_both_links(axes: AxisSizes, zero: int, node_devices: int | None) -> bool:
    """Whether layers gather weights ahead from other nodes, and tensor ranks are in one node, of `node_devices`
    (None: all are in one). Pipelines are left out, since none was compared."""
    if node_devices is None or axes.pipe > 1 or not 1 < axes.tensor <= node_devices:
        return False
    shards = axes.fsdp * axes.expert * axes.context
    return gathers_ahead(shards, zero) and shards * axes.tensor > node_devices
