"""Messages and bytes with which the processes of a job agree, by event and number of processes.

    python -m benchmarks.agreement --processes 8 1024 16384 100000

The messages of a process other than 0 do not depend on the number of processes.

The code of `jaxpar.checkpoint.processes` runs as process 0 and as another one, against a coordination service that
answers for the rest; counters in it record what each sends and receives. A byte is one of a key or a text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from unittest import mock

import jax

from jaxpar.checkpoint import processes
from jaxpar.checkpoint.sealing import _judge
from jaxpar.observe.pace import Losses
from jaxpar.observe.stragglers import ProcessPace, logs_between
from jaxpar.pages.units import size

FILES_OF_A_PROCESS = 4
"""Files of a checkpoint that a process writes (Orbax's OCDBT), whose names, sizes and digests it sends."""


class Service:
    """The coordination service of a job in which every other process gives the same text as this one."""

    def __init__(self, count: int):
        self.count, self.values = count, dict[str, str]()

    def key_value_set(self, key: str, text: str, allow_overwrite: bool = False) -> None:
        self.values[key] = text
        if allow_overwrite:  # a note, which each process leaves
            above = key.rpartition("/")[0]
            self.values |= {f"{above}/{process:06d}": text for process in range(self.count)}

    def wait_at_barrier(self, key: str, timeout_ms: int) -> None:
        del timeout_ms
        [mine] = (text for name, text in self.values.items() if name.startswith(f"{key}/"))
        self.values |= {f"{key}/{process:06d}": mine for process in range(self.count)}

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        return [(name, text) for name, text in self.values.items() if name.startswith(key)]

    def key_value_delete(self, key: str) -> None:
        self.values = {name: text for name, text in self.values.items() if not name.startswith(key)}

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> str:
        del timeout_ms
        return self.values.get(key, json.dumps({"value": None}))


def events() -> dict[str, Callable[[], object]]:
    """The collective calls of each event of a run."""
    files = {f"state/ocdbt.process_0/d/{'0' * 32}{n}": [2**30, "0" * 64] for n in range(FILES_OF_A_PROCESS)}
    sealed = json.dumps({"files": files})
    intact = json.dumps(["0" * 64, ""])
    pace = json.dumps([asdict(ProcessPace(0, "node00001", 10**6, Losses(10, 1 / 3, 1 / 3, 1 / 3, 1 / 3)))] * 2)
    program = {"host": "node00001", "jax": jax.__version__, "XLA_FLAGS": "f" * 400, "program": "0" * 16}
    return {
        "a look at the clock": lambda: processes.run_on_process_0(lambda: [False, 1000]),
        "a save": lambda: (
            processes.run_on_process_0(lambda: False),
            processes.run_on_process_0(lambda: None),
            processes.gather(sealed, meeting="save-1"),
            processes.judged("", lambda _: None),
        ),
        "a verification": lambda: processes.judged(intact, _judge),
        "a comparison of paces": lambda: (
            processes.leave_note("pace", pace),
            processes.is_first() and processes.read_notes("pace"),
        ),
        "comparison of programs": lambda: (processes.run_on_process_0(lambda: program), processes.gather("")),
        "agreement on the plan": lambda: processes.judged(
            json.dumps({"host": "node01", "plan": "0" * 64, "failure": None}), lambda _: None
        ),
    }


def measured(event: Callable[[], object], count: int, index: int) -> processes.Traffic:
    """The traffic of process `index` of `count` in an event."""
    with (
        mock.patch.object(processes, "traffic", processes.Traffic()) as counted,
        mock.patch.object(processes, "_client", return_value=Service(count)),
        mock.patch.object(processes.jax, "process_count", return_value=count),
        mock.patch.object(processes.jax, "process_index", return_value=index),
    ):
        event()
        return counted


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.agreement", description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 1024, 16384, 100_000])
    counts = parser.parse_args(arguments).processes
    print("| event | another process | process 0 of " + " | ".join(f"{count:,}" for count in counts) + " |")
    print("|---|---|" + "---|" * len(counts))
    for name, event in events().items():
        cells = [measured(event, count, index) for index, count in [(1, counts[-1]), *((0, count) for count in counts)]]
        print(f"| {name} | " + " | ".join(f"{one.messages}, {size(one.bytes)}" for one in cells) + " |")
    between = " | ".join(map(str, map(logs_between, counts)))
    print(f"| logs from one comparison of paces to the next | | {between} |")


if __name__ == "__main__":
    main(sys.argv[1:])
