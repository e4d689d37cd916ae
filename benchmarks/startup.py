"""Seconds from a command to its first step, by part: imports, plan, compilation, initial weights, first step.

    python -m benchmarks.startup --set parallel.fsdp=1 --set parallel.tensor=1 --set parallel.context=1

Each round starts `jaxpar.train` twice in a process of its own: without cached programs (cold), and with those of that
start (warm). It prints the fastest start of each kind: wall seconds from the command, and processor seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command

QUICKSTART = "configs/quickstart.yaml"
PARTS = {
    "imports": "Python and imports",
    "ready": "devices, data and plan",
    "plan": "the run's folder",
    "compiled": "compilation of the step, and of the initial weights beside it",
    "step": "initial weights and first step",
}
"""The event that ends each part, and the part."""

START = """
import json, sys, time
from jaxpar.config import load_config
from jaxpar.observe.events import Listener
from jaxpar.training.run.trainer import Trainer

def end(part):
    print(json.dumps([part, time.time(), time.process_time()]), flush=True)

class Parts(Listener):
    def start(self, info):
        end("plan")

    def message(self, text):
        if text.startswith("Compiled"):
            end("compiled")

    def step(self, record):
        end("step")

end("imports")
trainer = Trainer(load_config(sys.argv[1], sys.argv[2:]))
end("ready")
trainer.fit([Parts()])
"""


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.startup", __doc__)
    parser.add_config()
    parser.add_argument("--rounds", type=int, default=3, help="cold starts, and as many warm ones")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    file, starts = str(options.config or QUICKSTART), {"cold": [], "warm": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for found in starts.values():
                found.append(start(file, options.overrides, Path(cache)))
    write_json(options.json, starts)
    for kind, found in starts.items():
        print(table(kind, min(found, key=lambda ends: ends["step"][0])))


def start(file: str, overrides: Sequence[str], cache: Path) -> dict[str, tuple[float, float]]:
    """Wall and processor seconds at the end of each of `PARTS`, of one start."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = ["run.steps=1", "run.log_every=1", "evaluation.every=0", "evaluation.batches=0"]
        fixed += ["evaluation.sample_tokens=0", f"run.dir={folder}", f"run.compile_cache={cache}"]
        words = [sys.executable, "-c", START, file, *overrides, *fixed]
        environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
        began = time.time()
        child = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        raise SystemExit(child.stderr)
    ends = (json.loads(line) for line in child.stdout.splitlines() if line.startswith("["))
    return {part: (at - began, processor) for part, at, processor in ends}


def table(kind: str, ends: dict[str, tuple[float, float]]) -> str:
    """The parts of a start, for people."""
    lines, before = [f"{kind:64}{'wall s':>8}{'processor s':>13}"], (0.0, 0.0)
    for part, words in PARTS.items():
        wall, processor = ends[part]
        lines.append(f"  {words:62}{wall - before[0]:8.1f}{processor - before[1]:13.1f}")
        before = wall, processor
    return "\n".join([*lines, f"  {'until the first step is done':62}{before[0]:8.1f}{before[1]:13.1f}"])


if __name__ == "__main__":
    sys.exit(main())
