"""Processor seconds of plans without compilation, imports included, for four models and clusters.

python -m benchmarks.planner.seconds
python -m benchmarks.planner.seconds --only 8B --json seconds.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command

ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """A plan, and the most processor seconds that it should take."""

    name: str
    config: str
    cluster: str
    rows: int
    """Predicted seconds of a step."""
    most: float


CASES = (
    Case("8B", "configs/llama3_8b.yaml", "h100:1x8", 64, 5),
    Case("175B", "configs/gpt3_175b_32k.yaml", "h800:32x8", 256, 10),
    Case("405B", "configs/llama3_405b.yaml", "h100:2048x8", 2048, 15),
    Case("DeepSeek-V3", "configs/deepseek_v3.yaml", "h100:128x8", 8192, 30),
)


def processor_seconds(case: Case) -> float:
    """User and system seconds of the command, as its process reports them."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "-m", "jaxpar.plan", "--config", case.config, "--cluster", case.cluster, "--json", "--no-verify",
            "--set", f"data.batch_size={case.rows}", "--out", str(Path(folder) / "plan.json"),
        ]  # fmt: skip
        child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{case.name}: the command failed")
    return usage.ru_utime + usage.ru_stime


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner.seconds", __doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    add_json_file(parser)
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if case.name in options.only]
    rows = [case._asdict() | {"seconds": processor_seconds(case)} for case in chosen]
    write_json(options.json, rows)
    print("| model | cluster | processor seconds | wanted |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['cluster']} | {row['seconds']:.1f} | {row['most']:g} |")


if __name__ == "__main__":
    sys.exit(main())
