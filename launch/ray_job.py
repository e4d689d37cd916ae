#!/usr/bin/env python3
"""A training job on a Ray cluster (https://docs.ray.io), one process per host:

    ray job submit -- python "$PWD/launch/ray_job.py" --hosts 2 --gpus 8 --config configs/llama3_8b.yaml

What follows --hosts and --gpus goes to jaxpar.train. The folder and its environment (make setup) are under the same
path on all hosts, on a shared file system. Ray chooses the hosts and reserves their GPUs; the job waits until they are
free. `ray job stop` may end the processes without a save; the same command continues from the newest checkpoint. The
exit code is that of the first process that failed. Where other users reach the hosts: --set
distributed.secret_file=FILE (docs/network.md).

Needs Ray in the Python that runs it; the processes use .venv, or the Python that PYTHON names.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit code, 2 for arguments that make none."""
    parser = argparse.ArgumentParser(
        prog="launch/ray_job.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True, help="how many")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each")
    options, training = parser.parse_known_args(arguments)
    if options.hosts < 1 or options.gpus < 1:
        parser.error("--hosts and --gpus: expected at least 1")

    import ray
    from ray.util import get_node_ip_address
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init()
    group = placement_group([{"GPU": options.gpus, "CPU": 1}] * options.hosts, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    on = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=host) for host in range(options.hosts)]

    def free_address() -> str:
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{get_node_ip_address()}:{free.getsockname()[1]}"

    address = ray.remote(free_address).options(num_cpus=0, scheduling_strategy=on[0])
    train = ray.remote(run).options(num_cpus=1, num_gpus=options.gpus, max_retries=0)
    job = ["--set", f"distributed.coordinator={ray.get(address.remote())}"]
    job += ["--set", f"distributed.processes={options.hosts}"]
    job += ["--set", f"distributed.devices_per_process={options.gpus}"]
    python = os.environ.get("PYTHON", ".venv/bin/python")
    start = [python, "-m", "jaxpar.train", *training, *job]
    processes = [
        train.options(scheduling_strategy=strategy).remote([*start, "--set", f"distributed.process_id={host}"], ROOT)
        for host, strategy in enumerate(on)
    ]
    try:
        waiting, codes = processes, []
        while waiting:
            ended, waiting = ray.wait(waiting)
            codes += ray.get(ended)
        return next((code for code in codes if code), 0)
    finally:
        remove_placement_group(group)


def run(command: Sequence[str], folder: Path) -> int:
    """A process of the job, in a worker of Ray; where its task is cancelled, the process saves."""
    process = subprocess.Popen(command, cwd=folder)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
