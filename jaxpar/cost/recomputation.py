"""The cost of recomputing each named activation of a layer, from the layer times that predict a step.

Every name has a use in the backward, so what is not kept is recomputed, once, whatever else is kept. The cost of a
choice is therefore a sum over the operations that run again; two outputs of one kernel (attention's output and its
log-sum-exp) share one operation, which runs again when either is not kept.
"""

from __future__ import annotations

from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import Cluster
from jaxpar.memory.costs import LayerCosts, Recomputation
from jaxpar.memory.layer_shape import activation_bytes


def layer_costs(
    case: LayerCase, cluster: Cluster, hardware: HardwareModel | None = None, exact: float = 0.0
) -> LayerCosts:
    """The costs of a layer in jaxpar.

    Args:
        case: the layer, on one device.
        cluster: where it runs; a mesh takes its GPUs in order, the tensor axis innermost.
        hardware: what the GPUs reach; None is what was fitted for them.
        exact: share of the layers that are exceptions in FP8; times are the mean of both.
    """
    model = hardware_of(cluster.gpu) if hardware is None else hardware
    on = device_of(cluster.gpu, model), network_of(cluster, model)
    shares = ((1.0 - exact, case), (exact, case.exact)) if exact else ((1.0, case),)
    times = [(share, layer_time(case, *on)) for share, case in shares]
    mean = lambda seconds: sum(share * seconds(time) for share, time in times)
    again = lambda operation: mean(lambda time: time.again(frozenset((operation,))).seconds)
    outputs: dict[str, list[str]] = {}
    for name, operation in times[0][1].made.items():
        outputs.setdefault(operation, []).append(name)
    return LayerCosts(
        sizes=activation_bytes(case.shape),
        recomputations=tuple(Recomputation(tuple(names), again(one)) for one, names in outputs.items()),
        forward_seconds=mean(lambda time: time.forward.seconds),
        backward_seconds=mean(lambda time: time.backward.seconds),
        host_bandwidth=cluster.host_bandwidth,
    )
