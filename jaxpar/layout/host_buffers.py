"""The memory that XLA counts with on a device, where activations are kept in the host's.

XLA recomputes by itself where a program exceeds the device's memory (the limit less arguments and results, of which
`xla_gpu_memory_limit_slop_factor` is the percentage that counts), and in that sum it takes what is in host memory for
the device's. With more on the host than a device has, it ran kernels again in a program that needed a quarter of the
device. So the percentage is raised by what is on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxpar.config import Config
from jaxpar.config.bounds import PERCENT
from jaxpar.config.plan import Plan
from jaxpar.distributed.devices import Device
from jaxpar.layout.memory.estimate import estimate_memory, offloaded_bytes

OWN_PERCENT = 95
"""XLA's default."""


def with_host_buffers(config: Config, plan: Plan, device: Device, usable: Callable[[], int]) -> Plan:
    """`plan` with the percentage that leaves XLA as much of the device as it has without activations on the host.

    Args:
        config: of the plan.
        plan: what layers keep is settled.
        device: the devices are like it.
        usable: bytes that a program may take of one.
    """
    on_host = offloaded_bytes(config, plan)
    if on_host == 0 or device.platform == "cpu":
        return plan
    free = max(1, usable() - estimate_memory(config, plan).optimizer)
    return replace(plan, memory_percent=min(OWN_PERCENT - (-100 * on_host // free), PERCENT))
