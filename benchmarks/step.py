"""jaxpar's training step and PyTorch's, side by side: tokens per second, MFU and peak memory of one configuration.

    python -m benchmarks.step --config configs/llama3_1b.yaml --set data.batch_size=8 --set parallel.microbatches=1

Each side runs in a process of its own (both take a GPU's whole memory), in turn, `--rounds` times; the ratio is that of
the medians. PyTorch is `transformers`' Llama with SDPA, `torch.compile` and fused AdamW, in whichever Python `--torch`
names (default: this one); without torch there, that side is skipped with a message.

PyTorch runs pure bfloat16 (weights and moments too) by default, which is the setting that favours it most;
`--torch-precision mixed` keeps float32 weights under autocast, as jaxpar does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command
from jaxpar.config import UserError, config_to_dict, load_config
from jaxpar.pages.units import MILLI, percent, size

ROOT = Path(__file__).parent.parent


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.step", __doc__)
    parser.add_config()
    parser.add_argument("--rounds", type=int, default=2, help="turns that each side gets")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--torch", metavar="PYTHON", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--torch-precision", choices=("auto", "bfloat16", "mixed", "float32"), default="auto")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    commands = {"jaxpar": _jaxpar_command(options), "PyTorch": _torch_command(options)}
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for _ in range(options.rounds):
        for side, words in commands.items():
            if words is not None:
                results[side].append(_run(side, words))
    write_json(options.json, results)
    print(table(results))


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results for people, and the ratio of the medians."""
    lines = [f"{'':10}{'tokens/s':>12}{'step ms':>10}{'MFU':>8}{'peak':>12}{'host':>8}"]
    medians = {}
    flops = next((run["model_flops_per_step"] for run in results["jaxpar"]), None)
    mfu = next((run["mfu"] for run in results["jaxpar"]), None)
    for side, runs in results.items():
        if not runs:
            lines.append(f"{side:10}not measured: torch and transformers do not import there")
            continue
        medians[side] = rate = statistics.median(run["tokens_per_second"] for run in runs)
        seconds = statistics.median(run["step_time_s"] for run in runs)
        share = None
        if mfu is not None and flops is not None:
            share = mfu * statistics.median(run["step_time_s"] for run in results["jaxpar"]) / seconds
        peak = max((run["peak_bytes"] or 0) for run in runs)
        host = next((run["host_share"] for run in runs if "host_share" in run), None)
        lines.append(
            f"{side:10}{rate:12,.0f}{seconds / MILLI:10.1f}{'-' if share is None else percent(share):>8}"
            f"{size(peak) if peak else '-':>12}{'-' if host is None else percent(host):>8}"
        )
    if len(medians) == 2:
        lines.append(f"jaxpar runs at {medians['jaxpar'] / medians['PyTorch']:.2f} x PyTorch's tokens/s")
    return "\n".join(lines)


def _jaxpar_command(options: argparse.Namespace) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.jax_step",
        "--warmup",
        str(options.warmup),
        "--steps",
        str(options.steps),
    ]
    command += [] if options.config is None else ["--config", str(options.config)]
    return command + [part for override in options.overrides for part in ("--set", override)]


def _torch_command(options: argparse.Namespace) -> list[str] | None:
    probe = [options.torch, "-c", "import torch, transformers"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return None
    config = load_config(options.config, options.overrides)
    if config.data.packed:
        raise UserError(
            "data.packed is true; expected false (--set data.packed=false): PyTorch's side attends over whole rows, so "
            "the two would do different work"
        )
    model = config_to_dict(config)["model"]
    command = [options.torch, str(ROOT / "benchmarks" / "torch_step.py"), "--model", json.dumps(model), "--compile"]
    command += ["--sequence", str(config.data.sequence_length), "--batch", str(config.data.batch_size)]
    command += ["--microbatches", str(config.parallel.microbatches), "--precision", options.torch_precision]
    command += ["--warmup", str(options.warmup), "--steps", str(options.steps)]
    return [*command, "--checkpointing"] if config.memory.remat == "full" else command


def _run(side: str, command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{side} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
