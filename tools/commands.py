"""The page of commands and their options: `python -m tools.commands > docs/commands.md` writes it from the parsers."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from functools import cache
from typing import NoReturn
from unittest.mock import patch

from jaxpar import plan
from jaxpar.__main__ import COMMANDS

HEADER = """\
# Commands

<!-- Written by `python -m tools.commands > docs/commands.md`; edit the commands in jaxpar/ instead. -->

All commands and their options. `jaxpar NAME` and `python -m jaxpar.NAME` are the same, and `--help` shows the same
options with examples:

    python -m jaxpar.plan --help

A command ends with exit status 0, with 1 where a run, a check or a program fails, or with 2 and one sentence where
an argument, a key or a file is wrong.
[configuration.md](configuration.md) lists the keys that `--set` takes.
"""


class ParserMade(Exception):
    """Ends a command when its argument parser is complete."""

    def __init__(self, parser: argparse.ArgumentParser):
        self.parser = parser


@cache
def parser_of(module: str, word: str = "--help") -> argparse.ArgumentParser | None:
    """The parser that a command of jaxpar builds if its first argument is `word`, which may be a subcommand; None
    of a module that is no command."""

    def parse_args(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise ParserMade(parser)

    main = getattr(importlib.import_module(module), "main", None)
    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        try:
            if main is not None:
                main([word])
        except ParserMade as made:
            return made.parser
    return None


def parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of each command, and of the subcommands of `plan`."""
    for name in COMMANDS:
        words = ("--help", *plan.COMMANDS) if name == "plan" else ("--help",)
        for word in words:
            if parser := parser_of(f"jaxpar.{name}", word):
                yield parser


def section(parser: argparse.ArgumentParser) -> str:
    """A heading, the description, and a table of the arguments of a command."""
    rows = [f"| {_names(action)} | {_cell(action.help or '')} |" for action in parser._actions if action.dest != "help"]
    head = f"\n## {parser.prog.removeprefix('python -m jaxpar.')}\n\n{_linked(parser.description or '')}\n"
    return "\n".join([head, "| argument | meaning |", "|---|---|", *rows])


def _names(action: argparse.Action) -> str:
    value = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    flags = ", ".join(action.option_strings)
    text = flags if action.nargs == 0 else f"{flags} {value}".strip()
    return f"`{_cell(text)}`{' (required)' if action.required and flags else ''}"


def _cell(text: str) -> str:
    return _linked(text.replace("|", "\\|").replace("%%", "%").replace("<", "&lt;"))


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def page() -> str:
    """The text of docs/commands.md."""
    rows = [f"| [{name}](#{name}) | {what} |" for name, what in COMMANDS.items()]
    return "\n".join([HEADER, "| command | to |", "|---|---|", *rows, *map(section, parsers())]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
