"""The comparison of attention with plain XLA at the start of a run, before its plan is final."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxpar.attention.backends import kernel_request
from jaxpar.checkpoint.processes import exchange
from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.distributed import liveness
from jaxpar.distributed.devices import Device
from jaxpar.layout.choices.attention import attention_requests
from jaxpar.training.run.agreed import agreed_plan
from pallas_kernels.attention import comparison


def compared_plan(make: Callable[[], Plan], config: Config, devices: Sequence[Device]) -> Plan:
    """The plan that `make` makes, once what its attention takes on condition of a comparison has been compared.

    Where that is not right on any device of the job, it is made anew, without it; `make` may raise then. All processes
    have the same plan before any of them compares, so that all of them do or none.
    """
    plan = agreed_plan(make, config, devices[0])
    requests = [kernel_request(request) for request in attention_requests(config, devices[0], plan.runs).values()]
    names = [choice.name for choice in plan.attention.values()]
    open_ = [
        request
        for name, request in zip(names, requests, strict=True)
        if name == "cudnn" and request.mask.segmented and not comparison.compared(request)
    ]
    if not open_ or devices[0].platform != "gpu":
        return plan
    liveness.at("comparing attention with plain XLA", busy=True)
    wrong = False
    for request in open_:
        if comparison.compared(request):  # of another kind of layers
            continue
        reasons = [reason for reason in exchange(comparison.compare(request) or "") if reason]
        comparison.settle(request, reasons[0] if reasons else None)
        wrong |= bool(reasons)
    return agreed_plan(make, config, devices[0]) if wrong else plan
