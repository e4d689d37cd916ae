"""The step of llama3-1b in PyTorch, in bfloat16 and with torchao's FP8, beside ours in each recipe.

Each is `benchmarks/torch_step.py` in a process of its own, where torch and transformers import and torch sees a GPU:
`torch.compile`, SDPA, fused AdamW, weights and moments in bfloat16 (ours are float32), the same rows and microbatches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.training import LLAMA_1B, LLAMA_1B_STEP
from jaxpar.config import Config, config_to_dict, load_config

PROGRAM = Path(__file__).parents[1] / "torch_step.py"
WHAT = "a step of PyTorch beside ours"
RECIPES = {"torch bfloat16": None, "torchao tensorwise": "tensorwise", "torchao rowwise": "rowwise"}
"""Name of a row to the recipe of torchao."""
TORCH = "import torch, transformers; assert torch.cuda.is_available(), 'torch sees no GPU'"
TORCHAO = "import torchao.float8"
"""What they need, as lines of Python."""
SECONDS = 45
"""One of them is begun with at least so much time left: `torch.compile` takes most of it."""


def measure(journal: Journal) -> None:
    """Tokens per second of each, or why there are none."""
    why = _missing(TORCH)
    if why is not None:
        journal.skip(WHAT, why)
        return
    without = _missing(TORCHAO)
    for name, recipe in RECIPES.items():
        if recipe is not None and without is not None:
            journal.skip(name, without)
        elif journal.has_time(name, SECONDS):
            _add(journal, name, recipe)


def command_of(config: Config, recipe: str | None) -> list[str]:
    """The program for the step of `config` with torchao's `recipe`; None is bfloat16."""
    model, data = config_to_dict(config)["model"], config.data
    command = [sys.executable, str(PROGRAM), "--model", json.dumps(model), "--compile", "--precision", "bfloat16"]
    command += ["--sequence", str(data.sequence_length), "--batch", str(data.batch_size)]
    command += ["--microbatches", str(config.parallel.microbatches), "--warmup", "3", "--steps", "6"]
    return command if recipe is None else [*command, "--float8", recipe]


def _add(journal: Journal, name: str, recipe: str | None) -> None:
    """Add a row, or why there is none: an error of PyTorch is none of ours."""
    command = command_of(load_config(LLAMA_1B, list(LLAMA_1B_STEP)), recipe)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=journal.left)
    except subprocess.TimeoutExpired:
        journal.skip(name, "time budget: it did not end in time")
        return
    if done.returncode != 0:
        journal.skip(name, _last_line(done.stderr))
        return
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    journal.add("recipe", name=name, **found, mfu=None, memory_kind="device", attention="SDPA", matmuls="torch")


def _missing(program: str) -> str | None:
    """Why a line of Python does not run in a process of its own; None if it does."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = _last_line(done.stderr)
    module = last.removeprefix("ModuleNotFoundError: No module named ").strip("'")
    return f"{module} is not installed" if module != last else last.removeprefix("AssertionError: ")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
