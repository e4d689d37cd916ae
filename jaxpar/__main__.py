"""`jaxpar COMMAND ...` and `python -m jaxpar COMMAND ...`: run a command, or list them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from jaxpar.cli import command
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, quoted

COMMANDS = {
    "train": "train a model, or continue a run",
    "prepare": "turn text, conversations or pairs of answers into tokens",
    "models": "print a configuration for a model in Hugging Face's format",
    "generate": "continue prompts with a model, or talk to it",
    "serve": "serve a model by HTTP, as OpenAI's interface",
    "evaluate": "evaluate a model on texts and tasks",
    "mixture": "train models on clusters of text, and mix them",
    "convert": "convert weights to and from Hugging Face's format",
    "report": "make a page of one run or several",
    "find_lr": "find a learning rate",
    "sweep": "train a run for each combination of values",
    "plan": "find the best layout of a model for a cluster",
    "inspect": "memory, traffic and time of a step, without a GPU",
    "schedule": "draw, time and compare pipeline schedules",
    "doctor": "check a machine or cluster",
}
"""Each module of a command, and what it does."""

HELP = ("-h", "--help")


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` begin with; without one, or with --help, list them."""
    name, *others = arguments or HELP[:1]
    if name in HELP:
        print(f"usage: jaxpar COMMAND ...\n\nTrain language models on any mesh of GPUs with JAX.\n\n{_list()}")
        return 0
    module = name.replace("-", "_")
    if module not in COMMANDS:
        raise UserError(f"there is no command {quoted(name)}{did_you_mean(module, COMMANDS)}")
    return import_module(f"jaxpar.{module}").main(others)


def _list() -> str:
    lines = (f"  {name:<10}{what}" for name, what in COMMANDS.items())
    return "\n".join(["commands (`jaxpar COMMAND --help` explains one):", *lines])


if __name__ == "__main__":
    sys.exit(main())
