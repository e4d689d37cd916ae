"""Agreement of a job's processes on configuration and plan: each has its own, and hosts differ."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import sha256

from jaxpar.attention.backends import kernel_request
from jaxpar.checkpoint.processes import judged
from jaxpar.config import Config, UserError, config_to_dict
from jaxpar.config.checks.paths import PATHS
from jaxpar.config.plan import NAMED_BY, Choice, Plan
from jaxpar.distributed import liveness
from jaxpar.distributed.devices import Device
from jaxpar.layout.choices.attention import attention_requests
from jaxpar.layout.choices.matmul import routed_choice, tiled_choice
from pallas_kernels.attention import comparison

DIFFERENT = "different"
_SHOWN = 3
"""Choices, and processes of a kind, that a sentence names."""
_CHOICE = {field.name for field in fields(Choice)}
_PLACES = {*PATHS} - {"parallel.schedule"}  # a name, too, and part of the plan
_LOCAL = ("memory.offload_dir", "run.compile_cache")
"""Keys of folders that a host may have and another not."""


def agreed_plan(make: Callable[[], Plan], config: Config, device: Device) -> Plan:
    """The plan that `make` makes, where it is that of every process; all processes call this, whatever they plan.

    Raises:
        UserError: `make` refused, here or on another process, or the plans of two processes differ in what they run.
    """
    liveness.report_activity("agreeing on the plan", busy=True)
    plan, failure, mine = None, None, {}
    try:
        plan = make()
        mine = choices(plan, config, device)
    except UserError as error:  # raised below, once the others know
        failure = error
    text = json.dumps(mine, sort_keys=True)
    said = {
        "host": socket.gethostname(),
        "plan": None if failure else sha256(text.encode()).hexdigest(),
        "failure": None if failure is None else str(failure),
    }
    verdict = judged(json.dumps(said), _verdict)
    if failure is not None:
        raise failure
    if verdict == DIFFERENT:
        verdict = judged(json.dumps([socket.gethostname(), mine]), _difference)
    if verdict is not None:
        raise UserError(verdict)
    assert plan is not None, "a process without a plan has raised"
    return plan


def _verdict(texts: Sequence[str]) -> str | None:
    """The reason why a process has no plan, `DIFFERENT` where the plans differ, or None."""
    everyone = [json.loads(text) for text in texts]
    for process, other in enumerate(everyone):
        if other["failure"] is not None:
            return f"process {process} on {other['host']} has no plan: {other['failure']}"
    return DIFFERENT if len({other["plan"] for other in everyone}) > 1 else None


def choices(plan: Plan, config: Config, device: Device) -> dict[str, object]:
    """The values that all processes of a run must have alike: the plan without its reasons, the kernels of 8-bit
    products, and the configuration but for what `distributed` says of a process.

    Folders differ between hosts: of a path that is no URL only its presence is compared, and of `_LOCAL` nothing.
    """
    matmuls = {"dense": tiled_choice(config, device), "routed": routed_choice(config, device, plan)}
    settings = config_to_dict(config)
    del settings["distributed"]
    data = settings["data"]
    for weights in (data, *data["later_sources"]):
        weights["sources"] = weights["sources"] and [*weights["sources"].values()]
    data["validation"] = data["validation"] and [*data["validation"]]
    values = dict(_leaves(settings))
    return {
        **dict(_leaves(asdict(plan), "plan.")),
        **{f"plan.matmul.{kind}": choice.name for kind, choice in matmuls.items() if choice is not None},
        **{
            key: "a path" if key in _PLACES and value and "://" not in str(value) else value
            for key, value in values.items()
            if key not in _LOCAL
        },
    }


def _leaves(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value.keys() == _CHOICE:
            yield f"{above}{key}", value["name"]
        elif isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _difference(texts: Sequence[str]) -> str:
    """One sentence: which choices differ, on which processes, and what to do.

    Args:
        texts: host and choices of each process, as JSON.
    """
    hosts, plans = zip(*map(json.loads, texts), strict=True)
    keys = sorted({key for plan in plans for key in plan})
    differ = [key for key in keys if len({_shown(plan, key) for plan in plans}) > 1]
    parts = []
    for key in differ[:_SHOWN]:
        by_value: dict[str, list[int]] = {}
        for process, plan in enumerate(plans):
            by_value.setdefault(_shown(plan, key), []).append(process)
        values = [f"{value} on {_processes(some, hosts)}" for value, some in by_value.items()]
        parts.append(f"{key}: {', '.join(values)}")
    more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    sentence = f"{'; '.join(parts)}{more}: all processes must run one program"
    if any(not key.startswith("plan.") for key in differ):
        return f"{sentence}; start all with the same configuration"
    named = [*dict.fromkeys(NAMED_BY[part] for key in differ for part in key.split(".") if part in NAMED_BY)]
    if not named:
        return f"{sentence}; name these in the configuration, or give all hosts the same memory, packages and files"
    return (
        f"{sentence}, and what auto takes depends on a host's records of kernels (~/.cache/jaxpar/verified.json), "
        "packages and ptxas; run python -m benchmarks.gpu --bring-up on all hosts, copy the verified.json of one to "
        f"the others, or set {' and '.join(named)}"
    )


def _shown(plan: Mapping[str, object], key: str) -> str:
    return json.dumps(plan[key]) if key in plan else "nothing"


def _processes(some: Sequence[int], hosts: Sequence[str]) -> str:
    names = [f"process {process} ({hosts[process]})" for process in some[:_SHOWN]]
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return (", " if more else " and ").join(names) + more


def compared_plan(make: Callable[[], Plan], config: Config, devices: Sequence[Device]) -> Plan:
    """The plan that `make` makes, once attention that needs it was compared with plain XLA.

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
    liveness.report_activity("comparing attention with plain XLA", busy=True)
    wrong = False
    for request in open_:
        if comparison.compared(request):  # of another kind of layers
            continue
        reason = judged(comparison.compare(request) or "", lambda reasons: next(filter(None, reasons), None))
        comparison.settle(request, reason)
        wrong |= reason is not None
    return agreed_plan(make, config, devices[0]) if wrong else plan
