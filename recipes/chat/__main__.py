"""`python -m recipes.chat`: from nothing to a chat model."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import join

from jaxpar.cli import Parser, command, run_command
from jaxpar.cli.parser import number
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, quoted
from recipes.chat.card import CARD, TIMES, write_card
from recipes.chat.stages import FOLDER, STAGES, Stage, check_steps

EPILOG = """\
The stages are {}; the last writes the report card, runs/chat/card.html. A stage that is done is not repeated, and one
that was interrupted continues. Then talk to the model:

    python -m jaxpar.generate --model runs/chat/grpo --tokenizer runs/chat/tokenizer --chat
    python -m recipes.chat serve
"""
NAMES = (*(stage.name for stage in STAGES), "card", "serve")


@command("interrupted; the same command continues the recipe")
def main(arguments: Sequence[str]) -> int:
    """Run stages of the recipe; the exit code: 0 done, 2 a user error, 130 interrupted, else that of a command."""
    words = "Train a small chat model on Python's standard library, from nothing, in half an hour on two cores."
    parser = Parser("recipes.chat", words, EPILOG.format(", ".join(NAMES[:-1])), words=NAMES)
    parser.add_argument("stages", metavar="STAGE", nargs="*", help="stages to run (default: all but serve)")
    parser.add_argument("--quick", action="store_true", help="two steps of each stage: try the commands, learn nothing")
    parser.add_argument(
        "--price", metavar="DOLLARS", type=_dollars, default=3.0, help="of a GPU hour, for the card's costs"
    )
    options = parser.parse_args(arguments)
    chosen = options.stages or NAMES[:-1]
    for name in chosen:
        if name not in NAMES:
            raise UserError(f"{name}: there is no such stage{did_you_mean(name, NAMES)}; expected {', '.join(NAMES)}")
    check_steps(options.quick)
    for stage in STAGES:
        if stage.name in chosen and (code := _run_stage(stage, options)):
            return code
    if {"card", "serve"} & {*chosen}:
        _check_earlier(len(STAGES), chosen[-1])
    if "card" in chosen:
        if code := write_card(_run, options.price):
            return code
        print(f"{CARD} is the report card; python -m recipes.chat serve serves the model", flush=True)
    model = ["--model", str(FOLDER / "grpo"), "--tokenizer", str(FOLDER / "tokenizer")]
    return _run(["jaxpar.serve", *model]) if "serve" in chosen else 0


def _dollars(text: str) -> float:
    price = number(text)
    if not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"expected dollars, 0 or more, got {quoted(text, 40)}")
    return price


def _run_stage(stage: Stage, options: argparse.Namespace) -> int:
    if stage.is_done():
        print(f"{stage.name}: done", flush=True)
        return 0
    _check_earlier(STAGES.index(stage), stage.name)
    print(f"{stage.name}: {stage.title}", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        return stage.run(_run, options.quick)
    finally:
        with TIMES.open("a") as file:
            file.write(json.dumps({"stage": stage.name, "seconds": round(time.monotonic() - began, 1)}) + "\n")


def _check_earlier(index: int, name: str) -> None:
    """Raise `UserError` where a stage before this one is not done."""
    for stage in STAGES[:index]:
        if not stage.is_done():
            raise UserError(
                f"{name}: needs the stage {stage.name}, which is not done: python -m recipes.chat {stage.name}"
            )


def _run(words: Sequence[str], out: Path | None = None) -> int:
    print(f"$ python -m {join(words)}{'' if out is None else f' > {out}'}", flush=True)
    return run_command(words, out)


if __name__ == "__main__":
    sys.exit(main())
