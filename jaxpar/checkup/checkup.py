"""Runs all checks, in the order of their dependencies, on every process of the job."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

from jaxpar.checkup.finding import Finding, attempt, merged
from jaxpar.checkup.machine import check_machine, query, read_gpus
from jaxpar.checkup.software import check_software, cuda_release
from jaxpar.config import Config, UserError
from jaxpar.config.axes import virtual_devices_needed
from jaxpar.config.validate import validate

PATIENCE_S = 120
"""Seconds that one check may take on any process before the job fails with an error that names it."""


def check_all(config: Config) -> tuple[list[Finding], bool]:
    """Returns (findings of all processes of the job, whether this process reports them).

    Raises:
        UserError: the configuration is wrong, or the other processes cannot be reached.
    """
    validate(config)
    smi = query()
    gpus = [] if smi is None else read_gpus(smi)
    findings = attempt("packages", lambda: check_software(bool(gpus)))
    findings += attempt("driver", lambda: check_machine(gpus, cuda_release()))
    try:
        return _check_job(config, findings, bool(gpus))
    except ImportError as error:
        mend = "install what is missing and run the doctor again: later checks need it"
        return [*findings, Finding("packages", "fail", str(error), mend)], True


def _check_job(config: Config, reported: list[Finding], gpu: bool) -> tuple[list[Finding], bool]:
    """The checks that need JAX: devices, and the other processes."""
    import jax

    from jaxpar.checkpoint.processes import gather
    from jaxpar.checkup.devices import check_collectives, check_devices
    from jaxpar.checkup.disk import check_disk
    from jaxpar.checkup.step import check_step
    from jaxpar.distributed import liveness
    from jaxpar.distributed.devices import find_devices, prepare_devices
    from jaxpar.layout.checks.validate import validate as validate_model

    validate_model(config)
    cpu_wanted = os.environ.get("JAX_PLATFORMS") == "cpu"
    prepare_devices(virtual_devices_needed(config.parallel), replace(config.distributed, pause_timeout_s=PATIENCE_S))
    try:
        devices = find_devices()
    except UserError as error:
        mend = "check the driver, the plugin, CUDA_VISIBLE_DEVICES and JAX_PLATFORMS"
        return [*reported, Finding("devices", "fail", str(error), mend)], True
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "devices": lambda: check_devices(devices, config, gpu, cpu_wanted),
        "collectives": lambda: check_collectives(devices),
        "run.dir": lambda: check_disk(config, jax.process_index()),
        "step": lambda: check_step(devices),
    }
    for name, check in checks.items():
        liveness.report_activity(f"checking {name}")
        reported += attempt(name, check)
    liveness.report_activity("comparing what was found")
    me = f"process {jax.process_index()} on {socket.gethostname()}"
    texts = gather(json.dumps([me, [asdict(finding) for finding in reported]]))
    if texts is None:
        return reported, False
    gathered = [json.loads(text) for text in texts]
    all_findings = [[Finding(**finding) for finding in findings] for _, findings in gathered]
    return merged(all_findings, [name for name, _ in gathered]), True
